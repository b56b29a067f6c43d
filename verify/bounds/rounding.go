package bounds

import (
	"math"

	"dsmoe/model/tensor"
)

// The constants of the error analysis. A variance is kept in units of unit², so that
// numbers near the values' own size are stored; formulas speak of u for unit.
const (
	Unit = 0x1p-24 // u: half the distance of float32 values, over the smaller of them
	// leastFlip is the least probability given to a rounding that may go either way, so
	// that a few at once stay within Lambda.
	leastFlip = 1.0 / 16
)

// precision is what rounding to a dtype does.
type precision struct {
	bits    int     // of the significand, the leading one included
	least   int     // exponent of the smallest normal number
	largest float64 // finite value
}

// PrecisionOf returns the precision of F32, BF16 or F16.
func PrecisionOf(d tensor.DType) precision {
	switch d {
	case tensor.BF16:
		return precision{8, -126, 0x1.fep127}
	case tensor.F16:
		return precision{11, -14, 65504}
	}
	return precision{24, -126, math.MaxFloat32}
}

// Ulp is the spacing of the values at |x|: 2^(max(e, least) - bits + 1), 2^e ≤ |x| < 2^(e+1).
func (p precision) Ulp(x float64) float64 {
	const one, exponent = 1 << 52, 0x7ff << 52 // of exponents
	e := max(math.Float64bits(x)&exponent, uint64(1023+p.least)*one)
	return math.Float64frombits(e - uint64(p.bits-1)*one)
}

// Round is x rounded to nearest, ties to even, in one step. What is too large is infinite.
func (p precision) Round(x float64) float64 {
	if p.bits == 24 {
		return float64(float32(x))
	}
	if math.Abs(x) > 2*p.largest {
		return math.Copysign(math.Inf(1), x)
	}
	c := 0x1.8p52 * p.Ulp(x) // sums of this size are multiples of Ulp
	r := math.Copysign(x+c-c, x)
	if math.Abs(r) > p.largest {
		return math.Copysign(math.Inf(1), x)
	}
	return r
}

// point is a rounding point: y with variance v (in units of u²) is rounded to p. The result
// is exact where y may be off by Lambda standard deviations and still rounds to the same.
// Else it is ambiguous, and carries the variance of a flip to the neighbour, of
// probability erfc(b/(s√2)), b the distance of y to where it would flip:
//
//	ulp²·max(leastFlip, erfc(b/(s√2))),  plus s² if s > ulp/4
func (p precision) point(y, v float64) (float64, float64) {
	if y == 0 && v <= denormal { // most often a probability of a key that the mask hides
		return y, 0
	}
	if single := float32(y); float64(single) == y {
		if r, near := p.near(single, v); near {
			return float64(r), 0
		}
	}
	r := p.Round(y)
	if v == 0 || math.IsInf(r, 0) || r != r {
		return r, 0
	}
	s, u := Unit*math.Sqrt(v), p.Ulp(r)
	if p.Round(y-Lambda*s) == r && p.Round(y+Lambda*s) == r {
		return r, 0
	}
	b := max(0, u/2-math.Abs(y-r))
	flip := u / Unit * (u / Unit) * max(leastFlip, math.Erfc(b/(s*math.Sqrt2)))
	if s > u/4 {
		flip += v
	}
	return r, flip
}

// near returns Round(y), and whether it is so near to y that Lambda standard deviations do not change it. Most numbers
// are: this is the quick half of point, for dtypes of fewer bits than float32. Numbers that round to r reach to u/2 on
// either side, of a power of two to u/4 on one side: point looks at these, and at the largest and the smallest.
func (p precision) near(y float32, v float64) (r float32, near bool) {
	const one, fraction = 1 << 23, 1<<23 - 1 // of exponents
	b, half := math.Float32bits(y), uint32(1)<<(uint(23-p.bits)&31)
	r = math.Float32frombits((b + half) &^ (2*half - 1)) // ties are not near
	e, least := b&(0xff*one), uint32(max(p.least+127, p.bits)*one)
	u := math.Float32frombits(e - uint32(p.bits-1)*one)
	room := 0.49*float64(u) - math.Abs(float64(y-r))
	return r, e-least < uint32(128-p.least)*one-least && math.Float32bits(r)&fraction != 0 && room > 0 &&
		Lambda*Lambda*Unit*Unit*v < room*room
}

// RoundsTo returns what element i rounds to, and whether Lambda standard deviations leave nothing else.
func (x *Value) RoundsTo(i int) (float32, bool) {
	r, v := PrecisionOf(x.DType).point(float64(x.Values[i]), x.Variance(i))
	return float32(r), v == 0
}

// distance is how far y is from the reals that round to the golden g: |g - y| - ulp(g)/2,
// or 0 among them.
func (p precision) distance(g, y float64) float64 { return max(0, math.Abs(g-y)-p.Ulp(g)/2) }
