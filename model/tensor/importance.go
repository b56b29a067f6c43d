package tensor

// The encoders with importance: the functions quantize_row_…_impl of ggml-quants.c, which weight the
// error of each number with the importance of its column.

import (
	"encoding/binary"
	"math"

	"dsmoe/model/internal/kernel"
)

// encodeRow encodes a row of whole blocks of a type that Weighs, with the importance of each column.
func (d DType) encodeRow(dst []byte, x, importance []float32) {
	switch d {
	case Q4_0, Q4_1, Q5_0, Q5_1:
		encodeSmallBlocks(dst, x, importance, d)
		return
	}
	var room [2 * 256]float32
	for len(x) > 0 {
		n := min(d.encodedAtOnce(), len(x))
		block, part, weights := dst[:d.Bytes(int64(n))], x[:n], room[:n]
		for i := 0; i < n; i += 256 {
			d.weights(weights[i:i+256], part[i:i+256], importance[i:], 0)
		}
		switch d {
		case Q6_K:
			encodeQ6_K(block, part, weights)
		case Q2_K:
			encodeWeightedQ2_K(block, part, weights)
		case Q3_K:
			encodeWeightedQ3_K(block, part, weights)
		default:
			encodeWeightedMinimums(block, part, weights, d)
		}
		x, importance, dst = x[n:], importance[n:], dst[len(block):]
	}
}

// weights sets dst to the weights of the numbers of a block; variance is the row's, for blocks of 32.
func (d DType) weights(dst, x, importance []float32, variance float32) {
	switch d {
	case Q6_K:
		copy(dst, importance)
	case Q2_K:
		weigh(dst, x, importance, squareSum(x)/256)
	case Q3_K, Q4_K, Q5_K:
		weigh(dst, x, importance, 2*squareSum(x)/256)
	default:
		weigh(dst, x, importance, variance)
	}
}

// squareSum is Σx².
func squareSum(x []float32) (sum float32) {
	for _, v := range x {
		sum += float32(v * v)
	}
	return sum
}

// weigh sets the weights importance·√(variance + x²).
func weigh(weights, x, importance []float32, variance float32) {
	for i, v := range x {
		weights[i] = importance[i] * float32(math.Sqrt(float64(variance+float32(v*v))))
	}
}

// The searches of make_qkx3_quants and make_qx_quants.
var (
	weightedQ2_K = newSearch(3, -0.9, 0.05, 36)
	weightedQ4_K = newSearch(15, -0.9, 0.05, 36)
	weightedQ5_K = newSearch(31, -0.9, 0.05, 36)
	triesQ3_K    = symmetricTries(4)
	triesQ4_0    = symmetricTries(8)
	triesQ5_0    = symmetricTries(16)
)

// encodeWeightedQ2_K is quantize_row_q2_K_impl.
func encodeWeightedQ2_K(dst []byte, x, weights []float32) {
	e := encoding.Get().(*encoder)
	defer encoding.Put(e)
	fit := &e.fit
	fit.SetNumbers(x, 16)
	fit.SetWeights(weights, 16)
	fit.Minimums(16, weightedQ2_K.most, weightedQ2_K.tries, false)
	sums, mins := partSums(weights, 16), fit.Low
	for p := range mins {
		mins[p] = -mins[p]
	}
	var ls, lm [16]byte
	PutF16(dst[80:], positiveScale(ls[:], fit.Scale[:], sums, 15))
	PutF16(dst[82:], positiveScale(lm[:], mins[:], sums, 15))
	for p := range ls {
		dst[p] = ls[p] | lm[p]<<4
	}
	e.packQ2_K(dst, x)
}

// partSums returns the sum of the weights of each part of n.
func partSums(weights []float32, n int) (sums []float32) {
	for p := 0; p < len(weights); p += n {
		sum := float32(0)
		for _, w := range weights[p:][:n] {
			sum += w
		}
		sums = append(sums, sum)
	}
	return sums
}

// positiveScale is make_qp_quants: it sets l to the codes, 0 … most, of positive x, and returns the scale
// with the least weighted sum of squared errors that it finds.
func positiveScale(l []byte, x, weights []float32, most int32) float32 {
	top := float32(0)
	for _, v := range x {
		if !(top > v) {
			top = v
		}
	}
	clear(l)
	if top < kernel.LeastGroup {
		return 0
	}
	per := positivePer(x, weights, most, top)
	var lx, l2 float32
	for i, v := range x {
		code := min(most, kernel.Nearest(per*v))
		l[i] = byte(code)
		lx += float32(float32(weights[i]*v) * float32(code))
		l2 += float32(float32(weights[i]*float32(code)) * float32(code))
	}
	for changed, turn := true, 0; changed && turn < 5; turn++ {
		changed = false
		for i, v := range x {
			w, code := weights[i], float32(l[i])
			wv := float32(w * v)
			s, q := lx-float32(wv*code), l2-float32(float32(w*code)*code)
			if !(s > 0 && q > 0) {
				continue
			}
			next := min(most, kernel.Nearest(float32(v*q)/s))
			if next == int32(l[i]) {
				continue
			}
			s += float32(wv * float32(next))
			q += float32(float32(w*float32(next)) * float32(next))
			if float32(float32(s*s)*l2) > float32(float32(lx*lx)*q) {
				l[i], lx, l2, changed = byte(next), s, q, true
			}
		}
	}
	if l2 > 0 {
		return lx / l2
	}
	return 0
}

// positivePer is the first half of make_qp_quants: the inverse scale with the least weighted error.
func positivePer(x, weights []float32, most int32, top float32) (per float32) {
	best := float32(0)
	for i := -5; i <= 4; i++ { // -5 stands for 0, the first
		try := (float32(0.1*float32(i)) + float32(most)) / top
		if i == 0 {
			continue
		}
		if i == -5 {
			try = float32(most) / top
		}
		scale, sum := 1/try, float32(0)
		for k, v := range x {
			code := kernel.Nearest(try * v)
			if i == -5 {
				code = int32(byte(code))
			} else {
				code = min(most, code)
			}
			diff := v - float32(scale*float32(code))
			sum += float32(float32(weights[k]*diff) * diff)
		}
		if i == -5 || sum < best {
			per, best = try, sum
		}
	}
	return per
}

// encodeWeightedMinimums is quantize_row_q4_K_impl and quantize_row_q5_K_impl of one or two blocks.
func encodeWeightedMinimums(dst []byte, x, weights []float32, d DType) {
	s := weightedQ4_K
	if d == Q5_K {
		s = weightedQ5_K
	}
	e := encoding.Get().(*encoder)
	defer encoding.Put(e)
	fit := &e.fit
	fit.SetNumbers(x, 32)
	fit.SetWeights(weights, 32)
	fit.Minimums(32, s.most, s.tries, false)
	sums, mins := partSums(weights, 32), fit.Low
	for p := range mins {
		mins[p] = -mins[p]
	}
	for g := 0; len(x) > 0; g += 8 {
		var ls, lm [8]byte
		PutF16(dst, positiveScale(ls[:], fit.Scale[g:g+8], sums[g:], 63))
		PutF16(dst[2:], positiveScale(lm[:], mins[g:g+8], sums[g:], 63))
		clear(dst[4:16])
		for j := range ls {
			putScaleMin(dst, j, ls[j], lm[j])
		}
		e.packMinimums(dst, x, s.most, g, d)
		x, dst = x[256:], dst[d.Bytes(256):]
	}
}

// encodeWeightedQ3_K is quantize_row_q3_K_impl.
func encodeWeightedQ3_K(dst []byte, x, weights []float32) {
	e := encoding.Get().(*encoder)
	defer encoding.Put(e)
	fit := &e.fit
	fit.SetNumbers(x, 16)
	fit.SetWeights(weights, 16)
	fit.Symmetric(16, 4, triesQ3_K)
	scales, pers := fit.Scale, fit.Per
	clear(dst[96:110])
	sums := partSums(weights, 16)
	for p, scale := range scales {
		fit.X[p][0], fit.W[p][0] = scale, sums[p]
	}
	fit.Symmetric(16, 32, triesQ6_K)
	PutF16(dst[108:], fit.Scale[0])
	for p, scale := range scales {
		putScaleQ3(dst[96:108], p, symmetricCode(fit.Per[0], scale, 32))
	}
	e.nearestQ3(dst, x)
	e.codeUnscaled(func(p, i int) byte { return symmetricCode(pers[p], x[i], 4) })
	packQ3_K(dst, &e.lines.Codes)
}

// symmetricCode is the code of v, plus most, as make_qx_quants has it: 0 in a group that is all zero.
func symmetricCode(per, v float32, most int32) byte {
	if per == 0 {
		return 0
	}
	return byte(kernel.Clamp(kernel.Nearest(per*v), -most, most-1) + most)
}

// encodeSmallBlocks is quantize_row_q4_0_impl, and that of Q4_1, Q5_0 and Q5_1,
// kernel.FitGroups blocks at a time.
func encodeSmallBlocks(dst []byte, x, importance []float32, d DType) {
	e := encoding.Get().(*encoder)
	defer encoding.Put(e)
	fit := &e.fit
	_, size := d.Block()
	variance := squareSum(x) / float32(len(x))
	var weights [32 * kernel.FitGroups]float32
	for len(x) > 0 {
		n := min(len(weights), len(x))
		weigh(weights[:n], x[:n], importance, variance)
		fit.SetNumbers(x[:n], 32)
		fit.SetWeights(weights[:n], 32)
		switch d {
		case Q4_0:
			fit.Symmetric(32, 8, triesQ4_0)
		case Q5_0:
			fit.Symmetric(32, 16, triesQ5_0)
		case Q4_1:
			fit.Minimums(32, weightedQ4_K.most, weightedQ4_K.tries, false)
		default:
			fit.Minimums(32, weightedQ5_K.most, weightedQ5_K.tries, false)
		}
		for g := range n / 32 {
			packSmallBlock(dst[:size], x[32*g:][:32], fit, g, d)
			dst = dst[size:]
		}
		x, importance = x[n:], importance[n:]
	}
}

// packSmallBlock sets a block of Q4_0, Q4_1, Q5_0 or Q5_1 to the fit of a group.
func packSmallBlock(dst []byte, x []float32, fit *kernel.Fit, g int, d DType) {
	var l [32]byte
	PutF16(dst, fit.Scale[g])
	switch most := int32(8); d {
	case Q4_1, Q5_1:
		PutF16(dst[2:], fit.Low[g])
		for j, v := range x {
			l[j] = byte(kernel.Clamp(kernel.Nearest(fit.Per[g]*(v-fit.From[g])), 0, int32(weighings[d].most)))
		}
	case Q5_0:
		most = 16
		fallthrough
	default:
		for j, v := range x {
			l[j] = symmetricCode(fit.Per[g], v, most)
		}
	}
	codes, high := dst[len(dst)-16:], uint32(0)
	for j := range codes {
		codes[j] = l[j]&15 | l[j+16]&15<<4
		high |= uint32(l[j]>>4)<<j | uint32(l[j+16]>>4)<<(j+16)
	}
	if d == Q5_0 || d == Q5_1 {
		binary.LittleEndian.PutUint32(dst[len(dst)-20:], high)
	}
}
