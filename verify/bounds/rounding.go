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

	Lambda = 8 // what rounding explains at most of an element, in standard deviations
)

// precision is what rounding to a dtype does.
type precision struct {
	may     bool    // a rounding point may be left out
	bits    int     // of the significand, the leading one included
	least   int     // exponent of the smallest normal number
	largest float64 // finite value

	// Masks of the bits of a float32, for nearest.
	cut, half   uint32 // fraction bits that the dtype lacks, and the highest of them
	normal, top uint32 // exponent bits of the smallest normal number, and of the largest number less these
	// Exponent bits of a float64, for Ulp.
	normal64, below uint64 // of the smallest normal number, and what a spacing has less than its number
}

// newPrecision is a precision of at most 24 bits.
func newPrecision(bits, least int, largest float64) *precision {
	cut, normal := uint32(1)<<(24-bits)-1, uint32(least+127)<<23
	return &precision{false, bits, least, largest, cut, (cut + 1) / 2, normal, math.Float32bits(float32(largest))&exponent32 - normal,
		uint64(1023+least) << 52, uint64(bits-1) << 52}
}

// The precisions of dtypes that stages have.
var f32, bf16, f16 = newPrecision(24, -126, math.MaxFloat32), newPrecision(8, -126, 0x1.fep127), newPrecision(11, -14, 65504)

// leastNormal is the least normal number of float32 and BF16.
const leastNormal = 0x1p-126

// optional returns p with rounding points that may be left out.
func optional(p *precision) *precision {
	q := *p
	q.may = true
	return &q
}

// PrecisionOf returns the precision of F32, BF16 or F16.
func PrecisionOf(d tensor.DType) *precision {
	switch d {
	case tensor.BF16:
		return bf16
	case tensor.F16:
		return f16
	}
	return f32
}

// Ulp is the spacing of the values at |x|: 2^(max(e, least) - bits + 1), 2^e ≤ |x| < 2^(e+1).
func (p *precision) Ulp(x float64) float64 {
	const exponent = 0x7ff << 52
	return math.Float64frombits(max(math.Float64bits(x)&exponent, p.normal64) - p.below)
}

// Round is x rounded to nearest, ties to even, in one step. What is too large is infinite.
func (p *precision) Round(x float64) float64 {
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
func (p *precision) point(y, v float64) (float64, float64) {
	if p.may {
		return p.mayRound(y, v)
	}
	if y == 0 && v <= denormal { // most often a probability of a key that the mask hides
		return y, 0
	}
	if single := float32(y); float64(single) == y {
		r, room, usual := p.nearest(single)
		switch {
		case usual && within(v, room):
			return float64(r), 0
		case usual && v > (1+unsure)*Sq(room):
			return float64(r), p.flip(y, float64(r), v)
		}
	}
	r := p.Round(y)
	if v == 0 || math.IsInf(r, 0) || r != r {
		return r, 0
	}
	s := Unit * math.Sqrt(v)
	if p.Round(y-Lambda*s) == r && p.Round(y+Lambda*s) == r {
		return r, 0
	}
	return r, p.flip(y, r, v)
}

// flip is the variance of an ambiguous y of variance v that rounds to r.
func (p *precision) flip(y, r, v float64) float64 {
	s, u, probability := Unit*math.Sqrt(v), p.Ulp(r), leastFlip
	if b := max(0, u/2-math.Abs(y-r)) / (s * math.Sqrt2); !(b > 1.4) { // erfc(1.4) is .048
		probability = max(leastFlip, math.Erfc(b))
	}
	flip := u / Unit * (u / Unit) * probability
	if s > u/4 {
		flip += v
	}
	return flip
}

// nearest is the quick half of rounding points, inlined. For a usual y it returns Round(y) and the room: a standard
// deviation, in units of u. Lambda times the room is the distance from y to the middle between Round(y) and its
// neighbour. The room is negative if y is below that middle. Most numbers are usual: normal, no tie, not among the
// largest, and not rounded to a power of two, whose lower neighbour is nearer than the upper one.
func (p *precision) nearest(y float32) (r float32, room float64, usual bool) {
	b := math.Float32bits(y)
	rounded, e, steps := (b+p.half)&^p.cut, b&exponent32, int32(b&p.cut-p.half) // steps of float32 numbers to the middle
	room = float64(steps) * float64(math.Float32frombits(e)) / 4
	return math.Float32frombits(rounded), room, rounded&fraction32 != 0 && steps != 0 && e-p.normal < p.top
}

// unsure is a share of a room's square: variances that are nearer to the square are left to the definition.
const unsure = 0.05

// within reports whether Lambda standard deviations of a variance v certainly stay within the room.
func within(v, room float64) bool { return v < (1-unsure)*Sq(room) }

const exponent32, fraction32 = 0xff << 23, 1<<23 - 1 // bits of a float32

// RoundsTo returns what element i rounds to, and whether Lambda standard deviations leave nothing else.
func (x *Value) RoundsTo(i int) (float32, bool) {
	r, v := PrecisionOf(x.DType).point(float64(x.Values[i]), x.Variance(i))
	return float32(r), v == 0
}

// rounded is x rounded to d.
func rounded(x float32, d tensor.DType) float32 {
	if d == tensor.F32 {
		return x
	}
	return tensor.Rounded(x, d)
}

// mayRound is y with variance v, both kept, where rounding to p, not F32, may happen or not, at
// this value or at one that is up to twice as large in its own binade:
//
//	v + (2^(1-bits)·y)²/12
func (p *precision) mayRound(y, v float64) (float64, float64) {
	ulp := max(math.Ldexp(math.Abs(y), 1-p.bits), p.Ulp(0))
	return y, v + Sq(ulp/Unit)/12
}
