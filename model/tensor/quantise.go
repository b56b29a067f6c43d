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

// Convert encodes x, whole blocks of finite numbers, into dst, which has room for exactly
// them, and adds to lost what that does to them: block after block, so that the sums do
// not depend on how a tensor is cut.
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

// quantised adds what a block of x lost when it became y.
func (l *Loss) quantised(y, x []float32) {
	var squares, errors [4]float64
	largest, left := float64(0), uint32(0)
	for i := 0; i+4 <= len(x) && i+4 <= len(y); i += 4 {
		a, b := (*[4]float32)(x[i:]), (*[4]float32)(y[i:])
		for k, v := range a {
			e := float64(b[k]) - float64(v)
			left |= math.Float32bits(b[k])
			squares[k] += float64(float64(v) * float64(v))
			errors[k] += float64(e * e)
			largest = max(largest, math.Abs(e))
		}
	}
	square, sum := squares[0]+squares[1]+(squares[2]+squares[3]), errors[0]+errors[1]+(errors[2]+errors[3])
	switch {
	case sum-sum != 0: // it is in no sum
		l.Overflow += NotFiniteValues(y)
		return
	case left<<1 == 0:
		l.Flushed += nonzero(x)
	}
	l.Squares += square
	l.Errors += sum
	l.Largest = max(l.Largest, largest)
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

// DequantiseBlocks decodes the blocks of src, of a block type, into dst, of F32, F16 or BF16,
// rounding to nearest, ties to even, and counts what is lost.
func DequantiseBlocks(dst, src []byte, from, to DType) (lost Loss) {
	var room [piece]float32
	narrow, _ := to.Format()
	for len(src) > 0 {
		n := min(piece, from.Elements(int64(len(src))))
		x, in, out := room[:n], src[:from.Bytes(n)], dst[:to.Bytes(n)]
		kernel.Widen(x, in, blockFormats[from])
		kernel.Narrow(out, x, narrow)
		if zero, infinite := census(out, narrow); zero+infinite > 0 {
			had := NotFiniteValues(x)
			lost.NotFinite += had
			lost.Overflow += infinite - had
			lost.Flushed += zero - (n - nonzero(x))
		}
		src, dst = src[len(in):], dst[len(out):]
	}
	return lost
}
