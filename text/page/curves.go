package page

import (
	"fmt"
	"math"
	"strings"
)

// Lines is curves over one axis, such as the singular values of some weights.
type Lines struct {
	Title          string // what is shown, for who does not see it
	XName, YName   string // of the axes, with units
	XScale, YScale Scale
	Series         []Series
}

// Series is a curve.
type Series struct {
	Name   string
	Points [][2]float64 // x and y, in the order in which they are joined; a NaN parts the curve
}

// Histogram is how many of some numbers lie between edges.
type Histogram struct {
	Title          string // what is shown, for who does not see it
	XName, YName   string // of the axes, with units
	XScale, YScale Scale
	Edges          []float64 // ascending, one more than Counts
	Counts         []float64
}

// plot is a drawing with two axes.
type plot struct {
	*drawing
	x, y                     span
	left, top, width, height float64
}

// newPlot draws axes.
func newPlot(title, xName, yName string, x, y span) *plot {
	p := &plot{&drawing{Title: title}, x, y, 0, fontHeight + 10, 560, 260}
	var labels []string
	for _, v := range y.ticks(6) {
		labels = append(labels, tick(v))
	}
	p.left = widest(labels) + 12
	p.Width, p.Height = length(math.Ceil(p.left+p.width+24)), length(p.top+p.height+2*fontHeight+14)
	p.text("soft", 2, fontHeight-2, yName)
	p.text("soft end", p.left+p.width, p.top+p.height+2*fontHeight+6, xName)
	for _, v := range y.ticks(6) {
		p.line("grid", p.left, p.py(v), p.left+p.width, p.py(v))
		p.text("soft end", p.left-5, p.py(v)+4, tick(v))
	}
	for _, v := range x.ticks(8) {
		p.line("grid", p.px(v), p.top, p.px(v), p.top+p.height)
		p.text("soft mid", p.px(v), p.top+p.height+fontHeight+2, tick(v))
	}
	return p
}

func (p *plot) px(v float64) float64 { return p.left + float64(p.width*p.x.at(v)) }
func (p *plot) py(v float64) float64 { return p.top + float64(p.height*(1-p.y.at(v))) }

// The curves differ in colour and, behind the sixth, in dashes.
func curve(i int) string { return fmt.Sprintf("curve c%d dash%d", i%6, i/6%3) }

func (l Lines) draw() *drawing {
	axis := func(s Scale, which int) span {
		return spanOf(s, 0, 0, func(yield func(float64)) {
			for _, one := range l.Series {
				for _, p := range one.Points {
					yield(p[which])
				}
			}
		})
	}
	p := newPlot(l.Title, l.XName, l.YName, axis(l.XScale, 0), axis(l.YScale, 1))
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

// joined is the path through points.
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

func (h Histogram) draw() *drawing {
	each := func(values []float64, also ...float64) func(yield func(float64)) {
		return func(yield func(float64)) {
			for _, v := range append(also, values...) {
				yield(v)
			}
		}
	}
	base := 0.0
	if h.YScale == Log {
		base = 1 // a bar of one is seen
	}
	y := spanOf(h.YScale, 0, 0, each(h.Counts, base))
	if h.YScale == Log && y.min == 1 {
		y.min = .5
	}
	p := newPlot(h.Title, h.XName, h.YName, spanOf(h.XScale, 0, 0, each(h.Edges)), y)
	for i, n := range h.Counts {
		from, to := p.px(h.Edges[i]), p.px(h.Edges[i+1])
		if n > 0 {
			p.rect("bar", from, p.py(n), math.Max(.75, to-from-.5), p.top+p.height-p.py(n), fmt.Sprintf("%s to %s: %s", tick(h.Edges[i]), tick(h.Edges[i+1]), tick(n)))
		}
	}
	return p.drawing
}
