package operation

import (
	"errors"
	"fmt"
	"slices"

	"dsmoe/model/tensor"
	"dsmoe/text"
)

// Quantise encodes F32, F16, BF16 or codes with scales in blocks of a type of ggml. Codes
// are multiplied with their scales and rounded to F32 first, as Dequantise does. A number
// that is infinite or NaN is refused: a block has no place for it.
type Quantise struct {
	From   tensor.DType `json:"from"`          // dtype of the source
	To     tensor.DType `json:"to"`            // dtype of the output
	Scaled *Dequantise  `json:"fp8,omitempty"` // what makes F32 of codes; nil for other sources

	Importance *Importance `json:"importance,omitempty"` // of the output's columns; nil for none

	codec *tensor.Quantiser
}

// Importance weights the error of each number of a tensor with the importance of its column, which each
// matrix of the tensor has its own of.
type Importance struct {
	File   string `json:"imatrix"` // hash of the importance matrix
	Entry  string `json:"entry"`   // its entry
	Row    int    `json:"row"`     // elements of a row
	Matrix int    `json:"matrix"`  // elements of a matrix

	// Read sets dst to the importance of values from first on. The values of matrix m begin at m·Row.
	Read func(dst []float32, first int) error `json:"-"`
}

// NewQuantise prepares the operation; it refuses other dtypes. s describes the scales of a source
// of codes.
func NewQuantise(from, to tensor.DType, s tensor.Scaling) (*Quantise, error) {
	codec, err := tensor.NewQuantiser(to)
	if err != nil {
		return nil, err
	}
	q := &Quantise{From: from, To: to, codec: codec}
	switch {
	case from.Scaled():
		q.Scaled, err = NewDequantise(from, tensor.F32, s)
	case !from.Casts():
		err = fmt.Errorf("dtype %s cannot be quantised", from)
	}
	return q, err
}

// Name returns "quantise" and the dtype of the output.
func (q *Quantise) Name() string { return "quantise " + q.To.String() }

// Unit returns a block, or a row with importance.
func (q *Quantise) Unit() unit {
	elements, _ := q.To.Block()
	if q.Importance != nil {
		elements = q.Importance.Row
	}
	n := int64(elements)
	return unit{elements, int(q.From.Bytes(n)), int(q.To.Bytes(n))}
}

// Sides returns the rows of the scales that the elements need.
func (q *Quantise) Sides(at, n int64) []Span {
	if q.Scaled == nil {
		return nil
	}
	return q.Scaled.Sides(at, n)
}

// Places returns where the elements of the source and its sides lie.
func (q *Quantise) Places() *tensor.Placement {
	if q.Scaled == nil {
		return &tensor.Placement{}
	}
	return q.Scaled.Places()
}

// notFiniteError refuses to quantise numbers that are infinite or NaN.
type notFiniteError struct {
	Count int64        // elements, of the first part of a tensor that has any
	DType tensor.DType // that has no such numbers
}

// Error counts the elements.
func (e *notFiniteError) Error() string {
	what := "which %s cannot hold"
	if e.DType.Scaled() {
		what = "for which a block of %s has no scale"
	}
	return fmt.Sprintf("at least %s of the source: infinite or NaN, "+what,
		text.Plural(int(e.Count), "element"), e.DType)
}

// Apply encodes every block.
func (q *Quantise) Apply(dst []byte, in Input, lost *tensor.Loss) error {
	w := columns{matrix: -1}
	return q.each(in, func(x []float32, first int) error {
		size := q.To.Bytes(int64(len(x)))
		if err := q.encode(dst[:size], x, first, in.Into, &w, lost); err != nil {
			return err
		}
		dst = dst[size:]
		return nil
	})
}

// columns is the importance of the columns of the matrix that was encoded last.
type columns struct {
	matrix int64
	values []float32
}

// encode sets dst to the blocks of x, which begins with element first of a piece, and is a row if it has importance. A
// block with a number more than half a step away is a *Mismatch: numbers beyond 10⁸, whose fourth powers overflow in
// ggml's encoder, can give one.
func (q *Quantise) encode(dst []byte, x []float32, first int, into int64, w *columns, lost *tensor.Loss) error {
	var err error
	before := lost.NotFinite
	if i := q.Importance; i == nil {
		err = q.codec.Convert(dst, x, lost)
	} else {
		if matrix := (into + int64(first)) / int64(i.Matrix); matrix != w.matrix {
			w.matrix, w.values = matrix, make([]float32, i.Row)
			err = i.Read(w.values, int(matrix)*i.Row)
		}
		if err == nil {
			err = q.codec.ConvertRow(dst, x, w.values, lost)
		}
	}
	if n := lost.NotFinite - before; n > 0 {
		return &notFiniteError{n, q.To}
	}
	var beyond *tensor.BeyondError
	if errors.As(err, &beyond) {
		return &Mismatch{first + beyond.Element, fmt.Sprintf("%v in its %s block", beyond.Block, q.To),
			fmt.Sprint(beyond.Source)}
	}
	return err
}

// numbersAtOnce is a whole number of blocks of every type; that many numbers fit in a cache.
const numbersAtOnce = 2048

// each calls do for parts of the numbers of a piece, whole blocks or, with importance, rows, and for the
// index of their first.
func (q *Quantise) each(in Input, do func(x []float32, first int) error) error {
	most := numbersAtOnce
	if q.Importance != nil {
		most = q.Importance.Row
	}
	x, n := make([]float32, 0, most), int(q.From.Elements(int64(len(in.Data))))
	err := q.parts(in, n, func(p part) error {
		for p.from < p.to {
			have, more := len(x), min(p.to-p.from, most-len(x))
			x = x[:have+more]
			if q.Scaled == nil {
				data := in.Data[q.From.Bytes(int64(p.from)):][:q.From.Bytes(int64(more))]
				tensor.Tensor{DType: q.From, Shape: []int{more}, Data: data}.Float32s(x[have:have])
			} else {
				q.From.Form().Widen(x[have:], codesAt(q.From, in.Data, p.from), int(p.at), p.blocks, p.grid)
			}
			if p = p.after(more); len(x) < most {
				continue
			}
			if err := do(x, p.from-len(x)); err != nil {
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

// parts calls do for the parts of the n elements of a piece: without scales, it is one.
func (q *Quantise) parts(in Input, n int, do func(p part) error) error {
	if q.Scaled == nil {
		return do(part{to: n, blocks: tensor.Blocks{Rows: 1, Cols: n, BlockRows: 1, BlockCols: n}})
	}
	grid, err := q.Scaled.grid(in)
	if err != nil {
		return err
	}
	return q.Scaled.parts(in, n, grid, do)
}

// Prove encodes every block again and demands the same bytes. Apply already checked that each
// number is within the bounds of its block; Prove finds bytes of the source or the output
// that changed since.
func (q *Quantise) Prove(out []byte, in Input) error {
	var room []byte
	w := columns{matrix: -1}
	return q.each(in, func(x []float32, first int) error {
		room = slices.Grow(room[:0], int(q.To.Bytes(int64(len(x)))))
		again, lost := room[:q.To.Bytes(int64(len(x)))], tensor.Loss{}
		if err := q.encode(again, x, first, in.Into, &w, &lost); err != nil {
			return err
		}
		got := out[:len(again)]
		out = out[len(again):]
		elements, size := q.To.Block()
		for i := 0; i < len(again) && string(got) != string(again); i += size {
			at := 0
			for at < size && got[i+at] == again[i+at] {
				at++
			}
			if at < size {
				return &Mismatch{first + i/size*elements, fmt.Sprintf("%02x in byte %d of its %s block", got[i+at], at, q.To),
					fmt.Sprintf("%02x", again[i+at])}
			}
		}
		return nil
	})
}
