package routing

import (
	"slices"

	"dsmoe/inspect"
	"dsmoe/text"
	"dsmoe/text/page"
)

// Figure draws the load of each expert in each layer, whatever the rows of the sheet are.
func (r *Report) Figure() page.Figure {
	c := inspect.NewCells()
	for _, l := range r.Layers {
		for _, e := range l.Experts {
			c.SetExpert(l.Layer, e.Expert, &e.Load, e.Tokens == 0)
		}
	}
	return c.Experts(page.Heatmap{Title: "load of each expert by " + text.Plural(r.Tokens, "token"),
		Name: "load: 1 is a fair share",
		Max:  1, MarkName: "none of these tokens"}, nil)
}

// MarginFigure draws how near the choices of each layer were; nil if there are no scores.
func (r *Report) MarginFigure() page.Figure {
	lines := page.Lines{Title: "margins of the routers' choices", XName: "layer",
		YName: "margin of a token's choice, in selection scores", YScale: page.Log,
		Series: []page.Series{{Name: "median token"}, {Name: "token of the lowest tenth"},
			{Name: "token of the lowest hundredth"}, {Name: "closest token"}}}
	scored := false
	for _, l := range r.Layers {
		if l.Margins == nil || l.Margins.Tokens == 0 {
			continue
		}
		scored = true
		for i, v := range []*float64{l.Margins.Median, l.Margins.Q10, l.Margins.Q01, l.Margins.Min} {
			lines.Series[i].Points = append(lines.Series[i].Points, [2]float64{float64(l.Layer), inspect.OrNaN(v)})
		}
	}
	if !scored {
		return nil
	}
	if slices.Equal(lines.Series[2].Points, lines.Series[3].Points) { // fewer than a hundred tokens: one line hides the other
		lines.Series = slices.Delete(lines.Series, 2, 3)
	}
	return lines
}
