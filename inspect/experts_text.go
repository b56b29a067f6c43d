package inspect

import (
	"fmt"
	"io"
	"strings"

	"dsmoe/text"
)

// Sheet is a row per expert, the shared ones of a layer below its routed ones, or a row per layer.
func (r *ExpertsReport) Sheet() *text.Sheet {
	if r.by == ByLayer {
		return r.layerSheet()
	}
	s := text.NewSheet("layer", "expert", ">norm_gate", ">norm_up", ">norm_down", ">z", ">rank_gate", ">rank_up", ">rank_down",
		">cos_gate", ">cos_up", ">cos_down", ">function", ">nearest", ">zero_neurons", ">not_finite")
	for i := range r.Layers {
		l := &r.Layers[i]
		for k := range l.Experts {
			s.Add(l.Experts[k].cells(l.Layer)...)
		}
		if l.Shared != nil {
			s.Add(l.Shared.cells(l.Layer)...)
		}
	}
	return s
}

// cells are those of an expert.
func (e *ExpertNumbers) cells(layer int) []text.Cell {
	var norms, ranks, cosines []text.Cell
	var z *float64
	notFinite := int64(0)
	for _, m := range e.matrices() {
		if m == nil {
			m = &MatrixNumbers{}
		}
		norms, ranks = append(norms, text.Real(m.Norm)), append(ranks, text.Real(m.StableRank))
		cosines = append(cosines, m.Nearest.cell())
		if m.NormZ != nil && (z == nil || magnitude(*m.NormZ) > magnitude(*z)) {
			z = m.NormZ
		}
		notFinite += m.NaN + m.Infinite
	}
	name := text.Whole(e.Expert)
	if e.Expert < 0 {
		name = text.Plain("shared")
	}
	nearest := text.Plain("")
	if e.Function != nil {
		nearest = text.Whole(e.Function.Expert)
	}
	cells := append([]text.Cell{text.Whole(layer), name}, norms...)
	cells = append(append(append(cells, text.Real(z)), ranks...), cosines...)
	return append(cells, e.Function.cell(), nearest, text.Whole(e.ZeroNeurons), text.Whole(notFinite))
}

// cell is the cosine.
func (n *Neighbour) cell() text.Cell {
	if n == nil {
		return text.Real(nil)
	}
	return text.Real(&n.Cosine)
}

// layerSheet is a row per layer and matrix.
func (r *ExpertsReport) layerSheet() *text.Sheet {
	s := text.NewSheet("layer", "of", ">experts", ">norm", ">norm_mad", ">shared_norm", ">rank", ">null_rank", ">mean_abs_cos", ">largest_cos", "pair", ">null_std")
	for i := range r.Layers {
		l := &r.Layers[i]
		shared := [projections]*MatrixNumbers{}
		if l.Shared != nil {
			shared = l.Shared.matrices()
		}
		for p, m := range []*MatrixSpread{l.Gate, l.Up, l.Down} {
			if m == nil {
				continue
			}
			cells := []text.Cell{text.Whole(l.Layer), text.Plain(projectionNames[p]), text.Whole(len(l.Experts)), text.Real(nil), text.Real(nil), text.Real(nil), text.Real(nil), text.Real(&m.NullStableRank)}
			if m.Norm != nil {
				cells[3], cells[4] = text.Real(&m.Norm.Median), text.Real(&m.Norm.MAD)
			}
			if shared[p] != nil {
				cells[5] = text.Real(shared[p].Norm)
			}
			if m.StableRank != nil {
				cells[6] = text.Real(&m.StableRank.Median)
			}
			s.Add(append(cells, m.Pairs.cells()...)...)
		}
		if l.Function != nil {
			none := text.Real(nil)
			s.Add(append([]text.Cell{text.Whole(l.Layer), text.Plain("function"), text.Whole(len(l.Experts)), none, none, none, none, none}, l.Function.cells()...)...)
		}
	}
	return s
}

func (s *PairSpread) cells() []text.Cell {
	if s == nil {
		return []text.Cell{text.Real(nil), text.Real(nil), text.Plain(""), text.Real(nil)}
	}
	return []text.Cell{text.Real(&s.MeanAbs), text.Real(&s.Largest), text.Plain(fmt.Sprintf("%d, %d", s.A, s.B)), text.Real(&s.NullStd)}
}

// WriteText writes the sheet, what it is to be held against, and the findings.
func (r *ExpertsReport) WriteText(w io.Writer) error {
	var b strings.Builder
	if err := r.Sheet().WriteAs(&b, text.AsTable); err != nil {
		return err
	}
	if r.by != ByLayer {
		for i := range r.Layers {
			r.Layers[i].writeNull(&b)
		}
	}
	for i := range r.Layers {
		if n := len(r.Layers[i].Experts); n < leastPeers {
			fmt.Fprintf(&b, "layer %d: %s: too few for one to be the odd one\n", r.Layers[i].Layer, text.Plural(n, "routed expert"))
		}
	}
	writeNotCounted(&b, r.NotCounted)
	if err := WriteObservations(&b, r.Findings); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeNull writes what independent random weights would give.
func (l *LayerExperts) writeNull(b *strings.Builder) {
	var parts []string
	for p, m := range []*MatrixSpread{l.Gate, l.Up, l.Down} {
		if m != nil && m.Pairs != nil {
			parts = append(parts, fmt.Sprintf("%s rank %.4g, cosines 0 ± %.2g", projectionNames[p], m.NullStableRank, m.Pairs.NullStd))
		}
	}
	if l.Function != nil {
		parts = append(parts, fmt.Sprintf("function 0 ± %.2g", l.Function.NullStd))
	}
	if parts != nil {
		fmt.Fprintf(b, "random   layer %d: %s\n", l.Layer, strings.Join(parts, "; "))
	}
}

// writeNotCounted lists what is selected and in no number.
func writeNotCounted(b *strings.Builder, not []NotCounted) {
	for i, n := range not {
		if i == maxLines {
			fmt.Fprintf(b, "… and %d more that are not counted; --json lists them\n", len(not)-maxLines)
			break
		}
		fmt.Fprintf(b, "not counted: %s: %s\n", text.Quote(n.Name), n.Cause)
	}
}
