package kernel

import "math"

// Dot64 returns the dot product of x and w summed in float64:
//
//	for k := range x { lane[k%16] += float64(x[k]) * float64(w[k]) }
//	for n := 8; n > 0; n /= 2 { for i := range n { lane[i] += lane[i+n] } }
//	return lane[0]
//
// The products are exact, so fused and separate multiply-add give the same bits.
func Dot64(x, w []float32) float64 {
	w = w[:len(x)]
	var lane [Lanes]float64
	for k := range x {
		lane[k%Lanes] += float64(x[k]) * float64(w[k])
	}
	return tree64(&lane)
}

// Dot32 returns the dot product of x and w summed in float32 with fused
// multiply-add:
//
//	for k := range x { lane[k%16] = FMA32(x[k], w[k], lane[k%16]) }
//	for n := 8; n > 0; n /= 2 { for i := range n { lane[i] += lane[i+n] } }
//	return lane[0]
func Dot32(x, w []float32) float32 {
	w = w[:len(x)]
	var lane [Lanes]float32
	for k := range x {
		lane[k%Lanes] = FMA32(x[k], w[k], lane[k%Lanes])
	}
	for n := Lanes / 2; n > 0; n /= 2 {
		for i := range n {
			lane[i] += lane[i+n]
		}
	}
	return lane[0]
}

func tree64(lane *[Lanes]float64) float64 {
	for n := Lanes / 2; n > 0; n /= 2 {
		for i := range n {
			lane[i] += lane[i+n]
		}
	}
	return lane[0]
}

// dotWide is Dot64 on operands that were widened before. It makes one pass per
// half of the lanes, so that the partial sums stay in registers.
func dotWide(x, w []float64) float64 {
	var lane [Lanes]float64
	whole := len(x) - len(x)%Lanes
	halfLanes((*[8]float64)(lane[:8]), x[:whole], w[:whole])
	if whole > 0 {
		halfLanes((*[8]float64)(lane[8:]), x[8:whole], w[8:whole])
	}
	for k := whole; k < len(x); k++ {
		lane[k-whole] += float64(x[k] * w[k])
	}
	return tree64(&lane)
}

// halfLanes adds x[k+i]*w[k+i] to lane[i] for i < 8 and k = 0, 16, 32, ….
func halfLanes(lane *[8]float64, x, w []float64) {
	var s0, s1, s2, s3, s4, s5, s6, s7 float64
	for len(x) >= 8 && len(w) >= 8 {
		s0 += float64(x[0] * w[0])
		s1 += float64(x[1] * w[1])
		s2 += float64(x[2] * w[2])
		s3 += float64(x[3] * w[3])
		s4 += float64(x[4] * w[4])
		s5 += float64(x[5] * w[5])
		s6 += float64(x[6] * w[6])
		s7 += float64(x[7] * w[7])
		if len(x) < Lanes || len(w) < Lanes {
			break
		}
		x, w = x[Lanes:], w[Lanes:]
	}
	*lane = [8]float64{s0, s1, s2, s3, s4, s5, s6, s7}
}

// FMA32 returns a*b + c rounded once to float32. The product is exact in
// float64; the sum is rounded to odd there, which makes the second rounding to
// float32 the only one that counts (float64 has more than 2·24+1 bits).
func FMA32(a, b, c float32) float32 {
	p := float64(a) * float64(b)
	s := p + float64(c)
	// Below the float32 normals, and where the float64 bits that float32 drops are
	// a tie, the first rounding can tip the second one.
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
