package page

import (
	"fmt"
	"math"
	"strconv"
)

// scale maps numbers to positions or colours.
type scale int

const (
	Linear scale = iota
	// Log is the decimal logarithm. Numbers of at most 0 are at its lower end.
	Log
	// Diverging is linear and symmetric about 0, with a hue for each sign.
	Diverging
)

// span is a scale between two numbers, min < max.
type span struct {
	scale
	min, max float64
	whole    bool    // values and ticks are whole numbers
	limit    float64 // numbers beyond it have warm colours; 0 is none
}

// spanOf returns the span of the finite values, or the span min … max unless both are 0. The span is
// never empty. A logarithmic span of values ends at powers of ten.
func spanOf(s scale, min, max float64, values func(yield func(float64))) span {
	if min != 0 || max != 0 {
		return span{scale: s, min: min, max: max}
	}
	whole := true
	min, max = math.Inf(1), math.Inf(-1)
	values(func(v float64) {
		if !math.IsInf(v, 0) && !math.IsNaN(v) && (s != Log || v > 0) {
			min, max = math.Min(min, v), math.Max(max, v)
			whole = whole && v == math.Trunc(v)
		}
	})
	switch {
	case min > max:
		min, max = 1, 10
	case s == Diverging:
		max = math.Max(math.Abs(min), math.Abs(max))
		min = -max
	case s == Log:
		min, max = power(math.Floor(exponent(min))), power(math.Ceil(exponent(max)))
	}
	if min == max && s == Log {
		max = min * 10
	} else if min == max {
		min, max = min-math.Max(1, math.Abs(min)), max+math.Max(1, math.Abs(max))
	}
	return span{scale: s, min: min, max: max, whole: whole && s != Log}
}

// exponent returns the decimal logarithm, exactly whole for powers of ten.
func exponent(v float64) float64 { return nearest(math.Log10(v)) }

// nearest rounds v to nine decimals, which drops rounding errors.
func nearest(v float64) float64 { return math.Round(v*1e9) / 1e9 }

// power returns 10 to a whole power, limited to finite numbers above 0.
func power(n float64) float64 { return math.Pow10(int(math.Max(-307, math.Min(308, n)))) }

// at returns the position of v, from 0 to 1; numbers beyond an end have its position. v is not NaN.
func (s span) at(v float64) float64 {
	min, max := s.min, s.max
	if s.scale == Log {
		if v <= min {
			return 0
		}
		min, max, v = exponent(min), exponent(max), exponent(v)
	}
	if math.IsInf(v, 0) {
		return math.Max(0, math.Copysign(1, v))
	}
	// Halves, since the difference may be infinite.
	return nearest(math.Max(0, math.Min(1, (v/2-min/2)/(max/2-min/2))))
}

// ticks returns round numbers within the span, about n at most.
func (s span) ticks(n int) (at []float64) {
	if s.scale == Log {
		from, to := math.Ceil(exponent(s.min)), math.Floor(exponent(s.max))
		by := math.Max(1, math.Ceil((to-from)/float64(n)))
		for e := from; e <= to; e += by {
			at = append(at, power(e))
		}
		return at
	}
	size := s.max/float64(n) - s.min/float64(n)
	by := power(math.Floor(exponent(size)))
	for _, f := range []float64{1, 2, 5, 10} {
		if nearest(size/by) <= f {
			by *= f
			break
		}
	}
	if s.whole {
		by = math.Max(1, by)
	}
	for i := math.Ceil(nearest(s.min / by)); i <= nearest(s.max/by) && len(at) < 4*n; i++ {
		at = append(at, float64(i*by)+0)
	}
	return at
}

// tick returns the label of a tick.
func tick(v float64) string {
	s := strconv.FormatFloat(v, 'g', 6, 64)
	if f, err := strconv.ParseFloat(s, 64); err == nil {
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return s
}

// steps is the number of colours of a ramp.
const steps = 32

// ramp is a list of evenly spaced colours, red, green and blue from 0 to 255.
type ramp [][3]float64

var (
	// viridis is matplotlib's: its lightness grows evenly, also for colour-blind readers.
	viridis = ramp{
		{68, 1, 84}, {72, 40, 120}, {62, 73, 137}, {49, 104, 142}, {38, 130, 142},
		{31, 158, 137}, {53, 183, 121}, {110, 206, 88}, {181, 222, 43}, {253, 231, 37},
	}
	// warm is what lies beyond a limit, beside viridis.
	warm = ramp{{254, 190, 90}, {253, 141, 60}, {252, 78, 42}, {227, 26, 28}, {177, 0, 38}}
	// The diverging ramps go from blue to orange through the colour of the background.
	lightDiverging = ramp{
		{8, 64, 129}, {67, 133, 190}, {158, 199, 226}, {240, 240, 240}, {250, 190, 130}, {222, 115, 30}, {140, 60, 0},
	}
	darkDiverging = ramp{
		{150, 210, 255}, {80, 155, 220}, {40, 90, 145}, {45, 45, 52}, {140, 75, 20}, {220, 125, 50}, {255, 200, 140},
	}
)

// at returns the colour at t, from 0 to 1.
func (r ramp) at(t float64) string {
	place := t * float64(len(r)-1)
	i := int(math.Min(place, float64(len(r)-2)))
	part := place - float64(i)
	mix := func(c int) int { return int(math.Round(r[i][c] + float64(part*(r[i+1][c]-r[i][c])))) }
	return fmt.Sprintf("#%02x%02x%02x", mix(0), mix(1), mix(2))
}

// cell returns the index of v's colour, or steps if v is NaN.
func (s span) cell(v float64) int {
	if math.IsNaN(v) {
		return steps
	}
	return int(math.Min(steps-1, math.Floor(float64(s.at(v)*steps))))
}

// classOf returns the class of a colour by its index; steps stands for a missing number.
func (s span) classOf(step int) string {
	switch {
	case step == steps:
		return "none"
	case s.scale == Diverging:
		return fmt.Sprintf("d%d", step)
	case s.limit > 0 && (float64(step)+.5)/steps > s.at(s.limit):
		return fmt.Sprintf("w%d", step)
	}
	return fmt.Sprintf("s%d", step)
}
