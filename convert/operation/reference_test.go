package operation

// The blocks of ggml's types by their definition, the functions quantize_row_…_ref of
// ggml-quants.c: one statement of C is one of Go, and nothing is saved. The arithmetic is
// float32, each operation rounded once. The encoders of package tensor are compared with it.

import (
	"encoding/binary"
	"math"
	"sort"

	"dsmoe/model/tensor"
)

// referenceBlock sets block to that of x in dtype d.
func referenceBlock(block []byte, x []float32, d tensor.DType) {
	clear(block)
	switch d {
	case tensor.Q8_0:
		referenceQ8(block, x)
	case tensor.Q4_0:
		scale := largest(x) / -8
		setF16(block, scale)
		for i, v := range x {
			block[2+i%16] |= code(v*reciprocal(scale), 8.5, 15) << (i / 16 * 4)
		}
	case tensor.Q5_0:
		scale := largest(x) / -16
		setF16(block, scale)
		for i, v := range x {
			setFifth(block[2:], i, code(v*reciprocal(scale), 16.5, 31))
		}
	case tensor.Q4_1:
		low, high := extent(x)
		scale := (high - low) / 15
		setF16(block, scale)
		setF16(block[2:], low)
		for i, v := range x {
			block[4+i%16] |= code((v-low)*reciprocal(scale), 0.5, 15) << (i / 16 * 4)
		}
	case tensor.Q5_1:
		low, high := extent(x)
		scale := (high - low) / 31
		setF16(block, scale)
		setF16(block[2:], low)
		for i, v := range x {
			setFifth(block[4:], i, code((v-low)*reciprocal(scale), 0.5, 127))
		}
	case tensor.Q2_K:
		referenceQ2(block, x)
	case tensor.Q3_K:
		referenceQ3(block, x)
	case tensor.Q4_K, tensor.Q5_K:
		referenceMinimums(block, x, d)
	case tensor.Q6_K:
		referenceQ6(block, x)
	}
}

// setF16 stores the F16 that v rounds to: the pattern whose bounds hold it, of two the even
// one.
func setF16(dst []byte, v float32) {
	b, abs := boundsF16(), math.Abs(float64(v))
	p := sort.Search(len(b.high)-1, func(i int) bool { return abs <= b.high[i] })
	if abs == b.high[p] && p&1 == 1 {
		p++
	}
	if math.Signbit(float64(v)) {
		p |= 0x8000
	}
	binary.LittleEndian.PutUint16(dst, uint16(p))
}

// largest is the first number of the largest magnitude.
func largest(x []float32) (v float32) {
	for _, y := range x {
		if math.Abs(float64(y)) > math.Abs(float64(v)) {
			v = y
		}
	}
	return v
}

// extent is the least number and the largest.
func extent(x []float32) (low, high float32) {
	low, high = x[0], x[0]
	for _, v := range x {
		if v < low {
			low = v
		}
		if v > high {
			high = v
		}
	}
	return low, high
}

// reciprocal is 1/d, 0 for 0.
func reciprocal(d float32) float32 {
	if d == 0 {
		return 0
	}
	return 1 / d
}

// code is min(most, (int8_t)(v + shift)); what is no int32 is 0, as processors of x86-64
// have it.
func code(v, shift float32, most int8) byte {
	sum := math.Trunc(float64(float32(v) + shift))
	if !(math.Abs(sum) <= math.MaxInt32) {
		return byte(min(most, 0))
	}
	return byte(min(most, int8(int32(sum))))
}

// setFifth stores a code of 5 bits: its fifth is bit i of 4 bytes, the others lie in 16
// bytes behind them.
func setFifth(dst []byte, i int, l byte) {
	dst[i/8] |= l >> 4 & 1 << (i % 8)
	dst[4+i%16] |= l & 15 << (i / 16 * 4)
}

// referenceQ8 is d = max|x|/127, q = roundf(x/d by the reciprocal).
func referenceQ8(block []byte, x []float32) {
	most := float32(0)
	for _, v := range x {
		most = max(most, float32(math.Abs(float64(v))))
	}
	d := most / 127
	setF16(block, d)
	id := reciprocal(d)
	for i, v := range x {
		if q := math.Round(float64(v * id)); math.Abs(q) <= 127 {
			block[2+i] = byte(int8(q)) // of others, where id is infinite, 0
		}
	}
}

// nearestInt is nearest_int of ggml: 1.5·2²³ is added, the low 22 bits of the sum are the
// integer.
func nearestInt(v float32) int {
	return int(math.Float32bits(float32(v)+12582912)&0x007fffff) - 0x00400000
}

// fit is what make_qkx2_quants and make_qx_quants return.
type fit struct {
	scale, min float32 // min is subtracted
	codes      []int
}

// referenceMinimums is quantize_row_q4_K_ref and quantize_row_q5_K_ref.
func referenceMinimums(block []byte, x []float32, d tensor.DType) {
	most, from, steps, codes := 15, float32(-1), 20, block[16:]
	if d == tensor.Q5_K {
		most, from, steps, codes = 31, -0.5, 15, block[48:]
	}
	var fits [8]fit
	maxScale, maxMin := float32(0), float32(0)
	for j := range fits {
		fits[j] = fitMinimum(x[32*j:32*j+32], averageWeights(x[32*j:32*j+32]), most, from, steps, square)
		if fits[j].scale > maxScale {
			maxScale = fits[j].scale
		}
		if fits[j].min > maxMin {
			maxMin = fits[j].min
		}
	}
	var invScale, invMin float32
	if maxScale > 0 {
		invScale = 63 / maxScale
	}
	if maxMin > 0 {
		invMin = 63 / maxMin
	}
	setF16(block, maxScale/63)
	setF16(block[2:], maxMin/63)
	for j, f := range fits {
		scale, low := min(63, byte(nearestInt(invScale*f.scale))), min(63, byte(nearestInt(invMin*f.min)))
		setSixBits(block[4:16], j, scale, low)
		step, least := f16(block)*float32(scale), float32(f16(block[2:])*float32(low))
		for i, l := range f.codes {
			if step != 0 {
				l = max(0, min(most, nearestInt((x[32*j+i]+least)/step)))
			}
			codes[32*(j/2)+i] |= byte(l) & 15 << (4 * (j % 2))
			if most > 15 {
				block[16+i] |= byte(l) >> 4 << j
			}
		}
	}
}

// setSixBits stores scale and minimum j of 8 in 12 bytes: the first four of each in the low
// 6 bits of bytes 0 to 7, of the others the low 4 bits in bytes 8 to 11 and the high 2 bits
// above those of the first.
func setSixBits(dst []byte, j int, scale, low byte) {
	if j < 4 {
		dst[j] |= scale
		dst[j+4] |= low
		return
	}
	dst[j+4] = scale&15 | low&15<<4
	dst[j-4] |= scale >> 4 << 6
	dst[j] |= low >> 4 << 6
}

// averageWeights are the weights of quantize_row_q4_K_ref.
func averageWeights(x []float32) (w []float32) {
	sumX2 := float32(0)
	for _, v := range x {
		sumX2 += float32(v * v)
	}
	average := float32(math.Sqrt(float64(sumX2 / 32)))
	for _, v := range x {
		w = append(w, average+absolute(v))
	}
	return w
}

func square(v float32) float32   { return v * v }
func absolute(v float32) float32 { return float32(math.Abs(float64(v))) }

// fitMinimum is make_qkx2_quants; of use_mad measure is absolute, else square.
func fitMinimum(x, w []float32, most int, from float32, steps int, measure func(float32) float32) fit {
	codes, try := make([]int, len(x)), make([]int, len(x))
	sumW, sumX := float32(0), float32(0)
	for i, v := range x {
		sumW += w[i]
		sumX += float32(w[i] * v)
	}
	low, high := extent(x)
	if low > 0 {
		low = 0
	}
	if high == low {
		return fit{0, -low, codes}
	}
	inverse := float32(most) / (high - low)
	scale, best := 1/inverse, float32(0)
	for i, v := range x {
		codes[i] = max(0, min(most, nearestInt(inverse*(v-low))))
		diff := float32(scale*float32(codes[i])) + low - v
		best += float32(w[i] * measure(diff))
	}
	for is := 0; is <= steps; is++ {
		inverse = (from + float32(0.1*float32(is)) + float32(most)) / (high - low)
		sumL, sumL2, sumXL := float32(0), float32(0), float32(0)
		for i, v := range x {
			try[i] = max(0, min(most, nearestInt(inverse*(v-low))))
			l := float32(try[i])
			sumL += float32(w[i] * l)
			sumL2 += float32(float32(w[i]*l) * l)
			sumXL += float32(float32(w[i]*l) * v)
		}
		det := float32(sumW*sumL2) - float32(sumL*sumL)
		if !(det > 0) {
			continue
		}
		thisScale := (float32(sumW*sumXL) - float32(sumX*sumL)) / det
		thisMin := (float32(sumL2*sumX) - float32(sumL*sumXL)) / det
		if thisMin > 0 {
			thisMin, thisScale = 0, sumXL/sumL2
		}
		err := float32(0)
		for i, v := range x {
			diff := float32(thisScale*float32(try[i])) + thisMin - v
			err += float32(w[i] * measure(diff))
		}
		if err < best {
			copy(codes, try)
			best, scale, low = err, thisScale, thisMin
		}
	}
	return fit{scale, -low, codes}
}

// referenceQ2 is quantize_row_q2_K_ref.
func referenceQ2(block []byte, x []float32) {
	var fits [16]fit
	maxScale, maxMin := float32(0), float32(0)
	for j := range fits {
		var weights []float32
		for _, v := range x[16*j : 16*j+16] {
			weights = append(weights, absolute(v))
		}
		fits[j] = fitMinimum(x[16*j:16*j+16], weights, 3, -0.5, 15, absolute)
		if fits[j].scale > maxScale {
			maxScale = fits[j].scale
		}
		if fits[j].min > maxMin {
			maxMin = fits[j].min
		}
	}
	if maxScale > 0 {
		for j := range fits {
			block[j] = byte(nearestInt(15 / maxScale * fits[j].scale))
		}
		setF16(block[80:], maxScale/15)
	}
	if maxMin > 0 {
		for j := range fits {
			block[j] |= byte(nearestInt(15/maxMin*fits[j].min)) << 4
		}
		setF16(block[82:], maxMin/15)
	}
	for j, f := range fits {
		step, least := f16(block[80:])*float32(block[j]&15), float32(f16(block[82:])*float32(block[j]>>4))
		for i, l := range f.codes {
			if step != 0 {
				l = max(0, min(3, nearestInt((x[16*j+i]+least)/step)))
			}
			at := 16*j + i
			block[16+at/128*32+at%32] |= byte(l) << (at % 128 / 32 * 2)
		}
	}
}

// referenceQ3 is quantize_row_q3_K_ref.
func referenceQ3(block []byte, x []float32) {
	var fits [16]fit
	top := float32(0) // the scale of largest magnitude
	for j := range fits {
		fits[j] = fitStepwise(x[16*j : 16*j+16])
		if absolute(fits[j].scale) > absolute(top) {
			top = fits[j].scale
		}
	}
	scales := make([]int8, 16)
	for j := range scales {
		if top == 0 {
			scales[j] = -32
			continue
		}
		l := max(-32, min(31, int8(nearestInt(-32/top*fits[j].scale)))) + 32
		scales[j] = l - 32
		block[96+j%8] |= byte(l&15) << (j / 8 * 4)
		block[104+j%4] |= byte(l>>4) << (j / 4 * 2)
	}
	if top != 0 {
		setF16(block[108:], 1/(-32/top))
	}
	for j, f := range fits {
		step := f16(block[108:]) * float32(scales[j])
		for i, l := range f.codes {
			if step != 0 {
				l = max(-4, min(3, nearestInt(x[16*j+i]/step)))
			}
			at, q := 16*j+i, byte(l+4)
			block[at%32] |= q >> 2 << (at / 32)
			block[32+at/128*32+at%32] |= q & 3 << (at % 128 / 32 * 2)
		}
	}
}

// fitStepwise is make_q3_quants(16, 4, …, true); its codes are without the 4 that is added to them.
func fitStepwise(x []float32) fit {
	codes, top := make([]int, len(x)), largest(x)
	if absolute(top) < float32(1e-15) {
		for i := range codes {
			codes[i] = -4
		}
		return fit{codes: codes}
	}
	sumLX, sumL2 := float32(0), float32(0)
	for i, v := range x {
		codes[i] = max(-4, min(3, nearestInt(-4/top*v)))
		l, w := float32(codes[i]), v*v
		sumLX += float32(float32(w*v) * l)
		sumL2 += float32(float32(w*l) * l)
	}
	for range 5 {
		for i, v := range x {
			l, w := float32(codes[i]), v*v
			otherLX := sumLX - float32(float32(w*v)*l)
			if !(otherLX > 0) {
				continue
			}
			otherL2 := sumL2 - float32(float32(w*l)*l)
			next := max(-4, min(3, nearestInt(float32(v*otherL2)/otherLX)))
			if next == codes[i] {
				continue
			}
			otherLX += float32(float32(w*v) * float32(next))
			otherL2 += float32(float32(w*float32(next)) * float32(next))
			if otherL2 > 0 && float32(float32(otherLX*otherLX)*sumL2) > float32(float32(sumLX*sumLX)*otherL2) {
				codes[i], sumLX, sumL2 = next, otherLX, otherL2
			}
		}
	}
	if !(sumL2 > 0) {
		return fit{codes: codes}
	}
	return fit{scale: sumLX / sumL2, codes: codes}
}

// referenceQ6 is quantize_row_q6_K_ref.
func referenceQ6(block []byte, x []float32) {
	var fits [16]fit
	top := float32(0) // the scale of largest magnitude
	for j := range fits {
		fits[j] = fitSymmetric(x[16*j : 16*j+16])
		if math.Abs(float64(fits[j].scale)) > math.Abs(float64(top)) {
			top = fits[j].scale
		}
	}
	if !(math.Abs(float64(top)) >= float64(float32(1e-15))) {
		return
	}
	inverse := -128 / top
	setF16(block[208:], 1/inverse)
	for j, f := range fits {
		scale := int8(min(127, nearestInt(inverse*f.scale)))
		block[192+j] = byte(scale)
		step := f16(block[208:]) * float32(scale)
		for i, l := range f.codes {
			if step != 0 {
				l = max(-32, min(31, nearestInt(x[16*j+i]/step)))
			}
			at, q := 16*j+i, byte(l+32)
			half, quarter, place := at/128, at%128/32, at%32
			block[64*half+32*(quarter%2)+place] |= q & 15 << (quarter / 2 * 4)
			block[128+32*half+place] |= q >> 4 << (2 * quarter)
		}
	}
}

// fitSymmetric is make_qx_quants(16, 32, …, 1, NULL); its codes are without the 32 that is
// added to them.
func fitSymmetric(x []float32) fit {
	codes := make([]int, len(x))
	top := largest(x)
	if math.Abs(float64(top)) < float64(float32(1e-15)) {
		for i := range codes {
			codes[i] = -32
		}
		return fit{codes: codes}
	}
	try := func(inverse float32) (sumLX, sumL2 float32) {
		for _, v := range x {
			l := float32(max(-32, min(31, nearestInt(inverse*v))))
			w := v * v
			sumLX += float32(float32(w*v) * l)
			sumL2 += float32(float32(w*l) * l)
		}
		return sumLX, sumL2
	}
	take := func(inverse float32) {
		for i, v := range x {
			codes[i] = max(-32, min(31, nearestInt(inverse*v)))
		}
	}
	inverse, scale := -32/top, float32(0)
	sumLX, sumL2 := try(inverse)
	take(inverse)
	if sumL2 != 0 {
		scale = sumLX / sumL2
	}
	best := scale * sumLX
	for is := -9; is <= 9; is++ {
		inverse = -(32 + float32(0.1*float32(is))) / top
		sumLX, sumL2 = try(inverse)
		if is != 0 && sumL2 > 0 && float32(sumLX*sumLX) > float32(best*sumL2) {
			take(inverse)
			scale = sumLX / sumL2
			best = scale * sumLX
		}
	}
	return fit{scale: scale, codes: codes}
}
