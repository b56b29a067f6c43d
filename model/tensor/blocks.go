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
	"sync"

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

// encodeQ4_K is quantize_row_q4_K_ref: the parts' scales and minimums of kernel.Fit, rounded to
// 6 bits of two F16, and the codes nearest under these.
func encodeQ4_K(dst []byte, x []float32) {
	var codes [256]byte
	encodeMinimums(dst, x, &codes, searchQ4_K)
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
	encodeMinimums(dst, x, &codes, searchQ5_K)
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

// search is what make_qkx2_quants is called with.
type search struct {
	most  int       // the largest code
	tries []float32 // from + 0.1·i + most, i = 0 … steps
}

var (
	searchQ4_K = newSearch(15, -1, 20)
	searchQ5_K = newSearch(31, -0.5, 15)
)

func newSearch(most int, from float32, steps int) *search {
	s := &search{most: most}
	for i := range steps + 1 {
		s.tries = append(s.tries, from+float32(0.1*float32(i))+float32(most))
	}
	return s
}

// fits are for encoders at work.
var fits = sync.Pool{New: func() any { return new(kernel.Fit) }}

// groups sets the numbers of a fit to n of each group from x on, group after group.
func groups(fit *kernel.Fit, x []float32, n int) {
	for g := range kernel.FitGroups {
		for j, v := range x[n*g:][:n] {
			fit.X[j][g] = v
		}
	}
}

// encodeMinimums sets the first 16 bytes of a Q4_K or Q5_K block, its scales, and codes.
func encodeMinimums(dst []byte, x []float32, codes *[256]byte, s *search) {
	fit := fits.Get().(*kernel.Fit)
	defer fits.Put(fit)
	groups(fit, x, 32)
	fit.Minimums(s.most, s.tries)
	maxScale, maxMin := float32(0), float32(0)
	for p := range 8 {
		if fit.Scale[p] > maxScale {
			maxScale = fit.Scale[p]
		}
		if -fit.Low[p] > maxMin {
			maxMin = -fit.Low[p]
		}
	}
	putF16(dst, maxScale/63)
	putF16(dst[2:], maxMin/63)
	packScales((*[12]byte)(dst[4:]), &fit.Scale, &fit.Low, sixtyThirds(maxScale), sixtyThirds(maxMin))
	s.nearestCodes(dst, x, codes, fit)
}

// sixtyThirds is 63/v, or 0 for what is not positive.
func sixtyThirds(v float32) float32 {
	if v > 0 {
		return 63 / v
	}
	return 0
}

// packScales rounds the scales and minimums, which are -lows, to 6 bits, as kernel.ScaleMin reads
// them.
func packScales(q *[12]byte, scales, lows *[8]float32, perScale, perMin float32) {
	*q = [12]byte{}
	for j := range 8 {
		ls := min(63, byte(kernel.Nearest(perScale*scales[j])))
		lm := min(63, byte(kernel.Nearest(perMin*-lows[j])))
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
// scales and minimums. A part without scale has the codes of the fit.
func (s *search) nearestCodes(block []byte, x []float32, codes *[256]byte, fit *kernel.Fit) {
	d, dmin, packed := getF16(block), getF16(block[2:]), (*[12]byte)(block[4:])
	for p := range 8 {
		scale, low := kernel.ScaleMin(p, packed)
		dp, mp := d*float32(scale), float32(dmin*float32(low))
		part, l := (*[32]float32)(x[32*p:]), (*[32]byte)(codes[32*p:])
		for j, v := range part {
			code := (v + mp) / dp
			if dp == 0 {
				code = fit.Per[p] * (v - fit.From[p])
			}
			l[j] = byte(kernel.Clamp(kernel.Nearest(code), 0, int32(s.most)))
		}
	}
}

// triesQ6_K are the numerators -(32 + 0.1·i) that make_qx_quants tries, that of i = 0 first.
var triesQ6_K = func() []float32 {
	tries := []float32{-32}
	for i := float32(-9); i <= 9; i++ {
		if i != 0 {
			tries = append(tries, -(32 + float32(0.1*i)))
		}
	}
	return tries
}()

// encodeQ6_K is quantize_row_q6_K_ref: 16 scales of make_qx_quants, rounded to int8 times an F16,
// and the codes nearest under these.
func encodeQ6_K(dst []byte, x []float32) {
	var codes [256]byte
	var scales, pers [16]float32
	fitQ6_K(x, &scales, &pers)
	maxScale, largest := float32(0), float32(0)
	for _, scale := range scales {
		if abs := abs32(scale); abs > largest {
			largest, maxScale = abs, scale
		}
	}
	if largest < kernel.LeastGroup {
		clear(dst[:210])
		return
	}
	per := -128 / maxScale
	putF16(dst[208:], 1/per)
	d := getF16(dst[208:])
	for g, scale := range scales {
		packed := int8(min(127, kernel.Nearest(per*scale)))
		dst[192+g] = byte(packed)
		dg := d * float32(packed)
		if dg == 0 && pers[g] == 0 { // all zero
			continue
		}
		l := (*[16]byte)(codes[16*g:])
		for j, v := range (*[16]float32)(x[16*g:]) {
			code := v / dg
			if dg == 0 {
				code = pers[g] * v
			}
			l[j] = byte(kernel.Clamp(kernel.Nearest(code), -32, 31) + 32)
		}
	}
	packQ6_K(dst, &codes)
}

// fitQ6_K sets the scales of 16 groups of 16 numbers, and their inverses that give the codes.
func fitQ6_K(x []float32, scales, pers *[16]float32) {
	fit := fits.Get().(*kernel.Fit)
	defer fits.Put(fit)
	for g := 0; g < 16; g += kernel.FitGroups {
		groups(fit, x[16*g:], 16)
		fit.Symmetric(triesQ6_K)
		copy(scales[g:], fit.Scale[:])
		copy(pers[g:], fit.Per[:])
	}
}

// packQ6_K sets the first 192 bytes of a block to its codes.
func packQ6_K(dst []byte, codes *[256]byte) {
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
