package tensor

// How far a block that was encoded with importance may be from its numbers. A number of no importance
// may be anywhere in the extent of its block, so that no bound of single numbers is enough.

import (
	"math"

	"dsmoe/model/internal/kernel"
)

// weighing is how an encoder of a type chooses scales.
type weighing struct {
	part     int     // numbers that share a scale
	most     int     // codes are 0 … most, or without minimums -most … most-1
	minimums bool    // parts have a minimum
	levels   float32 // largest code of a scale; 0 if the block's scale is the part's
}

var weighings = [...]weighing{
	Q8_0: {32, 127, false, 0}, Q4_0: {32, 8, false, 0}, Q5_0: {32, 16, false, 0}, Q5_1: {32, 31, true, 0},
	Q2_K: {16, 3, true, 15}, Q3_K: {16, 4, false, 32}, Q4_K: {32, 15, true, 63}, Q5_K: {32, 31, true, 63},
	Q6_K: {16, 32, false, 128}, MXFP4: {32, 6, false, 0},
}

// beyondWeighted returns the index of a number of x that y, which block stands for, cannot be right for,
// or -1. Of the types K each number has the nearest code: within the range of its part it is at most half a
// step away, and past it no farther than twice the extent E of the numbers and 0. The codes of the other
// types are not chosen again: the line of a block goes through the numbers' weighted mean, so that no number is
// farther away than E and the line's length. The weighted root mean square of all errors is at most
// that of the first line that the encoder tries in each part, from the least number to the largest, and
// what rounding scales adds: the encoder takes a line with less error if it takes another. It rounds
// scales, weighted likewise, to codes of which the first try is half a code off at most; the unit that it
// then fits is no less than half of the first, so that scales are off by a unit, and a tenth for what
// float32 rounds. Without minimums it compares sums of weighted products, of up to 32 numbers in float32:
// two sums are off by 32·2^-24 of the weighted squares each. With a part of no importance at all that unit may be any.
func beyondWeighted(y, x, weights []float32, block []byte, d DType) int {
	const noise = 0x1p-18
	k := weighings[d]
	super, superMin := blockScales(block, d)
	var low, high, sum, loss, first float64
	idle, worst, at := false, -1.0, 0
	for p := 0; p < len(x); p += k.part {
		part, w := x[p:][:k.part], weights[p:][:k.part]
		l, h := extent(part)
		top := float64(extreme(part))
		low, high = min(low, l), max(high, h)
		total := 0.0
		for i, v := range part {
			e, e1 := float64(y[p+i])-float64(v), k.firstError(float64(v), l, h, top)
			if !k.minimums {
				first += noise * float64(w[i]) * float64(v) * float64(v)
			}
			total += float64(w[i])
			loss, first = loss+float64(w[i])*e*e, first+float64(w[i])*e1*e1
			if math.Abs(e) > worst {
				worst, at = math.Abs(e), p+i
			}
		}
		sum, idle = sum+total, idle || total == 0
	}
	e := high - low
	units := float64(k.levels + 1) // of the block's scale and minimum, rounded to F16
	slack := 0x1p-20*e + units*(float64(k.most)*float64(errorF16(super))+float64(errorF16(superMin)))
	rounding := slack
	if k.levels > 0 {
		rounding += 1.1 * (float64(k.most)*float64(super) + float64(superMin))
	}
	farthest := 2 * e
	if k.levels == 0 {
		farthest = e + float64(k.most)*float64(super)
	}
	if worst > farthest+slack || !idle && math.Sqrt(loss) > math.Sqrt(first)*(1+0x1p-10)+rounding*math.Sqrt(sum) {
		return at
	}
	if k.levels > 0 {
		return k.notNearest(y, x, block, d, 0x1p-20*e)
	}
	return -1
}

// firstError is how far v is from the first line that an encoder tries for a part from low to high, 0
// within: steps of (high-low)/most, or of -top/most, top being the first number of the largest magnitude.
func (k weighing) firstError(v, low, high, top float64) float64 {
	if k.minimums {
		step := (high - low) / float64(k.most)
		if step == 0 {
			return 0
		}
		return v - low - step*math.RoundToEven((v-low)/step)
	}
	if top == 0 {
		return v
	}
	step := -top / float64(k.most)
	return v - step*min(max(math.RoundToEven(v/step), -float64(k.most)), float64(k.most-1))
}

// extent returns the least and the largest of the numbers and 0.
func extent(x []float32) (low, high float64) {
	for _, v := range x {
		low, high = min(low, float64(v)), max(high, float64(v))
	}
	return low, high
}

// blockScales returns the F16 scale and minimum of a block, without their signs.
func blockScales(b []byte, d DType) (super, superMin float32) {
	at, least := 0, -1
	switch d {
	case MXFP4:
		return float32(math.Ldexp(1, int(b[0])-127)), 0
	case Q2_K:
		at, least = 80, 82
	case Q3_K:
		at = 108
	case Q6_K:
		at = 208
	case Q5_1, Q4_K, Q5_K:
		least = 2
	}
	if super = abs32(getF16(b[at:])); least > 0 {
		superMin = abs32(getF16(b[least:]))
	}
	return super, superMin
}

// notNearest returns the index of a number of a K block that is farther away than half a step and than the
// range of its part, or -1.
func (k weighing) notNearest(y, x []float32, block []byte, d DType, slack float64) int {
	for p := 0; p < len(x); p += k.part {
		step, least := partLine(block, d, p/k.part)
		low, high := -least, step*float64(k.most)-least
		if !k.minimums {
			low, high = -step*float64(k.most), step*float64(k.most-1)
		}
		if low > high {
			low, high = high, low
		}
		for i := p; i < p+k.part; i++ {
			v := float64(x[i])
			allowed := max(math.Abs(step)/2, low-v, v-high)
			if !(math.Abs(v-float64(y[i])) <= allowed+slack) {
				return i
			}
		}
	}
	return -1
}

// partLine returns the step and the minimum, which is subtracted, of part p of a K block.
func partLine(b []byte, d DType, p int) (step, least float64) {
	switch d {
	case Q2_K:
		return float64(getF16(b[80:])) * float64(b[p]&15), float64(getF16(b[82:])) * float64(b[p]>>4)
	case Q3_K:
		return float64(getF16(b[108:])) * float64(kernel.ScaleQ3(p, (*[12]byte)(b[96:]))), 0
	case Q6_K:
		return float64(getF16(b[208:])) * float64(int8(b[192+p])), 0
	}
	scale, low := kernel.ScaleMin(p, (*[12]byte)(b[4:]))
	return float64(getF16(b)) * float64(scale), float64(getF16(b[2:])) * float64(low)
}
