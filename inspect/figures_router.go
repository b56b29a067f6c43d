package inspect

// What there is to draw of routers and of how near their choices are.

import (
	"cmp"
	"fmt"
	"slices"

	"dsmoe/text/page"
)

// Figure draws the norm of each row.
func (r *RouterReport) Figure() page.Figure {
	return r.rows(page.Heatmap{Title: "norm of each row of the routers", Name: "norm of the router's row", Max: fromZero, NoValue: "not finite"}, func(row *RouterRow) *float64 { return row.Norm })
}

// rows draws a number of each row.
func (r *RouterReport) rows(m page.Heatmap, of func(row *RouterRow) *float64) page.Figure {
	c := newCells()
	for i := range r.Layers {
		l := &r.Layers[i]
		for k := range l.Rows {
			c.set(layerLabel(l.Layer), expertLabel(l.Rows[k].Expert), of(&l.Rows[k]))
		}
	}
	c.markFound(r.Findings)
	m.RowName, m.ColName, m.MarkName = "layer", "expert", foundMark
	return c.heatmap(m)
}

func (r *RouterReport) likeness() page.Figure {
	return r.rows(page.Heatmap{Title: "how like each row of the routers is to the one that it is most like", Name: "largest cosine with another row",
		Min: 0, Max: 1, NoValue: "zero, or not finite"}, func(row *RouterRow) *float64 {
		if row.Nearest == nil {
			return nil
		}
		return finite(magnitude(row.Nearest.Cosine))
	})
}

// biases draws e_score_correction_bias less its layer's median; nil if there is none.
func (r *RouterReport) biases() page.Figure {
	c := newCells()
	for i := range r.Layers {
		l := &r.Layers[i]
		for _, row := range l.Rows {
			if l.Bias != nil && row.Bias != nil {
				c.set(layerLabel(l.Layer), expertLabel(row.Expert), finite(*row.Bias-l.Bias.Median))
			}
		}
	}
	if len(c.values) == 0 {
		return nil
	}
	c.markFound(r.Findings)
	return c.heatmap(page.Heatmap{Title: "e_score_correction_bias of each expert", Name: "e_score_correction_bias less the median", Scale: page.Diverging,
		RowName: "layer", ColName: "expert", MarkName: foundMark, NoValue: "none, or not finite"})
}

// maxCurves is how many curves are told from each other.
const maxCurves = 12

// spectra draws the singular values of the routers with the largest condition numbers, and says
// which these are; nil if there are none.
func (r *RouterReport) spectra() (f page.Figure, caption string) {
	var all []*LayerRouter
	for i := range r.Layers {
		if l := &r.Layers[i]; len(l.Singular) > 0 {
			all = append(all, l)
		}
	}
	if all == nil {
		return nil, ""
	}
	caption = "Singular values of each router, the largest first."
	if len(all) > maxCurves {
		caption = fmt.Sprintf("Singular values of the %d of %d routers with the largest condition numbers.", maxCurves, len(all))
		condition := func(l *LayerRouter) float64 {
			if l.Condition == nil {
				return l.Singular[0] / 1e-300
			}
			return *l.Condition
		}
		slices.SortStableFunc(all, func(a, b *LayerRouter) int { return cmp.Compare(condition(b), condition(a)) })
		all = all[:maxCurves]
		slices.SortFunc(all, func(a, b *LayerRouter) int { return a.Layer - b.Layer })
	}
	lines := page.Lines{Title: "singular values of the routers", XName: "number of the singular value", YName: "singular value"}
	for _, l := range all {
		s := page.Series{Name: fmt.Sprintf("layer %d", l.Layer)}
		for i, v := range l.Singular {
			s.Points = append(s.Points, [2]float64{float64(i + 1), v})
		}
		lines.Series = append(lines.Series, s)
	}
	return lines, caption
}

// margins draws how near the choices of each layer were; nil if there are no scores.
func (r *Routing) margins() page.Figure {
	lines := page.Lines{Title: "margins of the routers' choices", XName: "layer", YName: "margin of a token's choice, in selection scores", YScale: page.Log,
		Series: []page.Series{{Name: "median token"}, {Name: "token of the lowest tenth"}, {Name: "token of the lowest hundredth"}, {Name: "closest token"}}}
	there := false
	for _, l := range r.Layers {
		if l.Margins == nil || l.Margins.Tokens == 0 {
			continue
		}
		there = true
		for i, v := range []*float64{l.Margins.Median, l.Margins.Q10, l.Margins.Q01, l.Margins.Min} {
			lines.Series[i].Points = append(lines.Series[i].Points, [2]float64{float64(l.Layer), orNaN(v)})
		}
	}
	if !there {
		return nil
	}
	return lines
}
