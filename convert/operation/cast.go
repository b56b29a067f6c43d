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

// Prove demands the pattern that the value of the source's rounds to, or one of two that are as near. A cast to F32 must
// be exact.
func (c *Cast) Prove(out []byte, in Input) error {
	if c.To == tensor.F32 {
		return proveWidening(c.From, out, in.Data)
	}
	b, exact := boundsOf(c.To), exactValues(c.From, in.Data)
	var v [1]float32
	for i := range tensor.DoubtfulRoundings(out, c.To, in.Data, c.From) {
		if exact(v[:], i); !b.check(float64(v[0]), out, i, 0) {
			return &Mismatch{i, hexOf(out[2*i:][:2]), fmt.Sprint(v[0])}
		}
	}
	return nil
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

// proveWidening demands the F32 of every value, with the payload of NaN.
func proveWidening(from tensor.DType, out, src []byte) error {
	for i := range tensor.DoubtfulRoundings(out, tensor.F32, src, from) {
		got, value := binary.LittleEndian.Uint32(out[4*i:]), binary.LittleEndian.Uint16(src[2*i:])
		if got != widened(value, from) {
			return &Mismatch{i, fmt.Sprintf("%08x", got), fmt.Sprintf("%s %04x", from, value)}
		}
	}
	return nil
}

// widened returns the bits of the F32 that a pattern of F16 or BF16 stands for. A NaN keeps its payload.
func widened(pattern uint16, from tensor.DType) uint32 {
	value := valuesF16()[pattern]
	switch {
	case from == tensor.BF16:
		return uint32(pattern) << 16
	case value != value:
		return uint32(pattern&0x8000)<<16 | 0xff<<23 | uint32(pattern&0x3ff)<<13
	}
	return math.Float32bits(float32(value))
}
