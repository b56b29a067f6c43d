package experts

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"dsmoe/inspect"
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
			s.Row(r.Layers[i].Layer, expertCell(e.Expert), norms, z, ranks, cosines, e.Function.Value(), e.Function.Name(),
				e.ZeroNeurons, notFinite)
		}
	}
	return s
}

// LayerSheet is a row per layer and matrix, and one for the function of the experts.
func (r *Report) LayerSheet() *text.Sheet {
	s := text.NewSheet("layer", "of", ">experts", ">norm", ">norm_mad", ">shared_norm", ">rank", ">null_rank",
		">mean_abs_cos",
		">largest_cos", "pair", ">null_std")
	for i := range r.Layers {
		l := &r.Layers[i]
		for role, m := range present(&l.Matrices) {
			var shared *float64
			if l.Shared != nil && *l.Shared.Of(role) != nil {
				shared = (*l.Shared.Of(role)).Norm
			}
			s.Row(l.Layer, string(role), len(l.Experts), m.Norm.Cells(), shared, m.StableRank.Cells()[0], m.NullStableRank,
				m.Pairs.Cells())
		}
		if l.Function != nil {
			s.Row(l.Layer, "function", len(l.Experts), slices.Repeat([]text.Cell{text.Real(nil)}, 5), l.Function.Cells())
		}
	}
	return s
}

// WriteText writes the sheet, what random weights would give, and the findings.
func (r *Report) WriteText(w io.Writer) error {
	var lines []string
	for i := range r.Layers {
		l := &r.Layers[i]
		var random []string // what independent random weights would give
		for role, m := range present(&l.Matrices) {
			if m.Pairs != nil {
				random = append(random, fmt.Sprintf("%s rank %.4g, cosines 0 ± %.2g", role, m.NullStableRank, m.Pairs.NullStd))
			}
		}
		if l.Function != nil {
			random = append(random, fmt.Sprintf("function 0 ± %.2g", l.Function.NullStd))
		}
		if random != nil && r.by != inspect.ByLayer {
			lines = append(lines, fmt.Sprintf("random   layer %d: %s", l.Layer, strings.Join(random, "; ")))
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
