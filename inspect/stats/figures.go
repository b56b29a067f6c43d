package stats

import (
	"fmt"
	"strings"

	"dsmoe/inspect"
	"dsmoe/model/table"
	"dsmoe/text/page"
)

// Figure draws the sheet: by tensor the largest magnitude in each layer of tensors with like names, by expert
// standard deviations, else a bar of the standard deviation of each group. It returns nil if there are no numbers.
func (r *Report) Figure() page.Figure {
	switch r.By {
	case inspect.ByTensor:
		return r.TensorFigure()
	case inspect.ByExpert:
		c := inspect.NewCells()
		for _, g := range r.Groups {
			at := table.PlaceOf(nil, g.Name)
			c.SetExpert(at.Layer, at.Expert, g.Std, g.NaN+g.Infinite > 0)
		}
		return c.Experts(page.Heatmap{Title: "standard deviation of each expert's weights", Name: "standard deviation",
			MarkName: notFinite, NoValue: "no expert, or no finite number"}, nil)
	}
	bars := page.Bars{Title: "standard deviation of the weights of each " + string(r.By), Name: "standard deviation"}
	for _, g := range r.Groups {
		bars.Rows = append(bars.Rows, page.Bar{Label: g.Name, Value: inspect.OrNaN(g.Std), Bad: g.NaN+g.Infinite > 0})
	}
	if bars.Rows == nil {
		return nil
	}
	return bars
}

// notFinite is what a legend says of marked cells.
const notFinite = "has numbers that are not finite"

// maxKinds is how many columns a drawing of tensors has; further kinds share a column.
const (
	maxKinds   = 40
	otherKinds = "(others)"
)

// TensorFigure draws the largest magnitude in each layer of tensors with like names; nil if there are no numbers.
func (r *Report) TensorFigure() page.Figure {
	c := inspect.NewCells()
	for _, t := range r.Tensors {
		at := table.PlaceOf(nil, t.Name)
		row, kind := inspect.LayerLabel(at.Layer), strings.TrimSuffix(strings.TrimPrefix(t.Name, "model."), ".weight")
		if at.Layer >= 0 {
			kind = strings.TrimPrefix(kind, fmt.Sprintf("layers.%d.", at.Layer))
		}
		if at.Expert >= 0 { // the kind is "mlp.experts.*.up_proj"
			kind = strings.Replace(kind, fmt.Sprintf(".experts.%d", at.Expert), ".experts.*", 1)
		}
		if n, known := c.Columns(kind); !known && n >= maxKinds {
			kind = otherKinds
		}
		c.Raise(row, kind, t.AbsMax)
		if t.NaN+t.Infinite > 0 {
			c.Mark(row, kind)
		}
	}
	return c.Heatmap(page.Heatmap{Title: "largest magnitude in each layer's tensors", Name: "largest magnitude",
		Scale:   page.Log,
		RowName: "layer", ColName: "tensor", MarkName: notFinite, Blank: true})
}
