package operation

import (
	"encoding/binary"
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

// NewDequantiseBlocks prepares the operation; it refuses other dtypes.
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
func (d *DequantiseBlocks) Unit() unit {
	elements, bytes := d.From.Block()
	return unit{elements, bytes, int(d.To.Bytes(int64(elements)))}
}

// Apply decodes every block.
func (d *DequantiseBlocks) Apply(dst []byte, in Input, lost *tensor.Loss) error {
	lost.Add(tensor.DequantiseBlocks(dst, in.Data, d.From, d.To))
	return nil
}

// Prove decodes every element by the definition of the type, one by one, and checks that the
// value, rounded to F32, could have been rounded to the written number.
func (d *DequantiseBlocks) Prove(out []byte, in Input) error {
	elements, size := d.From.Block()
	var last [256]float32 // values of the last block
	at := -1
	exact := func(i int) float64 {
		if i/elements != at {
			at = i / elements
			blockValues(last[:elements], in.Data[at*size:][:size], d.From)
		}
		return float64(last[i%elements])
	}
	return boundsOf(d.To).checkAll(out, int(d.From.Elements(int64(len(in.Data)))), 0, exact, func(v []float32, i int) {
		for b := in.Data[i/elements*size:]; len(v) > 0; v, b = v[elements:], b[size:] { // of whole blocks
			blockValues(v[:elements], b[:size], d.From)
		}
	})
}

// blockValues sets v to the values of a block by the definition of its dtype in ggml:
// products, or differences of two, that float64 holds exactly, rounded to F32 once.
func blockValues(v []float32, b []byte, d tensor.DType) {
	low := func(q []byte, i int) int { return int(q[i%16] >> (i / 16 * 4) & 15) } // of 32 codes in 16 bytes
	fifth := func(q []byte, i int) int { return int(q[i/8]>>(i%8)&1) << 4 }
	scale := float64(f16(b))
	switch d {
	case tensor.Q8_0:
		for i := range v {
			v[i] = float32(float64(int8(b[2+i])) * scale)
		}
	case tensor.Q4_0:
		for i := range v {
			v[i] = float32(float64(low(b[2:], i)-8) * scale)
		}
	case tensor.Q5_0:
		for i := range v {
			v[i] = float32(float64(low(b[6:], i)+fifth(b[2:], i)-16) * scale)
		}
	case tensor.Q4_1:
		for i, least := 0, float64(f16(b[2:])); i < len(v); i++ {
			v[i] = float32(float64(float64(low(b[4:], i))*scale) + least)
		}
	case tensor.IQ4_NL, tensor.IQ4_XS:
		values := [...]float64{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
		for i := range v {
			q, factor := b[2:], 1.0
			if part := i / 32; d == tensor.IQ4_XS { // of six bits: four are half a byte, two of a uint16
				q, factor = b[8+16*part:], float64(int(b[4+part/2]>>(4*(part%2))&15)+int(b[2+part/4]>>(2*(part%4))&3)*16-32)
			}
			v[i] = float32(values[low(q, i%32)] * float64(factor*scale))
		}
	case tensor.Q5_1:
		for i, least := 0, float64(f16(b[2:])); i < len(v); i++ {
			v[i] = float32(float64(float64(low(b[8:], i)+fifth(b[4:], i))*scale) + least)
		}
	case tensor.MXFP4:
		// 1 sign bit, 2 exponent bits, 1 mantissa bit; -0 does not exist
		values := [...]float64{0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6}
		unit := math.Ldexp(1, int(b[0])-127)
		for i := range v {
			v[i] = float32(values[low(b[1:], i)] * unit)
		}
	case tensor.Q2_K:
		scale, least := float64(f16(b[80:])), float64(f16(b[82:]))
		for i := range v {
			s, code := b[i/16], b[16+i/128*32+i%32]>>(i%128/32*2)&3
			v[i] = float32(float64(float64(scale*float64(s&15))*float64(code)) - float64(least*float64(s>>4)))
		}
	case tensor.Q3_K:
		scale = float64(f16(b[108:]))
		for i := range v {
			code := int(b[32+i/128*32+i%32]>>(i%128/32*2)&3) | int(b[i%32]>>(i/32)&1)<<2
			// The low four bits of scales j and j+8 are a byte's halves, the high two of scales j, j+4, j+8 and j+12 lie in
			// one byte.
			six, j := b[96:108], i/16
			s := int(six[j%8]>>(4*(j/8))&15) + int(six[8+j%4]>>(2*(j/4))&3)*16
			v[i] = float32(float64(scale*float64(s-32)) * float64(code-4))
		}
	case tensor.Q6_K:
		scale = float64(f16(b[208:]))
		for i := range v {
			half, quarter, place := i/128, i%128/32, i%32
			code := int(b[64*half+32*(quarter%2)+place]>>(quarter/2*4)&15) | int(b[128+32*half+place]>>(2*quarter)&3)<<4
			v[i] = float32(float64(scale*float64(int8(b[192+i/16]))) * float64(code-32))
		}
	default:
		minimumValues(v, b, d)
	}
}

// f16 is the value of a stored F16.
func f16(src []byte) float32 {
	return float32(valuesF16()[binary.LittleEndian.Uint16(src)])
}

// minimumValues is blockValues of Q4_K and Q5_K.
func minimumValues(v []float32, b []byte, d tensor.DType) {
	codes := b[16:]
	if d == tensor.Q5_K {
		codes = b[48:]
	}
	six := b[4:16] // scales and minimums of 6 bits
	for part := range 8 {
		step, least := six[part%4]&63, six[4+part%4]&63
		if part >= 4 {
			step, least = six[part+4]&15+six[part-4]>>6*16, six[part+4]>>4+six[part]>>6*16
		}
		scale, low := float64(f16(b))*float64(step), float64(float64(f16(b[2:]))*float64(least))
		for place := range 32 {
			code := int(codes[32*(part/2)+place] >> (part % 2 * 4) & 15)
			if d == tensor.Q5_K {
				code |= int(b[16+place]>>part&1) << 4
			}
			v[32*part+place] = float32(float64(scale*float64(code)) - low)
		}
	}
}
