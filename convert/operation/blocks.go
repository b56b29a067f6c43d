package operation

import (
	"fmt"
	"math"
	"strings"

	"dsmoe/model/tensor"
)

// DequantiseBlocks turns blocks of a type of ggml into F32, and rounds that to F16 or BF16.
type DequantiseBlocks struct {
	From tensor.DType `json:"from"` // dtype of the source
	To   tensor.DType `json:"to"`   // dtype of the output
}

// NewDequantiseBlocks prepares the operation, or says why there is none.
func NewDequantiseBlocks(from, to tensor.DType) (*DequantiseBlocks, error) {
	if !from.Blocked() {
		return nil, fmt.Errorf("dtype %s has no blocks", from)
	}
	if !to.Casts() {
		return nil, fmt.Errorf("%s cannot be dequantised to %s", from, to)
	}
	return &DequantiseBlocks{from, to}, nil
}

// Name returns "q8_0-dequantise", or of another type, and the dtype of the output.
func (d *DequantiseBlocks) Name() string {
	return strings.ToLower(d.From.String()) + "-dequantise " + d.To.String()
}

// Unit returns a block.
func (d *DequantiseBlocks) Unit() Unit {
	elements, bytes := d.From.Block()
	return Unit{elements, bytes, int(d.To.Bytes(int64(elements)))}
}

// Sides returns nothing: blocks hold their scales.
func (*DequantiseBlocks) Sides(_, _ int64) []Span { return nil }

// Apply decodes every block.
func (d *DequantiseBlocks) Apply(dst []byte, in Input, lost *tensor.Loss) error {
	lost.Add(tensor.DequantiseBlocks(dst, in.Data, d.From, d.To))
	return nil
}

// Prove decodes every element by the definition of the type, one by one, and asks whether
// what that gives, rounded to F32, could have been rounded to what was written.
func (d *DequantiseBlocks) Prove(out []byte, in Input) error {
	elements, size := d.From.Block()
	exact := func(i int) float64 {
		return float64(float32(blockValue(d.From, in.Data[i/elements*size:][:size], i%elements)))
	}
	return boundsOf(d.To).checkAll(out, int(d.From.Elements(int64(len(in.Data)))), 0, exact, func(v []float32, i int) {
		for k := range v {
			v[k] = float32(exact(i + k))
		}
	})
}

// blockValue is what element i of a block stands for, by the definition of its dtype in
// ggml: a product, or a difference of two, that float64 holds exactly.
func blockValue(d tensor.DType, b []byte, i int) float64 {
	scale := func(at int) float64 { return float64(f16(b[at:])) }
	low := func(at int) int { return int(b[at+i%16] >> (i / 16 * 4) & 15) } // of 32 codes in 16 bytes
	fifth := func(at int) int { return int(b[at+i/8]>>(i%8)&1) << 4 }
	switch d {
	case tensor.Q8_0:
		return float64(int8(b[2+i])) * scale(0)
	case tensor.Q4_0:
		return float64(low(2)-8) * scale(0)
	case tensor.Q5_0:
		return float64(low(6)+fifth(2)-16) * scale(0)
	case tensor.Q5_1:
		return float64(float64(low(8)+fifth(4))*scale(0)) + scale(2)
	case tensor.MXFP4:
		// 1 bit of sign, 2 of exponent, 1 of mantissa; there is no -0
		magnitude := [...]float64{0, 0.5, 1, 1.5, 2, 3, 4, 6}[low(1)&7]
		if low(1) > 8 {
			magnitude = -magnitude
		}
		return math.Ldexp(magnitude, int(b[0])-127)
	case tensor.Q6_K:
		half, quarter, place := i/128, i%128/32, i%32
		code := int(b[64*half+32*(quarter%2)+place]>>(quarter/2*4)&15) | int(b[128+32*half+place]>>(2*quarter)&3)<<4
		return float64(scale(208)*float64(int8(b[192+i/16]))) * float64(code-32)
	}
	part, place := i/32, i%32 // Q4_K, Q5_K
	codes, code := b[16:], 0
	if d == tensor.Q5_K {
		codes, code = b[48:], int(b[16+place]>>part&1)<<4
	}
	code |= int(codes[32*(part/2)+place] >> (part % 2 * 4) & 15)
	step, least := sixBits(b[4:16], part)
	return float64(scale(0)*float64(step)*float64(code)) - float64(scale(2)*float64(least))
}

// sixBits reads what setSixBits stores.
func sixBits(b []byte, j int) (scale, low int) {
	if j < 4 {
		return int(b[j] & 63), int(b[j+4] & 63)
	}
	return int(b[j+4]&15) + int(b[j-4]>>6)*16, int(b[j+4]>>4) + int(b[j]>>6)*16
}
