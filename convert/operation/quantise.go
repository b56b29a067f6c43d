package operation

import (
	"fmt"
	"math"

	"dsmoe/model/tensor"
	"dsmoe/text"
)

// Quantise encodes F32, F16, BF16 or FP8 with scales in blocks of a type of ggml. Numbers of
// FP8 are multiplied with their scales and rounded to F32 first, as Dequantise does. A number
// that is infinite or NaN is refused: a block has no place for it.
type Quantise struct {
	From tensor.DType `json:"from"`          // dtype of the source
	To   tensor.DType `json:"to"`            // dtype of the output
	FP8  *Dequantise  `json:"fp8,omitempty"` // what makes F32 of FP8; nil for other sources

	codec *tensor.Quantiser
}

// NewQuantise prepares the operation, or says why there is none. scales and b are those of
// an F8_E4M3 source.
func NewQuantise(from, to, scales tensor.DType, b tensor.Blocks) (*Quantise, error) {
	codec, err := tensor.NewQuantiser(to)
	if err != nil {
		return nil, err
	}
	q := &Quantise{From: from, To: to, codec: codec}
	switch {
	case from == tensor.F8E4M3:
		q.FP8, err = NewDequantise(tensor.F32, scales, b)
	case !from.Casts():
		err = fmt.Errorf("dtype %s cannot be quantised", from)
	}
	return q, err
}

// Name returns "quantise" and the dtype of the output.
func (q *Quantise) Name() string { return "quantise " + q.To.String() }

// Unit returns a block.
func (q *Quantise) Unit() Unit {
	elements, bytes := q.To.Block()
	return Unit{elements, int(q.From.Bytes(int64(elements))), bytes}
}

// Sides returns the rows of the scales of FP8 that the elements need.
func (q *Quantise) Sides(at, n int64) []Span {
	if q.FP8 == nil {
		return nil
	}
	return q.FP8.Sides(at, n)
}

// NotFiniteError refuses to quantise numbers that are infinite or NaN.
type NotFiniteError struct {
	Count int64        // elements, of the first part of a tensor that has any
	DType tensor.DType // that has no such numbers
}

// Error says how many there are.
func (e *NotFiniteError) Error() string {
	return fmt.Sprintf("at least %s of the source: infinite or NaN, which %s cannot hold", text.Plural(int(e.Count), "element"), e.DType)
}

// Apply encodes every block.
func (q *Quantise) Apply(dst []byte, in Input, lost *tensor.Loss) error {
	widen, err := q.widen(in)
	if err != nil {
		return err
	}
	return q.each(in, widen, func(x []float32, _ int) error {
		size, before := q.To.Bytes(int64(len(x))), lost.NotFinite
		q.codec.Convert(dst[:size], x, lost)
		if n := lost.NotFinite - before; n > 0 {
			return &NotFiniteError{n, q.To}
		}
		dst = dst[size:]
		return nil
	})
}

// widening sets dst to the numbers of a piece from element from on, which lies at that place
// in the matrix.
type widening func(dst []float32, at int64, from int)

// numbersAtOnce is a whole number of blocks of every type, whose numbers a cache holds.
const numbersAtOnce = 2048

// each calls do for parts of the numbers of a piece, whole blocks, and for the index of
// their first.
func (q *Quantise) each(in Input, widen widening, do func(x []float32, first int) error) error {
	var room [numbersAtOnce]float32
	x, n := room[:0], int(q.From.Elements(int64(len(in.Data))))
	err := in.each(n, func(at int64, from, to int) error {
		for from < to {
			have, more := len(x), min(to-from, numbersAtOnce-len(x))
			x = x[:have+more]
			widen(x[have:], at, from)
			at, from = at+int64(more), from+more
			if len(x) < numbersAtOnce {
				continue
			}
			if err := do(x, from-len(x)); err != nil {
				return err
			}
			x = x[:0]
		}
		return nil
	})
	if err != nil || len(x) == 0 {
		return err
	}
	return do(x, n-len(x))
}

// widen returns what decodes the elements of a piece.
func (q *Quantise) widen(in Input) (widening, error) {
	if q.FP8 == nil {
		return func(dst []float32, _ int64, from int) {
			data := in.Data[q.From.Bytes(int64(from)):][:q.From.Bytes(int64(len(dst)))]
			tensor.Tensor{DType: q.From, Shape: []int{len(dst)}, Data: data}.Float32s(dst[:0])
		}, nil
	}
	scales, err := q.FP8.scales(in)
	return func(dst []float32, at int64, from int) {
		q.FP8.Blocks.Widen(dst, in.Data[from:from+len(dst)], int(at), q.FP8.rowsFrom(scales, in, at))
	}, err
}

// exact returns what decodes the elements of a piece by the definition of their dtype.
func (q *Quantise) exact(in Input) (widening, error) {
	if q.FP8 == nil {
		values := exactValues(q.From, in.Data)
		return func(dst []float32, _ int64, from int) { values(dst, from) }, nil
	}
	scales, err := q.FP8.scales(in)
	return func(dst []float32, at int64, from int) {
		p := products{q.FP8.Blocks, q.FP8.rowsFrom(scales, in, at), q.FP8.Blocks.GridRow(at), at, in.Data[from : from+len(dst)], valuesE4M3()}
		p.rounded(dst, 0)
	}, err
}

// Prove makes every block again, of the source's numbers by the definition of their dtype
// and by the formulas of ggml's reference encoder written down a second time, and demands
// the same bytes: scales, minimums and codes are the very ones that the type's definition
// gives.
func (q *Quantise) Prove(out []byte, in Input) error {
	widen, err := q.exact(in)
	if err != nil {
		return err
	}
	elements, size := q.To.Block()
	want, isRight := make([]byte, size), quickProofs[q.To]
	return q.each(in, widen, func(x []float32, first int) error {
		for i := 0; i < len(x); i += elements {
			got := out[:size]
			out = out[size:]
			if isRight != nil && isRight(got, x[i:i+elements]) {
				continue
			}
			referenceBlock(want, x[i:i+elements], q.To)
			if string(got) != string(want) {
				return differentBlock(q.To, first+i, got, want)
			}
		}
		return nil
	})
}

// quickProofs say of blocks of some types, at less cost than making them again, that they are
// the ones of x.
var quickProofs = map[tensor.DType]func(block []byte, x []float32) bool{tensor.Q8_0: isQ8}

// isQ8 says whether the scale is the F16 nearest to max|x|/127 and each code q the integer
// nearest to y, x times the reciprocal, half away from zero: |q| - ½ ≤ |y| < |q| + ½.
func isQ8(block []byte, x []float32) bool {
	most := uint32(0)
	for _, v := range x {
		most = max(most, math.Float32bits(v)&^(1<<31))
	}
	d := math.Float32frombits(most) / 127
	inverse := reciprocal(d)
	if inverse-inverse != 0 || !boundsF16().check(float64(d), block, 0, 0) {
		return false
	}
	codes, worst := (*[32]byte)(block[2:]), uint32(0)
	for i, v := range (*[32]float32)(x) {
		off := float32(v*inverse) - float32(int8(codes[i]))
		worst = max(worst, math.Float32bits(off)&^(1<<31))
	}
	half := math.Float32bits(0.5) // that a difference rounds to: it is looked at again
	return worst < half || worst == half && tiesAwayFromZero(codes, x, inverse)
}

// tiesAwayFromZero is isQ8's condition on codes, in numbers that are exact.
func tiesAwayFromZero(codes *[32]byte, x []float32, inverse float32) bool {
	right := true
	for i, b := range codes {
		q, y := float64(int8(b)), float64(float32(x[i]*inverse))
		if q < 0 {
			q, y = -q, -y
		}
		if q == 0 {
			y = math.Abs(y)
		}
		right = right && y-q >= -0.5 && y-q < 0.5
	}
	return right
}

// differentBlock names the first byte of a block that differs.
func differentBlock(d tensor.DType, element int, got, want []byte) *Mismatch {
	i := 0
	for got[i] == want[i] {
		i++
	}
	return &Mismatch{element, fmt.Sprintf("%02x in byte %d of its %s block", got[i], i, d), fmt.Sprintf("%02x", want[i])}
}
