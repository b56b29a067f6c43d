package tensor

import "encoding/binary"

// SecondScale is what scales are put through before they are used: a number of the whole tensor that
// they are multiplied with or divided by, in F32.
type SecondScale string

// The second scales; the zero value is none.
const (
	Multiplied SecondScale = "multiplied"
	Divided    SecondScale = "divided"
)

// apply puts a scale through the second one, and reports whether the result is rounded.
func (s SecondScale) apply(scale, second float32) (result float32, rounded bool) {
	if s == Divided {
		result = scale / second
		return result, float64(result)*float64(second) != float64(scale)
	}
	result = scale * second
	return result, float64(scale)*float64(second) != float64(result)
}

// Scaling says which tensors beside the codes of a matrix turn them into numbers,
//
//	number = (code - zero)·scale,    scale = stored scale [·, /] second scale
//
// with the scale and zero of the code's block. Each of both products is rounded to F32.
type Scaling struct {
	Scales DType       `json:"scales"`                 // dtype of the scales, a row for each row of blocks
	Second SecondScale `json:"second_scale,omitempty"` // of an F32; the second side
	// Zeros says that the last side has zeros, INT4 in I32 along the rows of the grid.
	Zeros  bool   `json:"zeros,omitempty"`
	Blocks Blocks `json:"blocks"` // the shape of the matrix and of its blocks
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

// zeroRows is the number of rows of the grid whose zeros an I32 holds.
const zeroRows = 8

// Spans calls do for each side with the bytes begin … end that rows first … last of the grid need.
func (s *Scaling) Spans(first, last int, do func(begin, end int64)) {
	_, width := s.Blocks.Grid()
	row := s.Scales.Bytes(int64(width))
	do(int64(first)*row, int64(last+1)*row)
	if s.Second != "" {
		do(0, F32.Bytes(1))
	}
	if s.Zeros {
		row := I32.Bytes(int64(width))
		do(int64(first/zeroRows)*row, int64(last/zeroRows+1)*row)
	}
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
			g.Scales[i], g.Rounded[i] = s.Second.apply(scale, second[0])
		}
	}
	if s.Zeros {
		_, width := s.Blocks.Grid()
		g.Zeros = zeros(sides[len(sides)-1], first, len(g.Scales)/width, width)
	}
	return g, nil
}

// zeros decodes the zeros of n rows of the grid.
func zeros(packed []byte, first, n, width int) (all []float32) {
	for row := first; row < first+n; row++ {
		words := packed[(row/zeroRows-first/zeroRows)*width*4:]
		for i := range width {
			code := binary.LittleEndian.Uint32(words[4*i:]) >> (row % zeroRows * 4) & 15
			all = append(all, float32(valuesINT4[code]))
		}
	}
	return all
}
