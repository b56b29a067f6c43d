package tensor

// How far a block that was encoded with importance may be from its numbers. A number of no importance
// may be anywhere in the extent of its block, so that no bound of single numbers is enough.

import "math"

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
	b := blockOf(block, d)
	var low, high, sum, loss, first float64
	idle, worst, at := false, -1.0, 0
	for p := 0; p < len(x); p += b.part {
		part, w := x[p:][:b.part], weights[p:][:b.part]
		l, h := extent(part)
		top := float64(extreme(part))
		low, high = min(low, l), max(high, h)
		total := 0.0
		for i, v := range part {
			e, e1 := float64(y[p+i])-float64(v), b.firstError(float64(v), l, h, top)
			if !b.minimums {
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
	units := float64(b.levels + 1) // of the block's scale and minimum, rounded to F16
	slack := 0x1p-20*e + units*(float64(b.most)*float64(errorF16(b.super))+float64(errorF16(b.superMin)))
	rounding := slack
	if b.levels > 0 {
		rounding += 1.1 * (float64(b.most)*float64(b.super) + float64(b.superMin))
	}
	farthest := 2 * e
	if b.levels == 0 {
		farthest = e + float64(b.most)*float64(b.super)
	}
	if worst > farthest+slack || !idle && math.Sqrt(loss) > math.Sqrt(first)*(1+0x1p-10)+rounding*math.Sqrt(sum) {
		return at
	}
	if b.levels > 0 {
		return b.notNearest(y, x, 0x1p-20*e)
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

// notNearest returns the index of a number of a K block that is farther away than half a step and than the
// range of its part, or -1.
func (b *storedBlock) notNearest(y, x []float32, slack float64) int {
	for p := 0; p < len(x); p += b.part {
		step32, least := b.line(p / b.part)
		step := float64(step32)
		low, high := -float64(least), step*float64(b.most)-float64(least)
		if !b.minimums {
			low, high = -step*float64(b.most), step*float64(b.most-1)
		}
		if low > high {
			low, high = high, low
		}
		for i := p; i < p+b.part; i++ {
			v := float64(x[i])
			allowed := max(math.Abs(step)/2, low-v, v-high)
			if !(math.Abs(v-float64(y[i])) <= allowed+slack) {
				return i
			}
		}
	}
	return -1
}
