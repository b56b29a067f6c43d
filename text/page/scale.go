package page

import (
	"fmt"
	"math"
	"strconv"
)

// Scale says how numbers become places or colours.
type Scale int

const (
	Linear Scale = iota
	// Log is the decimal logarithm. Numbers that are not above 0 stand at its lower end.
	Log
	// Diverging is linear and symmetric about 0, and has colours of its own: a hue for each
	// sign. Of places it is Linear.
	Diverging
)

// span is a scale between two numbers, the first of which is the smaller.
type span struct {
	Scale
	min, max float64
}

// spanOf is a span of numbers, finite ones alone, unless the caller gives its ends: any but both 0.
// It is never empty. Of a logarithm it ends at powers of ten.
func spanOf(s Scale, min, max float64, values func(yield func(float64))) span {
	if min != 0 || max != 0 {
		return span{s, min, max}
	}
	min, max = math.Inf(1), math.Inf(-1)
	values(func(v float64) {
		if !math.IsInf(v, 0) && !math.IsNaN(v) && (s != Log || v > 0) {
			min, max = math.Min(min, v), math.Max(max, v)
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
	return span{s, min, max}
}

// exponent is the decimal logarithm, a whole number where that is what it should be.
func exponent(v float64) float64 { return nearest(math.Log10(v)) }

// nearest drops what arithmetic leaves behind the ninth decimal.
func nearest(v float64) float64 { return math.Round(v*1e9) / 1e9 }

// power is 10 to a whole power, no further than finite numbers above 0 go.
func power(n float64) float64 { return math.Pow10(int(math.Max(-307, math.Min(308, n)))) }

// at is where v stands, from 0 to 1; what is beyond the ends stands there. v is no NaN.
func (s span) at(v float64) float64 {
	min, max := s.min, s.max
	if s.Scale == Log {
		if v <= min {
			return 0
		}
		min, max, v = exponent(min), exponent(max), exponent(v)
	}
	if math.IsInf(v, 0) {
		return math.Max(0, math.Copysign(1, v))
	}
	return nearest(math.Max(0, math.Min(1, (v/2-min/2)/(max/2-min/2)))) // halves, since the difference may be infinite
}

// ticks are round numbers within the span, about n at most.
func (s span) ticks(n int) (at []float64) {
	if s.Scale == Log {
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
	for i := math.Ceil(nearest(s.min / by)); i <= nearest(s.max/by) && len(at) < 4*n; i++ {
		at = append(at, float64(i*by)+0)
	}
	return at
}

// tick writes a number of ticks.
func tick(v float64) string {
	s := strconv.FormatFloat(v, 'g', 6, 64)
	if f, err := strconv.ParseFloat(s, 64); err == nil {
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return s
}

// steps is how many colours a ramp has.
const steps = 32

// ramp is colours of equal distance, red, green and blue from 0 to 255.
type ramp [][3]float64

var (
	// viridis is matplotlib's: its lightness grows evenly, for colour-blind readers, too.
	viridis = ramp{{68, 1, 84}, {72, 40, 120}, {62, 73, 137}, {49, 104, 142}, {38, 130, 142}, {31, 158, 137}, {53, 183, 121}, {110, 206, 88}, {181, 222, 43}, {253, 231, 37}}
	// The diverging ramps go from blue to orange over what is near to the ground, white or black.
	lightDiverging = ramp{{8, 64, 129}, {67, 133, 190}, {158, 199, 226}, {240, 240, 240}, {250, 190, 130}, {222, 115, 30}, {140, 60, 0}}
	darkDiverging  = ramp{{150, 210, 255}, {80, 155, 220}, {40, 90, 145}, {45, 45, 52}, {140, 75, 20}, {220, 125, 50}, {255, 200, 140}}
)

// at is the colour at t, from 0 to 1.
func (r ramp) at(t float64) string {
	place := t * float64(len(r)-1)
	i := int(math.Min(place, float64(len(r)-2)))
	part := place - float64(i)
	mix := func(c int) int { return int(math.Round(r[i][c] + float64(part*(r[i+1][c]-r[i][c])))) }
	return fmt.Sprintf("#%02x%02x%02x", mix(0), mix(1), mix(2))
}

// step is the number of v's colour.
func (s span) step(v float64) int { return int(math.Min(steps-1, math.Floor(float64(s.at(v)*steps)))) }

// classOf is the class of a colour by its number; behind the last is that of no number at all.
func (s span) classOf(step int) string {
	switch {
	case step == steps:
		return "none"
	case s.Scale == Diverging:
		return fmt.Sprintf("d%d", step)
	}
	return fmt.Sprintf("s%d", step)
}
