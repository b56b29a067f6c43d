package tensor

// The encoders of the types K: blocks of 256 numbers in parts of 16 or 32, each with a scale, and
// some with a minimum, that kernel.Fit chooses. These are rounded to a few bits times an F16, and
// then the codes are taken that are nearest under them.

import (
	"encoding/binary"
	"sync"

	"dsmoe/model/internal/kernel"
)

// encodeQ2_K is quantize_row_q2_K_ref: scales and minimums of 16 parts, weighted with |x| and chosen
// by absolute errors, rounded to 4 bits of two F16.
func encodeQ2_K(dst []byte, x []float32) {
	e := encoding.Get().(*encoder)
	defer encoding.Put(e)
	fit := &e.fit
	fit.SetNumbers(x, 16)
	fit.Weigh(16, false)
	fit.Minimums(16, searchQ2_K.most, searchQ2_K.tries, true)
	maxScale, maxMin := float32(0), float32(0)
	for p := range 16 {
		maxScale, maxMin = max(maxScale, fit.Scale[p]), max(maxMin, -fit.Low[p])
	}
	PutF16(dst[80:], maxScale/15)
	PutF16(dst[82:], maxMin/15)
	perScale, perMin := ratio(15, maxScale), ratio(15, maxMin)
	for p := range 16 {
		dst[p] = byte(kernel.Nearest(perScale*fit.Scale[p])) | byte(kernel.Nearest(perMin*-fit.Low[p]))<<4
	}
	e.packQ2_K(dst, x)
}

// packQ2_K sets the codes of a block to those nearest under its scales and minimums.
func (e *encoder) packQ2_K(dst []byte, x []float32) {
	d, dmin := getF16(dst[80:]), getF16(dst[82:])
	for p, s := range dst[:16] {
		e.lines.Scale[p], e.lines.Low[p] = d*float32(s&15), float32(dmin*float32(s>>4))
	}
	e.nearestCodes(x, 3, 0, 16)
	packTwoBits(dst[16:80], &e.lines.Codes)
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
	e := encoding.Get().(*encoder)
	defer encoding.Put(e)
	fit := &e.fit
	fit.SetNumbers(x, 16)
	fit.Stepwise()
	clear(dst[96:110])
	if top := largestScale(&fit.Scale); top != 0 {
		per := -32 / top
		PutF16(dst[108:], 1/per)
		for p, scale := range fit.Scale {
			putScaleQ3(dst[96:108], p, byte(max(-32, min(31, int8(kernel.Nearest(per*scale))))+32))
		}
	}
	e.nearestQ3(dst, x)
	e.codeUnscaled(func(p, i int) byte { return byte(int32(fit.L[i%16][p]) + 4) })
	packQ3_K(dst, &e.lines.Codes)
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

// nearestQ3 sets the lines to the scales in the block, and the codes to those nearest under them. Codes of a
// part without scale are undefined.
func (e *encoder) nearestQ3(block []byte, x []float32) {
	d := getF16(block[108:])
	for p := range &e.lines.Scale {
		e.lines.Scale[p], e.lines.Low[p] = d*float32(kernel.ScaleQ3(p, (*[12]byte)(block[96:]))), 0
	}
	e.lines.Encode((*[256]float32)(x), -4, 3)
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

// encoder is what an encoder at work needs.
type encoder struct {
	fit   kernel.Fit
	lines kernel.Lines
}

var encoding = sync.Pool{New: func() any { return new(encoder) }}

// encodeMinimums is quantize_row_q4_K_ref or quantize_row_q5_K_ref of one or two blocks: the parts' scales and minimums
// of kernel.Fit, rounded to 6 bits of two F16, and the codes nearest under these.
func encodeMinimums(dst []byte, x []float32, s *search, d DType) {
	e := encoding.Get().(*encoder)
	defer encoding.Put(e)
	fit := &e.fit
	fit.SetNumbers(x, 32)
	fit.Weigh(32, true)
	fit.Minimums(32, s.most, s.tries, false)
	for g := 0; len(x) > 0; g += 8 {
		maxScale, maxMin := float32(0), float32(0)
		for p := g; p < g+8; p++ {
			if fit.Scale[p] > maxScale {
				maxScale = fit.Scale[p]
			}
			if -fit.Low[p] > maxMin {
				maxMin = -fit.Low[p]
			}
		}
		PutF16(dst, maxScale/63)
		PutF16(dst[2:], maxMin/63)
		clear(dst[4:16])
		perScale, perMin := ratio(63, maxScale), ratio(63, maxMin)
		for j := range 8 {
			scale, low := kernel.Nearest(perScale*fit.Scale[g+j]), kernel.Nearest(perMin*-fit.Low[g+j])
			putScaleMin(dst, j, min(63, byte(scale)), min(63, byte(low)))
		}
		e.packMinimums(dst, x, s.most, g, d)
		x, dst = x[256:], dst[d.Bytes(256):]
	}
}

// ratio is n/v, or 0 for what is not positive.
func ratio(n, v float32) float32 {
	if v > 0 {
		return n / v
	}
	return 0
}

// putScaleMin stores the scale and minimum of part j of a Q4_K or Q5_K block as kernel.ScaleMin reads them, in order of
// j, in bytes that were 0.
func putScaleMin(block []byte, j int, ls, lm byte) {
	q := (*[12]byte)(block[4:])
	if j < 4 {
		q[j], q[j+4] = ls, lm
		return
	}
	q[j+4] = ls&15 | lm&15<<4
	q[j-4] |= ls >> 4 << 6
	q[j] |= lm >> 4 << 6
}

// packMinimums sets the codes of a Q4_K or Q5_K block, 0 … most, to those nearest under its own d, dmin, scales and
// minimums. Its parts are the groups of the fit from g on.
func (e *encoder) packMinimums(block []byte, x []float32, most, g int, d DType) {
	super, superMin, packed := getF16(block), getF16(block[2:]), (*[12]byte)(block[4:])
	for p := range 8 {
		scale, low := kernel.ScaleMin(p, packed)
		e.lines.SetPart(p, super*float32(scale), float32(superMin*float32(low)))
	}
	e.nearestCodes(x, int32(most), g, 32)
	const four, one = 0x0f0f0f0f0f0f0f0f, 0x0101010101010101
	codes := block[16:]
	if d == Q5_K {
		codes = block[48:]
	}
	for j := 0; j < 32; j += 8 {
		high := uint64(0) // the fifth bit of number j of part p is bit p of byte j
		for i := range 4 {
			a, b := binary.LittleEndian.Uint64(e.lines.Codes[64*i+j:]), binary.LittleEndian.Uint64(e.lines.Codes[64*i+32+j:])
			binary.LittleEndian.PutUint64(codes[32*i+j:], a&four|b&four<<4)
			high |= a>>4&one<<(2*i) | b>>4&one<<(2*i+1)
		}
		if d == Q5_K {
			binary.LittleEndian.PutUint64(block[16+j:], high)
		}
	}
}

// nearestCodes sets the codes to the nearest ones to x under the lines, 0 … most. A part without scale takes the codes
// per·(x - from) of the fit, in which the groups of x have n numbers each and begin with group g.
func (e *encoder) nearestCodes(x []float32, most int32, g, n int) {
	e.lines.Encode((*[256]float32)(x), 0, most)
	e.codeUnscaled(func(_, i int) byte {
		part := g + i/n
		return byte(kernel.Clamp(kernel.Nearest(e.fit.Per[part]*(x[i]-e.fit.From[part])), 0, most))
	})
}

// codeUnscaled gives each number i of a part p of 16 numbers whose line has no scale the code that code returns.
func (e *encoder) codeUnscaled(code func(p, i int) byte) {
	for p, scale := range &e.lines.Scale {
		if scale == 0 {
			for i := 16 * p; i < 16*p+16; i++ {
				e.lines.Codes[i] = code(p, i)
			}
		}
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
// and the codes nearest under these. With weights, which otherwise are x², it is quantize_row_q6_K_impl.
func encodeQ6_K(dst []byte, x, weights []float32) {
	e := encoding.Get().(*encoder)
	defer encoding.Put(e)
	fit := &e.fit
	fit.SetNumbers(x, 16)
	if weights != nil {
		fit.SetWeights(weights, 16)
	} else {
		fit.WeighSquares(16)
	}
	fit.Symmetric(16, 32, triesQ6_K)
	maxScale := largestScale(&fit.Scale)
	if abs32(maxScale) < kernel.LeastGroup {
		clear(dst[:210])
		return
	}
	per := -128 / maxScale
	PutF16(dst[208:], 1/per)
	d, lines := getF16(dst[208:]), &e.lines
	for p, scale := range fit.Scale {
		packed := int8(min(127, kernel.Nearest(per*scale)))
		dst[192+p] = byte(packed)
		lines.Scale[p], lines.Low[p] = d*float32(packed), 0
	}
	lines.Encode((*[256]float32)(x), -32, 31)
	e.codeUnscaled(func(p, i int) byte { return symmetricCode(fit.Per[p], x[i], 32) })
	const four, two = 0x0f0f0f0f0f0f0f0f, 0x0303030303030303
	for i := 0; i < 64; i += 8 { // the codes, in the first 192 bytes
		half, j := i/32, i%32
		var q [4]uint64
		for k := range q {
			q[k] = binary.LittleEndian.Uint64(lines.Codes[128*half+32*k+j:])
		}
		binary.LittleEndian.PutUint64(dst[64*half+j:], q[0]&four|q[2]&four<<4)
		binary.LittleEndian.PutUint64(dst[64*half+32+j:], q[1]&four|q[3]&four<<4)
		high := q[0]>>4&two | q[1]>>4&two<<2 | q[2]>>4&two<<4 | q[3]>>4&two<<6
		binary.LittleEndian.PutUint64(dst[128+32*half+j:], high)
	}
}
