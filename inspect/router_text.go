package inspect

import (
	"fmt"
	"io"
	"strings"

	"dsmoe/text"
)

// Sheet is a row per expert, or per layer.
func (r *RouterReport) Sheet() *text.Sheet {
	if r.by == ByLayer {
		return r.layerSheet()
	}
	s := text.NewSheet("layer", "expert", ">norm", ">z", ">max_logit", ">cosine", ">nearest", ">bias", "proven")
	for _, l := range r.Layers {
		for _, row := range l.Rows {
			nearest := text.Plain("")
			if row.Nearest != nil {
				nearest = text.Whole(row.Nearest.Expert)
			}
			s.Add(text.Whole(l.Layer), text.Whole(row.Expert), text.Real(row.Norm), text.Real(row.NormZ), text.Real(row.MaxLogit),
				row.Nearest.cell(), nearest, text.Real(row.Bias), text.Plain(row.Proven))
		}
	}
	return s
}

// layerSheet is a row per layer.
func (r *RouterReport) layerSheet() *text.Sheet {
	s := text.NewSheet("layer", ">experts", ">norm", ">norm_mad", ">condition", ">null_condition", ">mean_abs_cos", ">largest_cos", "pair", ">null_std", ">bias", ">bias_mad", "coupling")
	for _, l := range r.Layers {
		cells := append([]text.Cell{text.Whole(l.Layer), text.Whole(len(l.Rows))}, l.Norm.cells()...)
		cells = append(cells, text.Real(l.Condition), text.Real(l.NullCondition))
		cells = append(append(cells, l.Pairs.cells()...), l.Bias.cells()...)
		s.Add(append(cells, text.Plain(l.Coupling.String()))...)
	}
	return s
}

func (s *Spread) cells() []text.Cell {
	if s == nil {
		return []text.Cell{text.Real(nil), text.Real(nil)}
	}
	return []text.Cell{text.Real(&s.Median), text.Real(&s.MAD)}
}

// WriteText writes the sheet, a line per layer, and the findings.
func (r *RouterReport) WriteText(w io.Writer) error {
	var b strings.Builder
	if err := r.Sheet().WriteAs(&b, text.AsTable); err != nil {
		return err
	}
	if r.by != ByLayer {
		for i := range r.Layers {
			r.Layers[i].writeLine(&b)
		}
	}
	writeNotCounted(&b, r.NotCounted)
	if err := WriteObservations(&b, r.Findings); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeLine writes what is about the router as a whole.
func (l *LayerRouter) writeLine(b *strings.Builder) {
	fmt.Fprintf(b, "layer %d: condition %s, of random numbers %s", l.Layer, text.Real(l.Condition).Shown, text.Real(l.NullCondition).Shown)
	if l.Pairs != nil {
		fmt.Fprintf(b, "; cosines of random rows 0 ± %.2g", l.Pairs.NullStd)
	}
	if l.Coupling != nil {
		fmt.Fprintf(b, "; coupling to gate_proj: %s", l.Coupling)
	}
	b.WriteString("\n")
}
