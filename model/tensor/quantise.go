package tensor

import (
	"fmt"
	"math"

	"dsmoe/model/internal/kernel"
)

// Quantiser encodes numbers in a block type, byte for byte as ggml's reference encoder
// does without an importance matrix. It is safe for concurrent use.
type Quantiser struct {
	To DType // Q4_0, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K or Q6_K
}

// NewQuantiser prepares the conversion, or says that there is none: of the block types,
// MXFP4 is only read.
func NewQuantiser(to DType) (*Quantiser, error) {
	if !to.Quantises() {
		return nil, fmt.Errorf("nothing can be quantised to dtype %s", to)
	}
	return &Quantiser{to}, nil
}

// Quantises says whether there is a Quantiser to d.
func (d DType) Quantises() bool { return int(d) < len(encoders) && encoders[d] != nil }

// Convert encodes x, whole blocks, into dst, which has room for exactly them, and adds to
// lost what that does to them: block after block, so that the sums do not depend on how a
// tensor is cut. A block of a number that is infinite or NaN is not defined; such numbers
// are counted.
func (q *Quantiser) Convert(dst []byte, x []float32, lost *Loss) {
	var decoded [256]float32
	elements, bytes := q.To.Block()
	encode, format := encoders[q.To], blockFormats[q.To]
	y := decoded[:elements]
	for ; len(x) > 0; x, dst = x[elements:], dst[bytes:] {
		encode(dst[:bytes:bytes], x[:elements:elements])
		kernel.Widen(y, dst[:bytes], format)
		lost.quantised(y, x[:elements])
	}
}

// quantised adds what a block of x lost when it became y: errors are rounded to float32,
// their squares are summed in float64, four sums at a time.
func (l *Loss) quantised(y, x []float32) {
	const sign, infinite = 1 << 31, 0x7f800000
	wasX, wasY := x, y
	var s0, s1, s2, s3, e0, e1, e2, e3 float64
	largest, left := uint32(0), uint32(0)
	for ; len(x) >= 4 && len(y) >= 4; x, y = x[4:], y[4:] {
		d0, d1, d2, d3 := y[0]-x[0], y[1]-x[1], y[2]-x[2], y[3]-x[3]
		left |= math.Float32bits(y[0]) | math.Float32bits(y[1]) | math.Float32bits(y[2]) | math.Float32bits(y[3])
		largest = max(largest, math.Float32bits(d0)&^sign, math.Float32bits(d1)&^sign, math.Float32bits(d2)&^sign, math.Float32bits(d3)&^sign)
		v0, v1, v2, v3 := float64(x[0]), float64(x[1]), float64(x[2]), float64(x[3])
		s0, s1, s2, s3 = s0+float64(v0*v0), s1+float64(v1*v1), s2+float64(v2*v2), s3+float64(v3*v3)
		v0, v1, v2, v3 = float64(d0), float64(d1), float64(d2), float64(d3)
		e0, e1, e2, e3 = e0+float64(v0*v0), e1+float64(v1*v1), e2+float64(v2*v2), e3+float64(v3*v3)
	}
	switch {
	case largest >= infinite: // it is in no sum
		source := NotFiniteValues(wasX)
		l.NotFinite += source
		if source == 0 {
			l.Overflow += max(1, NotFiniteValues(wasY))
		}
		return
	case left&^sign == 0:
		l.Flushed += nonzero(wasX)
	}
	l.Squares += s0 + s1 + (s2 + s3)
	l.Errors += e0 + e1 + (e2 + e3)
	l.Largest = max(l.Largest, float64(math.Float32frombits(largest)))
}

// NotFiniteValues counts the numbers that are infinite or NaN.
func NotFiniteValues(x []float32) (n int64) {
	for _, v := range x {
		if v-v != 0 {
			n++
		}
	}
	return n
}

// nonzero counts the numbers that are not zero.
func nonzero(x []float32) (n int64) {
	for _, v := range x {
		if v != 0 {
			n++
		}
	}
	return n
}

// eachDecoded calls f for parts of what the blocks of data stand for.
func (d DType) eachDecoded(data []byte, f func(x []float32)) {
	var room [piece]float32
	for len(data) > 0 {
		n := min(piece, d.Elements(int64(len(data))))
		part := data[:d.Bytes(n)]
		kernel.Widen(room[:n], part, blockFormats[d])
		f(room[:n])
		data = data[len(part):]
	}
}

// DequantiseBlocks decodes the blocks of src, of a block type, into dst, of F32, F16 or BF16,
// rounding to nearest, ties to even, and counts what is lost.
func DequantiseBlocks(dst, src []byte, from, to DType) (lost Loss) {
	narrow, _ := to.Format()
	from.eachDecoded(src, func(x []float32) {
		out := dst[:to.Bytes(int64(len(x)))]
		kernel.Narrow(out, x, narrow)
		if zero, infinite := census(out, narrow); zero+infinite > 0 {
			had := NotFiniteValues(x)
			lost.NotFinite += had
			lost.Overflow += infinite - had
			lost.Flushed += zero - (int64(len(x)) - nonzero(x))
		}
		dst = dst[len(out):]
	})
	return lost
}
