package tensor

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// secondScale is what scales are put through before they are used: a number of the whole tensor that
// they are multiplied with or divided by, in F32.
type secondScale string

// The second scales; the zero value is none.
const (
	multiplied secondScale = "multiplied"
	divided    secondScale = "divided"
)

// Scaling says which tensors beside the codes of a matrix turn them into numbers,
//
//	number = (code - zero)·scale,    scale = stored scale [·, /] second scale
//
// with the scale and zero of the code's block. Each of both products is rounded to F32.
type Scaling struct {
	Scales DType       `json:"scales"`                 // dtype of the scales, a row for each row of blocks
	Second secondScale `json:"second_scale,omitempty"` // of an F32; the second side
	// Zeros is the dtype of the zeros in the next side: I8, or codes packed in I32 along the rows of the grid; Invalid if
	// there are none.
	Zeros DType `json:"zeros,omitempty"`
	Above int   `json:"above,omitempty"` // what is added to a stored zero
	// Shape is the dtype, I64 or I32, of the last side if that has the rows and columns, which compressed-tensors unpacks
	// by; Invalid if it does not.
	Shape DType `json:"shape,omitempty"`
	// Groups, if not 0, says that the last side has the group of each column, an I32, and how many groups a row of
	// the scales and zeros has. Columns that are not in the order of their groups are blocks of one column.
	Groups int    `json:"groups,omitempty"`
	Blocks Blocks `json:"blocks"` // the shape of the matrix and of its blocks

	Placement *Placement `json:"placement,omitempty"` // of the stored tensors; nil: in order
}

// Placement says where the elements of a matrix of codes and of its sides are in the stored tensors; nil: in order.
type Placement struct {
	Codes *Places    `json:"codes"`
	Sides [3]*Places `json:"sides"`
}

// Places returns Placement; its parts are nil where the stored tensors are in order.
func (s *Scaling) Places() *Placement {
	if s.Placement == nil {
		return &Placement{}
	}
	return s.Placement
}

// Grid is what the blocks of some rows of blocks have, row by row.
type Grid struct {
	Scales []float32
	Zeros  []float32 // nil for none
	// Rounded says which scales are not exactly what the stored ones and the second give; nil: all are.
	Rounded []bool
}

// From returns the grid from block i on.
func (g Grid) From(i int) Grid {
	if g.Zeros != nil {
		g.Zeros = g.Zeros[i:]
	}
	if g.Rounded != nil {
		g.Rounded = g.Rounded[i:]
	}
	return Grid{g.Scales[i:], g.Zeros, g.Rounded}
}

// rounded reports whether the scale of block i is rounded.
func (g Grid) rounded(i int) bool { return g.Rounded != nil && g.Rounded[i] }

// zero returns the zero of block i.
func (g Grid) zero(i int) float32 {
	if g.Zeros == nil {
		return 0
	}
	return g.Zeros[i]
}

// Value returns what a code of block i stands for, whose value without scale is code, before it is
// rounded.
func (g Grid) Value(i int, code float64) float64 {
	return (code - float64(g.zero(i))) * float64(g.Scales[i])
}

// zeroRows returns the fewest rows of the grid whose zeros fill rows of stored elements, and how many of these.
func (s *Scaling) zeroRows() (rows, stored int) {
	bits, packed := s.Zeros.codes()
	if !packed {
		return 1, 1
	}
	for rows = 32; rows > 1 && rows/2*bits%32 == 0; rows /= 2 {
	}
	return rows, rows * bits / 32
}

// ZerosShape returns the dtype and shape of the stored zeros.
func (s *Scaling) ZerosShape() (DType, []int) {
	rows, _ := s.Blocks.Grid()
	cols := s.width()
	if bits, packed := s.Zeros.codes(); packed {
		return I32, []int{(rows*bits + 31) / 32, cols}
	}
	return s.Zeros, []int{rows, cols}
}

// Spans calls do for each side with the bytes begin … end that rows first … last of the grid need.
func (s *Scaling) Spans(first, last int, do func(begin, end int64)) {
	width := s.width()
	row := s.Scales.Bytes(int64(width))
	do(int64(first)*row, int64(last+1)*row)
	if s.Second != "" {
		do(0, F32.Bytes(1))
	}
	if s.Zeros != Invalid {
		d, shape := s.ZerosShape()
		rows, stored := s.zeroRows()
		row := d.Bytes(int64(width))
		do(int64(first/rows*stored)*row, int64(min((last/rows+1)*stored, shape[0]))*row)
	}
	if s.Shape != Invalid {
		do(0, s.Shape.Bytes(2))
	}
	if s.Groups > 0 {
		do(0, I32.Bytes(int64(s.Blocks.Cols)))
	}
}

// width returns the stored scales of a row of the grid.
func (s *Scaling) width() int {
	if s.Groups > 0 {
		return s.Groups
	}
	_, width := s.Blocks.Grid()
	return width
}

// Grid decodes the sides that Spans asked for, of rows of the grid from first on.
func (s *Scaling) Grid(sides [][]byte, first int) (g Grid, err error) {
	scales := Tensor{DType: s.Scales, Shape: []int{int(s.Scales.Elements(int64(len(sides[0]))))}, Data: sides[0]}
	if g.Scales, err = scales.Float32s(nil); err != nil {
		return g, err
	}
	if s.Second != "" {
		second, _ := Tensor{DType: F32, Shape: []int{1}, Data: sides[1]}.Float32s(nil)
		g.Rounded = make([]bool, len(g.Scales))
		for i, scale := range g.Scales {
			if s.Second == divided {
				g.Scales[i] = scale / second[0]
				g.Rounded[i] = float64(g.Scales[i])*float64(second[0]) != float64(scale)
			} else {
				g.Scales[i] = scale * second[0]
				g.Rounded[i] = float64(scale)*float64(second[0]) != float64(g.Scales[i])
			}
		}
	}
	if s.Shape != Invalid {
		if err := s.Blocks.CheckShape(sides[len(sides)-1], s.Shape); err != nil {
			return g, err
		}
	}
	if s.Zeros != Invalid {
		if g.Zeros, err = s.zeros(sides[1], first, len(g.Scales)/s.width()); err != nil {
			return g, err
		}
	}
	if s.Groups > 0 {
		return s.ordered(g, sides[len(sides)-1])
	}
	return g, nil
}

// CheckShape compares the rows and columns that data has, of dtype d, with the matrix's.
func (b Blocks) CheckShape(data []byte, d DType) error {
	var shape [2]int64
	for i := range shape {
		if d == I32 {
			shape[i] = int64(int32(binary.LittleEndian.Uint32(data[4*i:])))
		} else {
			shape[i] = int64(binary.LittleEndian.Uint64(data[8*i:]))
		}
	}
	if want := [2]int64{int64(b.Rows), int64(b.Cols)}; shape != want {
		return fmt.Errorf("weight_shape is %d, which libraries unpack by, but the packed codes have shape %d", shape, want)
	}
	return nil
}

// ordered returns the grid of the columns, whose groups index has. Blocks of several columns are in order.
func (s *Scaling) ordered(stored Grid, index []byte) (g Grid, err error) {
	b, groups := s.Blocks, make([]int, s.Blocks.Cols)
	for c := range groups {
		groups[c] = int(int32(binary.LittleEndian.Uint32(index[4*c:])))
		if groups[c] < 0 || groups[c] >= s.Groups {
			return g, fmt.Errorf("g_idx: column %d is of group %d: there are %d", c, groups[c], s.Groups)
		}
		if b.BlockCols > 1 && groups[c] != c/b.BlockCols {
			return g, fmt.Errorf("g_idx: column %d is of group %d, but without desc_act in quantization_config it is of %d",
				c, groups[c], c/b.BlockCols)
		}
	}
	if b.BlockCols > 1 {
		return stored, nil
	}
	for row := 0; row < len(stored.Scales); row += s.Groups {
		for _, group := range groups {
			g.Scales = append(g.Scales, stored.Scales[row+group])
			g.Zeros = append(g.Zeros, stored.Zeros[row+group])
		}
	}
	return g, nil
}

// zeros decodes the zeros of n rows of the grid, and adds Above to each.
func (s *Scaling) zeros(stored []byte, first, n int) (all []float32, err error) {
	width := s.width()
	bits, packed := s.Zeros.codes()
	if !packed {
		for _, zero := range stored[:n*width] {
			all = append(all, float32(int8(zero)))
		}
		return all, nil
	}
	rows, _ := s.zeroRows()
	for row := range n {
		at := (first%rows + row) * bits // the first bit of a column's zero
		for i := range width {
			word := uint64(binary.LittleEndian.Uint32(stored[4*(at/32*width+i):]))
			if at%32+bits > 32 {
				word |= uint64(binary.LittleEndian.Uint32(stored[4*((at/32+1)*width+i):])) << 32
			}
			code := int(word >> (at % 32) & (1<<bits - 1))
			if s.Above > 0 && code == 15 {
				return nil, errors.New("a zero is stored as 15, less 1, which libraries read as 0 and as 16: " +
					"dequantise it with the library that wrote it")
			}
			all = append(all, float32(code-1<<(bits-1)+s.Above))
		}
	}
	return all, nil
}

// Blocks says how a matrix of codes is scaled: the number at (r, c) is its
// code times the scale at (r/BlockRows, c/BlockCols) of a grid of
// ⌈Rows/BlockRows⌉ × ⌈Cols/BlockCols⌉. Blocks at the edges may be ragged.
type Blocks struct {
	Rows      int `json:"rows"`       // of the matrix
	Cols      int `json:"cols"`       // of the matrix
	BlockRows int `json:"block_rows"` // rows that share a scale
	BlockCols int `json:"block_cols"` // columns that share a scale
}

// Grid returns the shape of the scales.
func (b Blocks) Grid() (rows, cols int) {
	return (b.Rows + b.BlockRows - 1) / b.BlockRows, (b.Cols + b.BlockCols - 1) / b.BlockCols
}

// GridRow returns the row of the scales for an element, counted row by row.
func (b Blocks) GridRow(element int64) int { return int(element / int64(b.Cols) / int64(b.BlockRows)) }
