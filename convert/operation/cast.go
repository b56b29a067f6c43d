package operation

import (
	"encoding/binary"
	"fmt"
	"math"

	"dsmoe/model/tensor"
)

// Cast rounds F32, F16 or BF16 to another of the three, to nearest, ties to even.
type Cast struct {
	From tensor.DType `json:"from"` // dtype of the source
	To   tensor.DType `json:"to"`   // dtype of the output

	codec *tensor.Cast
}

// NewCast prepares a cast; it refuses other dtypes.
func NewCast(from, to tensor.DType) (*Cast, error) {
	c, err := tensor.NewCast(from, to)
	if err != nil {
		return nil, err
	}
	return &Cast{from, to, c}, nil
}

// Name returns "cast" and the dtype of the output.
func (c *Cast) Name() string { return "cast " + c.To.String() }

// Unit returns one element.
func (c *Cast) Unit() unit { return unit{1, int(c.From.Bytes(1)), int(c.To.Bytes(1))} }

// Apply rounds every element.
func (c *Cast) Apply(dst []byte, in Input, lost *tensor.Loss) error {
	lost.Add(c.codec.Convert(dst, in.Data))
	return nil
}

// Prove decodes the written numbers and checks that the source's could have been rounded to
// them. A cast to F32 must be exact.
func (c *Cast) Prove(out []byte, in Input) error {
	if c.To == tensor.F32 {
		return proveWidening(c.From, out, in.Data)
	}
	exact := exactValues(c.From, in.Data)
	return boundsOf(c.To).checkAll(out, int(c.From.Elements(int64(len(in.Data)))), 0,
		func(i int) float64 {
			var v [1]float32
			exact(v[:], i)
			return float64(v[0])
		}, exact)
}

// exactValues returns a function that sets v to the values of the elements of src from i
// on, by the definition of their dtype.
func exactValues(from tensor.DType, src []byte) func(v []float32, i int) {
	switch from {
	case tensor.F32:
		return func(v []float32, i int) {
			for k := range v {
				v[k] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*(i+k):]))
			}
		}
	case tensor.BF16:
		return func(v []float32, i int) {
			for k := range v {
				v[k] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*(i+k):])) << 16)
			}
		}
	}
	values := valuesF16()
	return func(v []float32, i int) {
		for k := range v {
			v[k] = float32(values[binary.LittleEndian.Uint16(src[2*(i+k):])])
		}
	}
}

// proveWidening narrows every F32 and demands the source to the bit.
func proveWidening(from tensor.DType, out, src []byte) error {
	for i := range len(src) / 2 {
		got, want := binary.LittleEndian.Uint32(out[4*i:]), binary.LittleEndian.Uint16(src[2*i:])
		same := got == uint32(want)<<16
		if from == tensor.F16 {
			same = narrows(got, want)
		}
		if !same {
			return &Mismatch{i, fmt.Sprintf("%08x", got), fmt.Sprintf("%s %04x", from, want)}
		}
	}
	return nil
}

// narrows reports whether F32 bits are the value of an F16, with its NaN's payload.
func narrows(got uint32, want uint16) bool {
	v := float64(math.Float32frombits(got))
	abs := int(want & 0x7fff)
	switch {
	case got>>31 != uint32(want>>15):
		return false
	case abs == 0x7c00:
		return math.IsInf(v, 0)
	case abs > 0x7c00:
		return v != v && got&0x7fffff == uint32(want&0x3ff)<<13
	}
	return math.Abs(v) == magnitude(abs, tensor.F16)
}
