package page

import (
	"cmp"
	"math"
)

// Bars is a drawing of horizontal bars, one below the other.
type Bars struct {
	Title    string  // description for screen readers
	Name     string  // name of the numbers, with their unit
	Scale    scale   // Linear or Log
	Min, Max float64 // ends of the scale; both 0: ends of the values, and 0 on a Linear scale
	Limit    float64 // position of a line; 0 draws no line
	Rows     []Bar
}

// Bar is one bar of Bars.
type Bar struct {
	Label string
	Value float64 // NaN is a missing number
	Shown string  // the number for readers; "" means Value with three digits
	Tip   string  // text under the pointer; "" means label and number
	Bad   bool    // the bar has the other colour and a cross
}

// The measures of bars.
const (
	barHeight = 19.0
	plotWidth = 420.0
)

func (b Bars) draw() *drawing {
	var labels []string
	right := 0.0
	for _, r := range b.Rows {
		labels, right = append(labels, r.Label), math.Max(right, width(r.number()))
	}
	left, top := widest(labels)+10, 2*fontHeight+10
	bottom := top + barHeight*float64(len(b.Rows))
	d := &drawing{Title: b.Title, Width: length(math.Ceil(left + plotWidth + right + 20)), Height: length(bottom + 6)}
	s := spanOf(b.Scale, b.Min, b.Max, func(yield func(float64)) {
		if b.Scale == Linear {
			yield(0)
		}
		for _, r := range b.Rows {
			yield(r.Value)
		}
		if b.Limit != 0 {
			yield(b.Limit)
		}
	})
	d.text("soft", left, fontHeight-2, b.Name)
	for _, v := range s.ticks(7) {
		x := left + float64(plotWidth*s.at(v))
		d.line("grid", x, top-4, x, bottom)
		d.text("soft mid", x, top-7, tick(v))
	}
	for i, r := range b.Rows {
		y, tip := top+float64(barHeight*float64(i)), cmp.Or(r.Tip, r.Label+": "+r.shown())
		d.text("end", left-6, y+13, label(r.Label)).Tip = tipFor(r.Label)
		class, text := "bar", "soft"
		if r.Bad {
			class, text = "badbar", "badtext"
		}
		if math.IsNaN(r.Value) {
			d.path("none", crossed(left, y+3, barHeight, barHeight-6), tip)
		} else {
			d.path(class, box(left, y+3, math.Max(1.5, plotWidth*s.at(r.Value)), barHeight-6), tip)
		}
		d.text(text, left+plotWidth+8, y+13, r.number())
	}
	if b.Limit != 0 {
		x := left + float64(plotWidth*s.at(b.Limit))
		d.line("limit", x, top-4, x, bottom+4)
	}
	return d
}

// number returns the text behind the bar.
func (r Bar) number() string {
	s := first(widestNumber, r.shown())
	if r.Bad {
		return "✗ " + s
	}
	return s
}

// shown returns the number for readers.
func (r Bar) shown() string {
	if r.Shown != "" {
		return r.Shown
	}
	return shown(r.Value)
}
