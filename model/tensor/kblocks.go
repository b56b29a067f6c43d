package tensor

// The encoders of the types K: blocks of 256 numbers in parts of 16 or 32, each with a scale, and
// some with a minimum, that kernel.Fit chooses. These are rounded to a few bits times an F16, and
// then the codes are taken that are nearest under them.

import (
	"encoding/binary"
	"math"
	"sync"

	"dsmoe/model/internal/kernel"
)

// encodeQ2_K is quantize_row_q2_K_ref: scales and minimums of 16 parts, weighted with |x| and chosen
// by absolute errors, rounded to 4 bits of two F16.
func encodeQ2_K(dst []byte, x []float32) {
	fit := fits.Get().(*kernel.Fit)
	defer fits.Put(fit)
	var all fitted
	for g := 0; g < 16; g += kernel.FitGroups {
		groups(fit, x[16*g:], 16)
		for j := range 16 {
			for i, v := range &fit.X[j] {
				fit.W[j][i] = abs32(v)
			}
		}
		fit.Minimums(16, searchQ2_K.most, searchQ2_K.tries, true)
		all.take(fit, g)
	}
	maxScale, maxMin := float32(0), float32(0)
	for p := range 16 {
		maxScale, maxMin = max(maxScale, all.scale[p]), max(maxMin, -all.low[p])
	}
	PutF16(dst[80:], maxScale/15)
	PutF16(dst[82:], maxMin/15)
	perScale, perMin := ratio(15, maxScale), ratio(15, maxMin)
	for p := range 16 {
		dst[p] = byte(kernel.Nearest(perScale*all.scale[p])) | byte(kernel.Nearest(perMin*-all.low[p]))<<4
	}
	all.packQ2_K(dst, x)
}

// fitted are the scales of 16 parts as kernel.Fit has them.
type fitted struct{ scale, low, per, from [16]float32 }

// take sets the parts from p on.
func (f *fitted) take(fit *kernel.Fit, p int) {
	copy(f.scale[p:], fit.Scale[:])
	copy(f.low[p:], fit.Low[:])
	copy(f.per[p:], fit.Per[:])
	copy(f.from[p:], fit.From[:])
}

// packQ2_K sets the codes of a block to those nearest under its scales and minimums.
func (f *fitted) packQ2_K(dst []byte, x []float32) {
	var codes [256]byte
	d, dmin := getF16(dst[80:]), getF16(dst[82:])
	for p, s := range dst[:16] {
		nearestCodes(codes[16*p:][:16], x[16*p:], d*float32(s&15), float32(dmin*float32(s>>4)), 3, f.per[p], f.from[p])
	}
	packTwoBits(dst[16:80], &codes)
}

// packTwoBits sets dst to the low two bits of 256 codes, eight at a time: of number l of quarter k of a
// half, bits 2k of byte l.
func packTwoBits(dst []byte, codes *[256]byte) {
	const two = 0x0303030303030303
	for i := 0; i < 64; i += 8 {
		l, q := codes[i/32*128+i%32:], uint64(0)
		for k := range 4 {
			q |= binary.LittleEndian.Uint64(l[32*k:]) & two << (2 * k)
		}
		binary.LittleEndian.PutUint64(dst[i:], q)
	}
}

// encodeQ3_K is quantize_row_q3_K_ref: 16 scales of make_q3_quants, rounded to 6 bits, with a sign,
// times an F16.
func encodeQ3_K(dst []byte, x []float32) {
	fit := fits.Get().(*kernel.Fit)
	defer fits.Put(fit)
	var scales [16]float32
	for g := 0; g < 16; g += kernel.FitGroups {
		groups(fit, x[16*g:], 16)
		fit.Stepwise()
		copy(scales[g:], fit.Scale[:])
	}
	clear(dst[96:110])
	if top := largestScale(&scales); top != 0 {
		per := -32 / top
		PutF16(dst[108:], 1/per)
		for p, scale := range scales {
			putScaleQ3(dst[96:108], p, byte(max(-32, min(31, int8(kernel.Nearest(per*scale))))+32))
		}
	}
	var codes [256]byte
	for p := range 16 {
		if !nearestQ3(&codes, dst, x, p) {
			groups(fit, x[p&8*16:], 16)
			fit.Stepwise()
			for j := range 16 {
				codes[16*p+j] = byte(int32(fit.L[j][p&7]) + 4)
			}
		}
	}
	packQ3_K(dst, &codes)
}

// largestScale returns the first scale of the largest magnitude; 0 if all are 0 or NaN.
func largestScale(scales *[16]float32) (top float32) {
	for _, scale := range scales {
		if abs32(scale) > abs32(top) {
			top = scale
		}
	}
	return top
}

// putScaleQ3 stores the scale of part p as kernel.ScaleQ3 reads it, 32 more, in bytes that were 0.
func putScaleQ3(q []byte, p int, l byte) {
	q[p%8] |= l & 15 << (p / 8 * 4)
	q[8+p%4] |= l >> 4 << (p / 4 * 2)
}

// nearestQ3 sets the codes of part p to those nearest under its scale in the block, and reports
// whether it has one.
func nearestQ3(codes *[256]byte, block []byte, x []float32, p int) bool {
	scale := getF16(block[108:]) * float32(kernel.ScaleQ3(p, (*[12]byte)(block[96:])))
	l := (*[16]byte)(codes[16*p:])
	for j, v := range (*[16]float32)(x[16*p:]) {
		l[j] = byte(kernel.Clamp(kernel.Nearest(v/scale), -4, 3) + 4)
	}
	return scale != 0
}

// packQ3_K sets the first 96 bytes of a block to its codes.
func packQ3_K(dst []byte, codes *[256]byte) {
	const one = 0x0101010101010101
	for j := 0; j < 32; j += 8 {
		high := uint64(0)
		for k := range 8 {
			high |= binary.LittleEndian.Uint64(codes[32*k+j:]) >> 2 & one << k
		}
		binary.LittleEndian.PutUint64(dst[j:], high)
	}
	packTwoBits(dst[32:96], codes)
}

// encodeQ4_K is quantize_row_q4_K_ref: the parts' scales and minimums of kernel.Fit, rounded to
// 6 bits of two F16, and the codes nearest under these.
func encodeQ4_K(dst []byte, x []float32) {
	var codes [256]byte
	encodeMinimums(dst, x, &codes, searchQ4_K)
	packQ4_K(dst, &codes)
}

// packQ4_K sets the last 128 bytes of a block to its codes.
func packQ4_K(dst []byte, codes *[256]byte) {
	for i := range 4 {
		q, l := (*[32]byte)(dst[16+32*i:]), (*[64]byte)(codes[64*i:])
		for j := range q {
			q[j] = l[j] | l[j+32]<<4
		}
	}
}

// encodeQ5_K is quantize_row_q5_K_ref: as Q4_K, with 5 bits.
func encodeQ5_K(dst []byte, x []float32) {
	var codes [256]byte
	encodeMinimums(dst, x, &codes, searchQ5_K)
	packQ5_K(dst, &codes)
}

// packQ5_K sets the last 160 bytes of a block to its codes: the fifth bit of number j of part p is bit p
// of byte j.
func packQ5_K(dst []byte, codes *[256]byte) {
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
	tries []float32 // from + step·i + most, i = 0 … steps
}

var (
	searchQ2_K = newSearch(3, -0.5, 0.1, 15)
	searchQ4_K = newSearch(15, -1, 0.1, 20)
	searchQ5_K = newSearch(31, -0.5, 0.1, 15)
)

func newSearch(most int, from, step float32, steps int) *search {
	s := &search{most: most}
	for i := range steps + 1 {
		s.tries = append(s.tries, from+float32(step*float32(i))+float32(most))
	}
	return s
}

// fits are for encoders at work.
var fits = sync.Pool{New: func() any { return new(kernel.Fit) }}

// groups sets the numbers of a fit to n of each group from x on, group after group.
func groups(fit *kernel.Fit, x []float32, n int) { transpose(&fit.X, x, n) }

// transpose sets dst to n numbers of each group from x on, group after group.
func transpose(dst *[32][kernel.FitGroups]float32, x []float32, n int) {
	for g := range kernel.FitGroups {
		for j, v := range x[n*g:][:n] {
			dst[j][g] = v
		}
	}
}

// weighRMS sets the weights √(Σx²/32) + |x| of eight groups of 32 numbers.
func weighRMS(fit *kernel.Fit) {
	var rms [kernel.FitGroups]float32
	for j := range fit.X {
		for g, v := range &fit.X[j] {
			rms[g] += float32(v * v)
		}
	}
	for g, squares := range rms {
		rms[g] = float32(math.Sqrt(float64(squares / 32)))
	}
	for j := range fit.X {
		for g, v := range &fit.X[j] {
			fit.W[j][g] = rms[g] + abs32(v)
		}
	}
}

// encodeMinimums sets the first 16 bytes of a Q4_K or Q5_K block, its scales, and codes.
func encodeMinimums(dst []byte, x []float32, codes *[256]byte, s *search) {
	fit := fits.Get().(*kernel.Fit)
	defer fits.Put(fit)
	groups(fit, x, 32)
	weighRMS(fit)
	fit.Minimums(32, s.most, s.tries, false)
	maxScale, maxMin := float32(0), float32(0)
	for p := range 8 {
		if fit.Scale[p] > maxScale {
			maxScale = fit.Scale[p]
		}
		if -fit.Low[p] > maxMin {
			maxMin = -fit.Low[p]
		}
	}
	PutF16(dst, maxScale/63)
	PutF16(dst[2:], maxMin/63)
	packScales((*[12]byte)(dst[4:]), &fit.Scale, &fit.Low, ratio(63, maxScale), ratio(63, maxMin))
	s.partCodes(dst, x, codes, fit)
}

// ratio is n/v, or 0 for what is not positive.
func ratio(n, v float32) float32 {
	if v > 0 {
		return n / v
	}
	return 0
}

// packScales rounds the scales and minimums, which are -lows, to 6 bits.
func packScales(q *[12]byte, scales, lows *[8]float32, perScale, perMin float32) {
	*q = [12]byte{}
	for j := range 8 {
		putScaleMin(q, j, min(63, byte(kernel.Nearest(perScale*scales[j]))), min(63, byte(kernel.Nearest(perMin*-lows[j]))))
	}
}

// putScaleMin stores the scale and minimum of part j as kernel.ScaleMin reads them, in order of j, in
// bytes that were 0.
func putScaleMin(q *[12]byte, j int, ls, lm byte) {
	if j < 4 {
		q[j], q[j+4] = ls, lm
		return
	}
	q[j+4] = ls&15 | lm&15<<4
	q[j-4] |= ls >> 4 << 6
	q[j] |= lm >> 4 << 6
}

// partCodes sets codes to those nearest under the block's own d, dmin, scales and minimums.
func (s *search) partCodes(block []byte, x []float32, codes *[256]byte, fit *kernel.Fit) {
	d, dmin, packed := getF16(block), getF16(block[2:]), (*[12]byte)(block[4:])
	for p := range 8 {
		scale, low := kernel.ScaleMin(p, packed)
		nearestCodes(codes[32*p:][:32], x[32*p:], d*float32(scale), float32(dmin*float32(low)), int32(s.most),
			fit.Per[p], fit.From[p])
	}
}

// nearestCodes sets l to (x + low)/scale, rounded to 0 … most. Without scale the codes are those of
// the fit, per·(x - from).
func nearestCodes(l []byte, x []float32, scale, low float32, most int32, per, from float32) {
	x = x[:len(l)]
	for j, v := range x {
		code := (v + low) / scale
		if scale == 0 {
			code = per * (v - from)
		}
		l[j] = byte(kernel.Clamp(kernel.Nearest(code), 0, most))
	}
}

// triesQ6_K are the numerators that make_qx_quants tries for Q6_K.
var triesQ6_K = symmetricTries(32)

// symmetricTries are the numerators -(most + 0.1·i) that make_qx_quants tries, that of i = 0 first.
func symmetricTries(most float32) []float32 {
	tries := []float32{-most}
	for i := float32(-9); i <= 9; i++ {
		if i != 0 {
			tries = append(tries, -(most + float32(0.1*i)))
		}
	}
	return tries
}

// encodeQ6_K is quantize_row_q6_K_ref: 16 scales of make_qx_quants, rounded to int8 times an F16,
// and the codes nearest under these.
func encodeQ6_K(dst []byte, x []float32) { encodeWeightedQ6_K(dst, x, nil) }

// encodeWeightedQ6_K is quantize_row_q6_K_impl; without weights these are x².
func encodeWeightedQ6_K(dst []byte, x, weights []float32) {
	var codes [256]byte
	var scales, pers [16]float32
	fitQ6_K(x, weights, &scales, &pers)
	maxScale := largestScale(&scales)
	if abs32(maxScale) < kernel.LeastGroup {
		clear(dst[:210])
		return
	}
	per := -128 / maxScale
	PutF16(dst[208:], 1/per)
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
func fitQ6_K(x, weights []float32, scales, pers *[16]float32) {
	fit := fits.Get().(*kernel.Fit)
	defer fits.Put(fit)
	for g := 0; g < 16; g += kernel.FitGroups {
		groups(fit, x[16*g:], 16)
		if weights != nil {
			transpose(&fit.W, weights[16*g:], 16)
		} else {
			for j := range 16 {
				for i, v := range &fit.X[j] {
					fit.W[j][i] = v * v
				}
			}
		}
		fit.Symmetric(16, 32, triesQ6_K)
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
