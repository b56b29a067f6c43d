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
	XScale, YScale Scale
	Series         []Series
}

// Series is a curve.
type Series struct {
	Name   string
	Points [][2]float64 // x and y, in the order of the curve; NaN interrupts the curve
}

// plot is a drawing with two axes.
type plot struct {
	*drawing
	x, y                     span
	left, top, width, height float64
}

// span returns the scale of one coordinate of the points.
func (l Lines) span(s Scale, coordinate int) span {
	return spanOf(s, 0, 0, func(yield func(float64)) {
		for _, one := range l.Series {
			for _, p := range one.Points {
				yield(p[coordinate])
			}
		}
	})
}

// plot draws the axes.
func (l Lines) plot() *plot {
	p := &plot{&drawing{Title: l.Title}, l.span(l.XScale, 0), l.span(l.YScale, 1), 0, fontHeight + 10, 560, 260}
	var labels []string
	for _, v := range p.y.ticks(6) {
		labels = append(labels, tick(v))
	}
	p.left = widest(labels) + 12
	p.Width, p.Height = length(math.Ceil(p.left+p.width+24)), length(p.top+p.height+2*fontHeight+14)
	p.text("soft", 2, fontHeight-2, l.YName)
	p.text("soft end", p.left+p.width, p.top+p.height+2*fontHeight+6, l.XName)
	for _, v := range p.y.ticks(6) {
		p.line("grid", p.left, p.py(v), p.left+p.width, p.py(v))
		p.text("soft end", p.left-5, p.py(v)+4, tick(v))
	}
	for _, v := range p.x.ticks(8) {
		p.line("grid", p.px(v), p.top, p.px(v), p.top+p.height)
		p.text("soft mid", p.px(v), p.top+p.height+fontHeight+2, tick(v))
	}
	return p
}

// px and py return the position of a number on an axis.
func (p *plot) px(v float64) float64 { return p.left + float64(p.width*p.x.at(v)) }
func (p *plot) py(v float64) float64 { return p.top + float64(p.height*(1-p.y.at(v))) }

// curve returns the class of curve i: six colours, then other dashes.
func curve(i int) string { return fmt.Sprintf("curve c%d dash%d", i%6, i/6%3) }

func (l Lines) draw() *drawing {
	p := l.plot()
	for i, one := range l.Series {
		p.path(curve(i), p.joined(one.Points), one.Name)
	}
	y := float64(p.Height)
	if len(l.Series) > 1 {
		for i, one := range l.Series {
			p.line(curve(i), p.left, y+7, p.left+28, y+7)
			p.text("", p.left+34, y+11, label(one.Name)).Tip = tipFor(one.Name)
			y += fontHeight + 4
		}
		p.Height = length(y + 4)
	}
	return p.drawing
}

// joined returns the path through points.
func (p *plot) joined(points [][2]float64) string {
	var path strings.Builder
	next := "M"
	for _, at := range points {
		if math.IsNaN(at[0]) || math.IsNaN(at[1]) {
			next = "M"
			continue
		}
		fmt.Fprintf(&path, "%s%s %s", next, length(p.px(at[0])), length(p.py(at[1])))
		next = "L"
	}
	return path.String()
}
