package router

import (
	"cmp"
	"fmt"
	"slices"

	"dsmoe/inspect"
	"dsmoe/text/page"
)

// Figure draws the norm of each row.
func (r *Report) Figure() page.Figure {
	return r.draw(page.Heatmap{Title: "norm of each row of the routers", Name: "norm of the router's row",
		Max:     inspect.FromZero,
		NoValue: "not finite"}, func(_ *Layer, row *row) *float64 { return row.Norm })
}

// draw draws a number of each row.
func (r *Report) draw(m page.Heatmap, number func(l *Layer, row *row) *float64) page.Figure {
	c := inspect.NewCells()
	for i := range r.Layers {
		l := &r.Layers[i]
		for k := range l.Rows {
			c.SetExpert(l.Layer, l.Rows[k].Expert, number(l, &l.Rows[k]), false)
		}
	}
	return c.Experts(m, r.Findings)
}

// Likeness draws the largest cosine of each row with another one.
func (r *Report) Likeness() page.Figure {
	return r.draw(page.Heatmap{Title: "how like each row of the routers is to the one that it is most like",
		Name: "largest cosine with another row", Max: 1, NoValue: "zero, or not finite"}, func(_ *Layer, row *row) *float64 {
		if row.Nearest == nil {
			return nil
		}
		return inspect.Finite(inspect.Magnitude(row.Nearest.Cosine))
	})
}

// Biases draws e_score_correction_bias less its layer's median; nil if no layer has one.
func (r *Report) Biases() page.Figure {
	if !slices.ContainsFunc(r.Layers, func(l Layer) bool { return l.Bias != nil }) {
		return nil
	}
	return r.draw(page.Heatmap{Title: "e_score_correction_bias of each expert",
		Name:  "e_score_correction_bias less the median",
		Scale: page.Diverging, NoValue: "none, or not finite"}, func(l *Layer, row *row) *float64 {
		if l.Bias == nil || row.Bias == nil {
			return nil
		}
		return inspect.Finite(*row.Bias - l.Bias.Median)
	})
}

// maxCurves is how many curves can be told apart.
const maxCurves = 12

// Spectra draws the singular values of the routers with the largest condition numbers, and says which these are; nil
// if there are none.
func (r *Report) Spectra() (f page.Figure, caption string) {
	var all []*Layer
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
		caption = fmt.Sprintf("Singular values of the %d of %d routers with the largest condition numbers.", maxCurves,
			len(all))
		condition := func(l *Layer) float64 {
			if l.Condition == nil {
				return l.Singular[0] / 1e-300
			}
			return *l.Condition
		}
		slices.SortStableFunc(all, func(a, b *Layer) int { return cmp.Compare(condition(b), condition(a)) })
		all = all[:maxCurves]
		slices.SortFunc(all, func(a, b *Layer) int { return a.Layer - b.Layer })
	}
	lines := page.Lines{Title: "singular values of the routers", XName: "number of the singular value",
		YName: "singular value"}
	for _, l := range all {
		s := page.Series{Name: fmt.Sprintf("layer %d", l.Layer)}
		for i, v := range l.Singular {
			s.Points = append(s.Points, [2]float64{float64(i + 1), v})
		}
		lines.Series = append(lines.Series, s)
	}
	return lines, caption
}
