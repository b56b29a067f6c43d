package tensor

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Blocks says how a matrix of FP8 numbers is scaled: the number at (r, c) is its
// E4M3 value times the scale at (r/BlockRows, c/BlockCols) of a grid of
// ⌈Rows/BlockRows⌉ × ⌈Cols/BlockCols⌉. Blocks at the edges may be ragged.
type Blocks struct {
	Rows, Cols           int
	BlockRows, BlockCols int
}

// Grid returns the shape of the scales.
func (b Blocks) Grid() (rows, cols int) {
	return (b.Rows + b.BlockRows - 1) / b.BlockRows, (b.Cols + b.BlockCols - 1) / b.BlockCols
}

// Dequantiser turns F8_E4M3 in blocks into a float dtype, as the reference does:
// the product is rounded to F32, that to the dtype. It is safe for concurrent use.
type Dequantiser struct {
	To     DType
	values [256]float32
}

// NewDequantiser prepares the conversion to F32, F16 or BF16.
func NewDequantiser(to DType) (*Dequantiser, error) {
	if _, ok := infinity(to); !ok {
		return nil, fmt.Errorf("FP8 cannot be dequantised to %s", to)
	}
	q := &Dequantiser{To: to}
	for i := range q.values {
		q.values[i] = E4M3(byte(i))
	}
	return q, nil
}

// E4M3 decodes the bits s eeee mmm: the value is (-1)^s · 2^(e-7) · 1.m, or
// (-1)^s · 2^-6 · 0.m for e = 0; all ones but the sign is NaN.
func E4M3(b byte) float32 {
	exp, man := int(b>>3&0xf), float64(b&7)
	v := math.Ldexp(man/8, -6)
	switch {
	case b&0x7f == 0x7f:
		v = math.NaN()
	case exp > 0:
		v = math.Ldexp(1+man/8, exp-7)
	}
	if b&0x80 != 0 {
		v = math.Copysign(v, -1)
	}
	return float32(v)
}

// Convert decodes the elements of src, which are those of a matrix from element at
// on, into dst, and counts what is lost. scales are the rows of the grid from that
// of element at on.
func (q *Dequantiser) Convert(dst, src []byte, at int, b Blocks, scales []float32) (lost Loss) {
	_, width := b.Grid()
	first := at / b.Cols / b.BlockRows
	size := q.To.Bits() / 8
	for len(src) > 0 {
		row, col := at/b.Cols, at%b.Cols
		n := min(b.BlockCols-col%b.BlockCols, b.Cols-col, len(src))
		scale := scales[(row/b.BlockRows-first)*width+col/b.BlockCols]
		lost.Add(q.run(dst[:n*size], src[:n], scale))
		src, dst, at = src[n:], dst[n*size:], at+n
	}
	return lost
}

// run decodes elements that share a scale.
func (q *Dequantiser) run(dst, src []byte, scale float32) (lost Loss) {
	if q.To == F32 {
		for i, b := range src {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(q.values[b]*scale))
		}
		return q.lostF32(dst, src, scale)
	}
	least, most := uint32(0x00008001), uint32(0x7f7f8000) // as narrowAll, for BF16
	if q.To == F16 {
		least, most = 0, 0 // nothing is that simple
	}
	for i, b := range src {
		v := math.Float32bits(q.values[b] * scale)
		h := uint16((v + 0x7fff + v>>16&1) >> 16)
		if abs := v & 0x7fffffff; abs-least >= most-least {
			h = narrow(v, q.To)
			q.count(&lost, b, scale, h)
		}
		binary.LittleEndian.PutUint16(dst[2*i:], h)
	}
	return lost
}

// count takes note of a product that is zero or infinite in 16 bits.
func (q *Dequantiser) count(lost *Loss, code byte, scale float32, h uint16) {
	inf, _ := infinity(q.To)
	if h&0x7fff == 0 || uint32(h&0x7fff) == inf {
		lost.product(q.values[code], scale, h&0x7fff == 0)
	}
}

// lostF32 looks for products beyond float32's range.
func (q *Dequantiser) lostF32(dst, src []byte, scale float32) (lost Loss) {
	for i, b := range src {
		abs := binary.LittleEndian.Uint32(dst[4*i:]) & 0x7fffffff
		if abs == 0 || abs == 0x7f800000 {
			lost.product(q.values[b], scale, abs == 0)
		}
	}
	return lost
}

// product takes note of a product that became zero or infinite.
func (l *Loss) product(v, scale float32, zero bool) {
	switch {
	case zero && v != 0 && scale != 0:
		l.Flushed++
	case !zero && !math.IsInf(float64(scale), 0):
		l.Overflow++
	}
}
