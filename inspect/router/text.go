package router

import (
	"fmt"
	"io"
	"slices"

	"dsmoe/inspect"
	"dsmoe/text"
)

// Sheet is a row per expert, or LayerSheet.
func (r *Report) Sheet() *text.Sheet {
	if r.by == inspect.ByLayer {
		return r.LayerSheet()
	}
	columns := []string{"layer", "expert", ">norm", ">z", ">max_logit", ">cosine", ">nearest", ">bias"}
	hashes := slices.ContainsFunc(r.Layers, func(l Layer) bool { return l.Table != nil })
	if hashes {
		columns = append(columns, ">tokens")
	}
	s := text.NewSheet(append(columns, "proven")...)
	for _, l := range r.Layers {
		for _, row := range l.Rows {
			cells := []any{l.Layer, row.Expert, row.Norm, row.NormZ, row.MaxLogit, row.Nearest.Value(), row.Nearest.Name(),
				row.Bias}
			switch {
			case !hashes:
			case row.Tokens == nil:
				cells = append(cells, "")
			default:
				cells = append(cells, *row.Tokens)
			}
			s.Row(append(cells, row.Proven)...)
		}
	}
	return s
}

// LayerSheet is a row per layer.
func (r *Report) LayerSheet() *text.Sheet {
	s := text.NewSheet("layer", ">experts", ">norm", ">norm_mad", ">condition", ">null_condition", ">mean_abs_cos",
		">largest_cos",
		"pair", ">null_std", ">bias", ">bias_mad", "coupling")
	for _, l := range r.Layers {
		s.Row(l.Layer, len(l.Rows), l.Norm.Cells(), l.Condition, l.NullCondition, l.Pairs.Cells(), l.Bias.Cells(),
			l.Coupling.String())
	}
	return s
}

// WriteText writes the sheet, a line per layer, and the findings.
func (r *Report) WriteText(w io.Writer) error {
	var lines []string
	for _, l := range r.Layers {
		if r.by == inspect.ByLayer {
			break
		}
		line := fmt.Sprintf("layer %d: condition %s, of random numbers %s", l.Layer, text.Real(l.Condition).Shown,
			text.Real(l.NullCondition).Shown)
		if l.Pairs != nil {
			line += fmt.Sprintf("; cosines of random rows 0 ± %.2g", l.Pairs.NullStd)
		}
		if l.Table != nil {
			line += "; " + l.Table.String()
		}
		if l.Coupling != nil {
			line += fmt.Sprintf("; coupling to gate_proj: %s", l.Coupling)
		}
		lines = append(lines, line)
	}
	return r.WriteBelow(w, r.Sheet(), lines)
}
