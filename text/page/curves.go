package page

import (
	"fmt"
	"math"
	"strings"
)

// Lines is a drawing of curves over one axis, such as the singular values of weights.
type Lines struct {
	Title          string // description for screen readers
	XName, YName   string // names of the axes, with units
	XScale, YScale scale
	Series         []Series
}

// Series is a curve.
type Series struct {
	Name   string
	Points [][2]float64 // x and y, in the order of the curve; NaN interrupts the curve
}

// span returns the scale of one coordinate of the points.
func (l Lines) span(s scale, coordinate int) span {
	return spanOf(s, 0, 0, func(yield func(float64)) {
		for _, one := range l.Series {
			for _, p := range one.Points {
				yield(p[coordinate])
			}
		}
	})
}

// curve returns the class of curve i: six colours, then other dashes.
func curve(i int) string { return fmt.Sprintf("curve c%d dash%d", i%6, i/6%3) }

func (l Lines) draw() *drawing {
	const top, width, height = fontHeight + 10, 560.0, 260.0
	d, x, y := &drawing{Title: l.Title}, l.span(l.XScale, 0), l.span(l.YScale, 1)
	var labels []string
	for _, v := range y.ticks(6) {
		labels = append(labels, tick(v))
	}
	left := widest(labels) + 12
	atX := func(v float64) float64 { return left + float64(width*x.at(v)) }
	atY := func(v float64) float64 { return top + float64(height*(1-y.at(v))) }
	d.Width, d.Height = length(math.Ceil(left+width+24)), length(top+height+2*fontHeight+14)
	d.text("soft", 2, fontHeight-2, l.YName)
	d.text("soft end", left+width, top+height+2*fontHeight+6, l.XName)
	for _, v := range y.ticks(6) {
		d.line("grid", left, atY(v), left+width, atY(v))
		d.text("soft end", left-5, atY(v)+4, tick(v))
	}
	for _, v := range x.ticks(8) {
		d.line("grid", atX(v), top, atX(v), top+height)
		d.text("soft mid", atX(v), top+height+fontHeight+2, tick(v))
	}
	for i, one := range l.Series {
		var path strings.Builder
		next := "M"
		for _, at := range one.Points {
			if math.IsNaN(at[0]) || math.IsNaN(at[1]) {
				next = "M"
				continue
			}
			fmt.Fprintf(&path, "%s%s %s", next, length(atX(at[0])), length(atY(at[1])))
			next = "L"
		}
		d.path(curve(i), path.String(), one.Name)
	}
	if len(l.Series) > 1 {
		for i, one := range l.Series {
			below := float64(d.Height)
			d.line(curve(i), left, below+7, left+28, below+7)
			d.text("", left+34, below+11, label(one.Name)).Tip = tipFor(one.Name)
			d.Height += fontHeight + 4
		}
		d.Height += 4
	}
	return d
}
