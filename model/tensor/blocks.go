package tensor

// The encoders of ggml's block types: byte for byte what the functions quantize_row_…_ref
// of ggml-quants.c give, which llama.cpp quantises with where there is no importance
// matrix. The arithmetic is float32, each operation rounded once, in the order of the C
// source: as C means it, and as compilers for x86-64 without FMA do it, so that builds
// which contract a*b + c may differ from it, and from each other, in single codes. What C
// leaves undefined, the conversion of a number that an integer cannot hold, is what SSE2
// gives. No number that is encoded is infinite or NaN.

import (
	"encoding/binary"
	"math"

	"dsmoe/model/internal/kernel"
)

// encoders holds the encoder of one block of each type that can be written; nil for others.
var encoders = [...]func(dst []byte, x []float32){
	Q4_0: encodeQ4_0, Q5_0: encodeQ5_0, Q5_1: encodeQ5_1, Q8_0: kernel.EncodeQ8,
	Q4_K: encodeQ4_K, Q5_K: encodeQ5_K, Q6_K: encodeQ6_K, MXFP4: nil,
}

// putF16 rounds v to F16 and stores it.
func putF16(dst []byte, v float32) {
	binary.LittleEndian.PutUint16(dst, uint16(kernel.Encode(math.Float32bits(v), kernel.F16)))
}

// getF16 reads an F16.
func getF16(src []byte) float32 {
	return math.Float32frombits(kernel.Decode(uint32(binary.LittleEndian.Uint16(src)), kernel.F16))
}

// inverse is 1/d, or 0 for 0.
func inverse(d float32) float32 {
	if d == 0 {
		return 0
	}
	return 1 / d
}

// extreme returns the first number of largest magnitude, with its sign.
func extreme(x []float32) (v float32) {
	largest := uint32(0)
	for _, y := range x {
		if m := math.Float32bits(y) &^ (1 << 31); m > largest {
			largest, v = m, y
		}
	}
	return v
}

// truncated is v as int8, toward zero; 0 where v is no int32.
func truncated(v float32) int8 {
	if v-v != 0 || v >= 1<<31 || v < -1<<31 {
		return 0
	}
	return int8(int32(v))
}

// encodeQ4_0 is quantize_row_q4_0_ref: d = x_max/-8 for the x_max of largest magnitude,
// q = min(15, trunc(x·(1/d) + 8.5)).
func encodeQ4_0(dst []byte, x []float32) {
	d := extreme(x) / -8
	putF16(dst, d)
	id := inverse(d)
	for j, q := 0, dst[2:18]; j < 16; j++ {
		q[j] = upTo(15, float32(x[j]*id)+8.5) | upTo(15, float32(x[j+16]*id)+8.5)<<4
	}
}

// upTo is min(most, v truncated) as C's MIN of an int and an int8_t, in eight bits.
func upTo(most int8, v float32) byte { return byte(min(most, truncated(v))) }

// encodeQ5_0 is quantize_row_q5_0_ref: as Q4_0 with -16, 16.5 and 31. The fifth bits of all
// codes are a uint32.
func encodeQ5_0(dst []byte, x []float32) {
	d := extreme(x) / -16
	putF16(dst, d)
	id, high := inverse(d), uint32(0)
	for j, q := 0, dst[6:22]; j < 16; j++ {
		a, b := upTo(31, float32(x[j]*id)+16.5), upTo(31, float32(x[j+16]*id)+16.5)
		q[j] = a&15 | b&15<<4
		high |= uint32(a>>4&1)<<j | uint32(b>>4&1)<<(j+16)
	}
	binary.LittleEndian.PutUint32(dst[2:], high)
}

// encodeQ5_1 is quantize_row_q5_1_ref: d = (max - min)/31, q = trunc((x - min)·(1/d) + 0.5).
func encodeQ5_1(dst []byte, x []float32) {
	low, high := float32(math.MaxFloat32), float32(-math.MaxFloat32)
	for _, v := range x {
		if v < low {
			low = v
		}
		if v > high {
			high = v
		}
	}
	d := (high - low) / 31
	putF16(dst, d)
	putF16(dst[2:], low)
	id, fifth := inverse(d), uint32(0)
	for j, q := 0, dst[8:24]; j < 16; j++ {
		a, b := byte(truncated(float32((x[j]-low)*id)+0.5)), byte(truncated(float32((x[j+16]-low)*id)+0.5))
		q[j] = a&15 | b&15<<4
		fifth |= uint32(a>>4&1)<<j | uint32(b>>4&1)<<(j+16)
	}
	binary.LittleEndian.PutUint32(dst[4:], fifth)
}

// nearest is nearest_int: v rounded to the nearest integer, half to even, if |v| < 2²²; of
// others the low bits of a sum.
func nearest(v float32) int32 {
	return int32(math.Float32bits(float32(v)+12582912)&0x007fffff) - 0x00400000
}

// clamp is max(low, min(high, v)).
func clamp(v, low, high int32) int32 { return max(low, min(high, v)) }

// encodeQ4_K is quantize_row_q4_K_ref: the parts' scales and minimums of qkx2, rounded to
// 6 bits of two F16, and the codes nearest under these.
func encodeQ4_K(dst []byte, x []float32) {
	var codes [256]byte
	encodeMinimums(dst, x, &codes, &searchQ4_K)
	for i := range 4 {
		q, l := (*[32]byte)(dst[16+32*i:]), (*[64]byte)(codes[64*i:])
		for j := range q {
			q[j] = l[j] | l[j+32]<<4
		}
	}
}

// encodeQ5_K is quantize_row_q5_K_ref: as Q4_K; the fifth bit of number j of part p is bit
// p of byte j.
func encodeQ5_K(dst []byte, x []float32) {
	var codes [256]byte
	encodeMinimums(dst, x, &codes, &searchQ5_K)
	high := (*[32]byte)(dst[16:])
	clear(high[:])
	for i := range 4 {
		q, l := (*[32]byte)(dst[48+32*i:]), (*[64]byte)(codes[64*i:])
		for j := range q {
			q[j] = l[j]&15 | l[j+32]&15<<4
			high[j] |= l[j]>>4<<(2*i) | l[j+32]>>4<<(2*i+1)
		}
	}
}

// search is what make_qkx2_quants is called with: it tries the inverse scales
// (from + 0.1·i + most)/(max - min), i = 0 … steps.
type search struct {
	most  int32 // the largest code
	from  float32
	steps int
}

var (
	searchQ4_K = search{15, -1, 20}
	searchQ5_K = search{31, -0.5, 15}
)

// encodeMinimums sets the first 16 bytes of a Q4_K or Q5_K block, its scales, and codes.
func encodeMinimums(dst []byte, x []float32, codes *[256]byte, s *search) {
	var scales, mins [8]float32
	var weights [32]float32
	maxScale, maxMin := float32(0), float32(0)
	for p := range 8 {
		part := (*[32]float32)(x[32*p:])
		squares := float32(0)
		for _, v := range part {
			squares += float32(v * v)
		}
		rms := float32(math.Sqrt(float64(squares / 32)))
		for j, v := range part {
			weights[j] = rms + math.Float32frombits(math.Float32bits(v)&^(1<<31))
		}
		scales[p], mins[p] = s.qkx2(part, &weights, (*[32]byte)(codes[32*p:]))
		if scales[p] > maxScale {
			maxScale = scales[p]
		}
		if mins[p] > maxMin {
			maxMin = mins[p]
		}
	}
	putF16(dst, maxScale/63)
	putF16(dst[2:], maxMin/63)
	packed := (*[12]byte)(dst[4:])
	packScales(packed, &scales, &mins, sixtyThirds(maxScale), sixtyThirds(maxMin))
	s.nearestCodes(dst, x, codes)
}

// sixtyThirds is 63/v, or 0 for what is not positive.
func sixtyThirds(v float32) float32 {
	if v > 0 {
		return 63 / v
	}
	return 0
}

// packScales rounds the scales and minimums to 6 bits, as kernel.ScaleMin reads them.
func packScales(q *[12]byte, scales, mins *[8]float32, perScale, perMin float32) {
	*q = [12]byte{}
	for j := range 8 {
		ls := min(63, byte(nearest(perScale*scales[j])))
		lm := min(63, byte(nearest(perMin*mins[j])))
		if j < 4 {
			q[j], q[j+4] = ls, lm
		} else {
			q[j+4] = ls&15 | lm&15<<4
			q[j-4] |= ls >> 4 << 6
			q[j] |= lm >> 4 << 6
		}
	}
}

// nearestCodes sets codes to (x + dmin·min)/(d·scale), rounded, of the block's own d, dmin,
// scales and minimums. Those of a part without scale stay.
func (s *search) nearestCodes(block []byte, x []float32, codes *[256]byte) {
	d, dmin, packed := getF16(block), getF16(block[2:]), (*[12]byte)(block[4:])
	for p := range 8 {
		scale, low := kernel.ScaleMin(p, packed)
		dp, mp := d*float32(scale), float32(dmin*float32(low))
		if dp == 0 {
			continue
		}
		l := (*[32]byte)(codes[32*p:])
		for j, v := range (*[32]float32)(x[32*p:]) {
			l[j] = byte(clamp(nearest((v+mp)/dp), 0, s.most))
		}
	}
}

// qkx2 is make_qkx2_quants: of several scales with the minimums that fit best it returns
// those whose codes have the least weighted error of squares, and sets codes. A better fit's
// minimum is that from which later ones count.
func (s *search) qkx2(x, w *[32]float32, codes *[32]byte) (scale, min float32) {
	low, high := x[0], x[0]
	sumW := w[0]
	sumX := float32(sumW * x[0])
	for i := 1; i < 32; i++ {
		if x[i] < low {
			low = x[i]
		}
		if x[i] > high {
			high = x[i]
		}
		sumW += w[i]
		sumX += float32(w[i] * x[i])
	}
	if low > 0 {
		low = 0
	}
	if high == low {
		*codes = [32]byte{}
		return 0, -low
	}
	per := float32(s.most) / (high - low)
	scale = 1 / per
	best := float32(0)
	for i, v := range x {
		l := clamp(nearest(per*(v-low)), 0, s.most)
		codes[i] = byte(l)
		diff := float32(scale*float32(l)) + low - v
		best += float32(w[i] * float32(diff*diff))
	}
	var try [32]float32 // codes
	for i := range s.steps + 1 {
		per := (s.from + float32(0.1*float32(i)) + float32(s.most)) / (high - low)
		var sumL, sumL2, sumXL float32
		for j, v := range x {
			l := float32(clamp(nearest(per*(v-low)), 0, s.most))
			try[j] = l
			wl := float32(w[j] * l)
			sumL += wl
			sumL2 += float32(wl * l)
			sumXL += float32(wl * v)
		}
		det := float32(sumW*sumL2) - float32(sumL*sumL)
		if !(det > 0) {
			continue
		}
		thisScale := (float32(sumW*sumXL) - float32(sumX*sumL)) / det
		thisMin := (float32(sumL2*sumX) - float32(sumL*sumXL)) / det
		if thisMin > 0 {
			thisMin = 0
			thisScale = sumXL / sumL2
		}
		sum := float32(0)
		for j, v := range x {
			diff := float32(thisScale*try[j]) + thisMin - v
			sum += float32(w[j] * float32(diff*diff))
		}
		if sum < best {
			for j, l := range try {
				codes[j] = byte(int32(l))
			}
			best, scale, low = sum, thisScale, thisMin
		}
	}
	return scale, -low
}

// leastGroup is GROUP_MAX_EPS: a group of numbers below it is all zero.
const leastGroup = 1e-15

// encodeQ6_K is quantize_row_q6_K_ref: 16 scales of qx, rounded to int8 times an F16, and
// the codes nearest under these.
func encodeQ6_K(dst []byte, x []float32) {
	var codes [256]byte
	var scales [16]float32
	maxScale, largest := float32(0), float32(0)
	for g := range 16 {
		scales[g] = qx((*[16]float32)(x[16*g:]), (*[16]byte)(codes[16*g:]))
		if abs := abs32(scales[g]); abs > largest {
			largest, maxScale = abs, scales[g]
		}
	}
	if largest < leastGroup {
		clear(dst[:210])
		return
	}
	per := -128 / maxScale
	putF16(dst[208:], 1/per)
	d := getF16(dst[208:])
	for g := range 16 {
		packed := int8(min(127, nearest(per*scales[g])))
		dst[192+g] = byte(packed)
		dg := d * float32(packed)
		if dg == 0 {
			continue
		}
		l := (*[16]byte)(codes[16*g:])
		for j, v := range (*[16]float32)(x[16*g:]) {
			l[j] = byte(clamp(nearest(v/dg), -32, 31) + 32)
		}
	}
	for half := range 2 {
		l, low, high := (*[128]byte)(codes[128*half:]), (*[64]byte)(dst[64*half:]), (*[32]byte)(dst[128+32*half:])
		for j := range 32 {
			a, b, c, d := l[j], l[j+32], l[j+64], l[j+96]
			low[j], low[j+32] = a&15|c&15<<4, b&15|d&15<<4
			high[j] = a>>4 | b>>4<<2 | c>>4<<4 | d>>4<<6
		}
	}
}

func abs32(v float32) float32 { return math.Float32frombits(math.Float32bits(v) &^ (1 << 31)) }

// qx is make_qx_quants of 16 numbers, 32 and rmse_type 1: of 19 scales near x_max/-32 it
// returns the one, fitted, whose codes have the least error of squares weighted with x²,
// and sets codes.
func qx(x *[16]float32, codes *[16]byte) float32 {
	top := extreme(x[:])
	if abs32(top) < leastGroup {
		*codes = [16]byte{}
		return 0
	}
	var weights, products [16]float32 // x² and x²·x
	for i, v := range x {
		weights[i] = v * v
		products[i] = weights[i] * v
	}
	per := -32 / top
	first, _ := tryQx(x, &weights, &products, per, per)
	scale, chosen := float32(0), per
	if first.l2 != 0 {
		scale = first.lx / first.l2
	}
	best := scale * first.lx
	take := func(per float32, s sumsQx) {
		if s.l2 > 0 && s.lx*s.lx > best*s.l2 {
			chosen, scale = per, s.lx/s.l2
			best = scale * s.lx
		}
	}
	for _, i := range [...]float32{-9, -7, -5, -3, -1, 2, 4, 6, 8} {
		next := i + 1
		if i == -1 {
			next = 1
		}
		a, b := -(32+float32(0.1*i))/top, -(32+float32(0.1*next))/top
		ofA, ofB := tryQx(x, &weights, &products, a, b)
		take(a, ofA)
		take(b, ofB)
	}
	fillQx(x, chosen, codes)
	return scale
}

// sumsQx are Σ x²·x·l and Σ x²·l² for codes l.
type sumsQx struct{ lx, l2 float32 }

// tryQx returns the sums for the codes of two inverse scales, which need not wait for each
// other.
func tryQx(x, weights, products *[16]float32, perA, perB float32) (a, b sumsQx) {
	for i, v := range x {
		p, w := products[i], weights[i]
		l, m := float32(clamp(nearest(perA*v), -32, 31)), float32(clamp(nearest(perB*v), -32, 31))
		a.lx += float32(p * l)
		b.lx += float32(p * m)
		a.l2 += float32(float32(w*l) * l)
		b.l2 += float32(float32(w*m) * m)
	}
	return a, b
}

// fillQx sets the codes of an inverse scale.
func fillQx(x *[16]float32, per float32, codes *[16]byte) {
	for i, v := range x {
		codes[i] = byte(clamp(nearest(per*v), -32, 31) + 32)
	}
}
