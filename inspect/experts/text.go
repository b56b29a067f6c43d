package experts

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"dsmoe/inspect"
	"dsmoe/model/table"
	"dsmoe/text"
)

// Sheet is a row per expert, the shared ones of a layer below its routed ones, or LayerSheet.
func (r *Report) Sheet() *text.Sheet {
	if r.by == inspect.ByLayer {
		return r.LayerSheet()
	}
	s := text.NewSheet("layer", "expert", ">norm_gate", ">norm_up", ">norm_down", ">z", ">rank_gate", ">rank_up",
		">rank_down",
		">cos_gate", ">cos_up", ">cos_down", ">function", ">nearest", ">zero_neurons", ">not_finite")
	for i := range r.Layers {
		for _, e := range r.Layers[i].all() {
			e.addRow(s, r.Layers[i].Layer)
		}
	}
	return s
}

// addRow adds the row of an expert.
func (e *Expert) addRow(s *text.Sheet, layer int) {
	var norms, ranks, cosines []text.Cell
	var z *float64
	notFinite := int64(0)
	for _, m := range e.All() {
		if m == nil {
			m = &MatrixNumbers{}
		}
		norms, ranks = append(norms, text.Real(m.Norm)), append(ranks, text.Real(m.StableRank))
		cosines = append(cosines, text.Real(m.Nearest.Value()))
		z = inspect.Larger(z, m.NormZ)
		notFinite += m.NaN + m.Infinite
	}
	s.Row(layer, expertCell(e.Expert), norms, z, ranks, cosines, e.Function.Value(), e.Function.Name(), e.ZeroNeurons,
		notFinite)
}

// LayerSheet is a row per layer and matrix, and one for the function of the experts.
func (r *Report) LayerSheet() *text.Sheet {
	s := text.NewSheet("layer", "of", ">experts", ">norm", ">norm_mad", ">shared_norm", ">rank", ">null_rank",
		">mean_abs_cos",
		">largest_cos", "pair", ">null_std")
	for i := range r.Layers {
		l := &r.Layers[i]
		for role, m := range present(&l.Matrices) {
			s.Row(l.Layer, string(role), len(l.Experts), m.Norm.Cells(), l.sharedNorm(role), m.StableRank.Cells()[0],
				m.NullStableRank,
				m.Pairs.Cells())
		}
		if l.Function != nil {
			s.Row(l.Layer, "function", len(l.Experts), slices.Repeat([]text.Cell{text.Real(nil)}, 5), l.Function.Cells())
		}
	}
	return s
}

// sharedNorm is the norm of a matrix of the shared experts; nil if there is none.
func (l *Layer) sharedNorm(role table.Role) *float64 {
	if l.Shared == nil || *l.Shared.Of(role) == nil {
		return nil
	}
	return (*l.Shared.Of(role)).Norm
}

// WriteText writes the sheet, what random weights would give, and the findings.
func (r *Report) WriteText(w io.Writer) error {
	var lines []string
	for i := range r.Layers {
		if line := r.Layers[i].null(); line != "" && r.by != inspect.ByLayer {
			lines = append(lines, line)
		}
	}
	for _, l := range r.Layers {
		if n := len(l.Experts); n < inspect.LeastPeers {
			lines = append(lines, fmt.Sprintf("layer %d: %s: too few for one to be the odd one", l.Layer,
				text.Plural(n, "routed expert")))
		}
	}
	return r.WriteBelow(w, r.Sheet(), lines)
}

// null says what independent random weights would give; "" if there are no pairs.
func (l *Layer) null() string {
	var parts []string
	for role, m := range present(&l.Matrices) {
		if m.Pairs != nil {
			parts = append(parts, fmt.Sprintf("%s rank %.4g, cosines 0 ± %.2g", role, m.NullStableRank, m.Pairs.NullStd))
		}
	}
	if l.Function != nil {
		parts = append(parts, fmt.Sprintf("function 0 ± %.2g", l.Function.NullStd))
	}
	if parts == nil {
		return ""
	}
	return fmt.Sprintf("random   layer %d: %s", l.Layer, strings.Join(parts, "; "))
}
