package kernel

import "math"

// Dot64 returns the dot product of x and w summed in float64:
//
//	for k := range x { lane[k%16] += float64(x[k]) * float64(w[k]) }
//	for n := 8; n > 0; n /= 2 { for i := range n { lane[i] += lane[i+n] } }
//	return lane[0]
//
// The lanes begin at +0. A product of two float32 is exact in float64, so that fused and
// separate multiply-add give the same bits. w is at least as long as x.
func Dot64(x, w []float32) float64 {
	w = w[:len(x)]
	var lane [lanes]float64
	for k := range x {
		lane[k%lanes] += float64(x[k]) * float64(w[k])
	}
	return tree(&lane)
}

// Dot32 returns the dot product of x and w summed in float32 with fused multiply-add:
//
//	for k := range x { lane[k%16] = fma32(x[k], w[k], lane[k%16]) }
//	for n := 8; n > 0; n /= 2 { for i := range n { lane[i] += lane[i+n] } }
//	return lane[0]
//
// The lanes begin at +0. w is at least as long as x.
func Dot32(x, w []float32) float32 {
	w = w[:len(x)]
	var lane [lanes]float32
	for k := range x {
		lane[k%lanes] = fma32(x[k], w[k], lane[k%lanes])
	}
	return tree(&lane)
}

// tree adds the partial sums of a dot product in the order that Dot64 and Dot32 define.
func tree[F float32 | float64](lane *[lanes]F) F {
	for n := lanes / 2; n > 0; n /= 2 {
		for i := range n {
			lane[i] += lane[i+n]
		}
	}
	return lane[0]
}

// fma32 returns a*b + c rounded once to float32. The product is exact in float64. The sum
// is rounded to odd in float64, which has more than 2·24+1 bits, so that only the second
// rounding, to float32, counts.
func fma32(a, b, c float32) float32 {
	p := float64(a) * float64(b)
	s := p + float64(c)
	// Rounding s to nearest first can change the second rounding in two cases only: the
	// bits that float32 drops are exactly half of its last place, or the result is a
	// denormal float32, which drops more bits.
	const tie, dropped = 1 << 28, 1<<29 - 1
	if math.Float64bits(s)&dropped != tie && !(math.Abs(s) < 0x1p-126) {
		return float32(s)
	}
	return float32(roundToOdd(p, float64(c), s))
}

// roundToOdd returns p+c rounded to odd, given s = p+c rounded to nearest: if s is
// not exact, its last bit is made 1 by stepping towards the exact sum.
func roundToOdd(p, c, s float64) float64 {
	t := s - p
	lost := (p - (s - t)) + (c - t) // the exact error of s (Knuth's two-sum)
	bits := math.Float64bits(s)
	if lost == 0 || lost != lost || bits&1 == 1 {
		return s
	}
	if (lost > 0) == (s > 0) {
		return math.Float64frombits(bits + 1)
	}
	return math.Float64frombits(bits - 1)
}
