package operation

// FP8 with a scale per block, as DeepSeek publishes it: one operation writes the codes, one the
// scales. Both need the largest magnitude of each block, which spans more rows than a piece has.

import (
	"encoding/binary"
	"fmt"
	"math"

	"dsmoe/model/tensor"
)

// Blockwise is an operation that needs the largest magnitude of each block of the source's matrix.
// Its elements are counted in its output.
type Blockwise interface {
	Operation
	// Grid returns how the matrix is divided in blocks.
	Grid() *tensor.Blocks
	// GridRows returns the rows of the grid that n elements of the output from at on need.
	GridRows(at, n int64) (first, end int)
	// Magnitudes raises the largest magnitudes of the blocks of one row of the grid to the magnitudes in data, the
	// elements of the matrix from at on.
	Magnitudes(largest []float32, data []byte, at int64)
	// MagnitudesByDefinition does the same for the proof, by the definition of the source's dtype.
	MagnitudesByDefinition(largest []float32, data []byte, at int64)
}

// scaling is what both operations know.
type scaling struct {
	From        tensor.DType  `json:"from"`                    // dtype of the source
	To          tensor.DType  `json:"to"`                      // dtype of the codes
	PowersOfTwo bool          `json:"powers_of_two,omitempty"` // scales are powers of two
	Blocks      tensor.Blocks `json:"blocks"`                  // the shape of the matrix and of its blocks

	encoder tensor.Encoder
}

// newScaling refuses dtypes other than F32, F16 and BF16, and codes without scales.
func newScaling(from, to tensor.DType, b tensor.Blocks, powersOfTwo bool) (s scaling, err error) {
	if !from.Casts() || !to.Scaled() {
		return s, fmt.Errorf("dtype %s cannot be quantised to %s", from, to)
	}
	return scaling{from, to, powersOfTwo, b, tensor.Encoder{Form: to.Form(), PowersOfTwo: powersOfTwo}}, nil
}

// Grid returns how the matrix is divided in blocks.
func (s *scaling) Grid() *tensor.Blocks { return &s.Blocks }

// Magnitudes widens and compares the elements.
func (s *scaling) Magnitudes(largest []float32, data []byte, at int64) {
	s.eachRow(data, at, s.widen, func(x []float32, _, _, col int) error {
		s.Blocks.Magnitudes(largest, x, col)
		return nil
	})
}

// MagnitudesByDefinition compares the elements one by one.
func (s *scaling) MagnitudesByDefinition(largest []float32, data []byte, at int64) {
	s.eachRow(data, at, s.values, func(x []float32, _, _, col int) error {
		for end := 0; end < len(x); {
			block, begin := (col+end)/s.Blocks.BlockCols, end
			end = min((block+1)*s.Blocks.BlockCols-col, len(x))
			for _, v := range x[begin:end] {
				if abs := max(v, -v); abs > largest[block] || abs != abs {
					largest[block] = abs
				}
			}
		}
		return nil
	})
}

func isFinite(x float32) bool { return -math.MaxFloat32 <= x && x <= math.MaxFloat32 }

// decoding returns a function that sets v to the numbers of data from element i on.
type decoding func(data []byte) func(v []float32, i int)

// widen decodes with the kernels, values by the definition of the dtype.
func (s *scaling) widen(data []byte) func(v []float32, i int) {
	return func(v []float32, i int) {
		part := data[s.From.Bytes(int64(i)):][:s.From.Bytes(int64(len(v)))]
		tensor.Tensor{DType: s.From, Shape: []int{len(v)}, Data: part}.Float32s(v[:0])
	}
}

func (s *scaling) values(data []byte) func(v []float32, i int) { return exactValues(s.From, data) }

// eachRow decodes data, elements of the matrix from at on, in runs that lie in one row and one
// unit, so that runs of the same elements are the same however a tensor is cut. do gets a run,
// the index of its first element in data, and the place of that in the matrix.
func (s *scaling) eachRow(data []byte, at int64, decode decoding,
	do func(x []float32, first, row, col int) error) error {
	var room [numbersAtOnce]float32
	values, cols, unit := decode(data), int64(s.Blocks.Cols), s.unit()
	n := s.From.Elements(int64(len(data)))
	for i := int64(0); i < n; {
		row, col := (at+i)/cols, (at+i)%cols
		x := room[:min(n-i, cols-col, unit-(at+i)%unit, numbersAtOnce)]
		values(x, int(i))
		if err := do(x, int(i), int(row), int(col)); err != nil {
			return err
		}
		i += int64(len(x))
	}
	return nil
}

// Unit returns the elements of a row, or of an equal part of one that is at most 16,384 long.
// A row of more elements without such a part has units of one element.
func (s *scaling) unit() int64 {
	n := int64(s.Blocks.Cols)
	for n > 16384 && n%2 == 0 {
		n /= 2
	}
	if n > 16384 {
		return 1
	}
	return n
}

// name adds the kind of scales to the name of an operation.
func (s *scaling) name(what string) string {
	if s.PowersOfTwo {
		what += " ue8m0"
	}
	return what
}

// Encode writes the codes of F32, F16 or BF16 numbers, as tensor.Encoder describes. It refuses
// blocks with an infinity or NaN.
type Encode struct{ scaling }

// NewEncode prepares the operation; it refuses other dtypes.
func NewEncode(from, to tensor.DType, b tensor.Blocks, powersOfTwo bool) (*Encode, error) {
	s, err := newScaling(from, to, b, powersOfTwo)
	return &Encode{s}, err
}

// Name returns "fp8-quantise", or "fp8-quantise ue8m0".
func (e *Encode) Name() string { return e.name("fp8-quantise") }

// Unit returns a row, or a part of one.
func (e *Encode) Unit() unit {
	n := e.unit()
	return unit{int(n), int(e.From.Bytes(n)), int(e.To.Bytes(n))}
}

// GridRows returns the rows of the grid that the elements lie in.
func (e *Encode) GridRows(at, n int64) (first, end int) {
	return e.Blocks.GridRow(at), e.Blocks.GridRow(at+n-1) + 1
}

// eachBlock calls do for the runs of a piece that lie in one row and one block, with the block's
// largest magnitude.
func (e *Encode) eachBlock(in Input, decode decoding, do func(x []float32, first int, largest float32) error) error {
	top := e.Blocks.GridRow(in.At)
	_, width := e.Blocks.Grid()
	return e.eachRow(in.Data, in.At, decode, func(x []float32, first, row, col int) error {
		largest := in.Largest[(row/e.Blocks.BlockRows-top)*width:][:width]
		for i := 0; i < len(x); {
			block := (col + i) / e.Blocks.BlockCols
			end := min((block+1)*e.Blocks.BlockCols-col, len(x))
			if err := do(x[i:end], first+i, largest[block]); err != nil {
				return err
			}
			i = end
		}
		return nil
	})
}

// Apply encodes every number.
func (e *Encode) Apply(dst []byte, in Input, lost *tensor.Loss) error {
	return e.eachBlock(in, e.widen, func(x []float32, first int, largest float32) error {
		if !isFinite(largest) {
			return &notFiniteError{max(1, tensor.NotFiniteValues(x)), e.To}
		}
		e.encoder.Convert(dst[first:first+len(x)], x, largest, lost)
		return nil
	})
}

// Prove multiplies every number by its block's factor, rounds that to F32, and checks that the
// code is the one that this rounds to: it lies between the half-way points to the code's
// neighbours, and of two codes at the same distance the even one was written.
func (e *Encode) Prove(out []byte, in Input) error {
	codes := boundsOfCodes(e.To.Form())
	return e.eachBlock(in, e.values, func(x []float32, first int, largest float32) error {
		_, factor := e.encoder.Scale(largest)
		for i, code := range out[first : first+len(x)] {
			y := float32(x[i] * factor)
			low, high := codes.low[code], codes.high[code]
			// A half-way point rounds to the even code, zero to the zero of its sign.
			if !(low < y && y < high) &&
				!((y == low || y == high) && code%2 == 0 && math.Signbit(float64(y)) == (code >= 128)) {
				return &Mismatch{first + i, fmt.Sprintf("code %02x", code), fmt.Sprintf("%v before it is rounded", y)}
			}
		}
		return nil
	})
}

// codeBounds holds, for every code, the half-way points to its neighbours: the numbers between
// them round to it.
type codeBounds struct{ low, high [256]float32 }

// boundsOfCodes returns the bounds of the codes of a form, by their values. Numbers beyond the
// largest code become that; codes that are no numbers have no bounds.
func boundsOfCodes(f *tensor.Form) (b codeBounds) {
	var all [256]byte
	for i := range all {
		all[i] = byte(i)
	}
	var values [256]float64
	f.Values(values[:], all[:], 0)
	for i := range 128 {
		low, high := float32(math.Inf(1)), float32(math.Inf(1)) // nothing
		if v := values[i]; v <= float64(f.Largest) {
			low = float32((values[max(i-1, 0)] + v) / 2)
			if next := values[i+1]; next <= float64(f.Largest) {
				high = float32((v + next) / 2)
			}
		}
		b.low[i], b.high[i] = low, high
		b.low[i+128], b.high[i+128] = -high, -low
	}
	return b
}

// Scales writes the scales of a matrix that Encode makes codes of, in F32, a row for each row of blocks.
type Scales struct{ scaling }

// NewScales prepares the operation; it refuses other dtypes.
func NewScales(from, to tensor.DType, b tensor.Blocks, powersOfTwo bool) (*Scales, error) {
	s, err := newScaling(from, to, b, powersOfTwo)
	return &Scales{s}, err
}

// Name returns "fp8-scales", or "fp8-scales ue8m0".
func (s *Scales) Name() string { return s.name("fp8-scales") }

// Unit returns one scale: all that it needs of the source are the largest magnitudes.
func (*Scales) Unit() unit { return unit{1, 0, int(tensor.F32.Bytes(1))} }

// GridRows returns the rows of the grid that the scales lie in.
func (s *Scales) GridRows(at, n int64) (first, end int) {
	_, width := s.Blocks.Grid()
	return int(at) / width, int(at+n-1)/width + 1
}

// largest returns the largest magnitudes of the piece's blocks.
func (s *Scales) largest(in Input) []float32 {
	_, width := s.Blocks.Grid()
	return in.Largest[int(in.At)%width:]
}

// Apply computes every scale.
func (s *Scales) Apply(dst []byte, in Input, _ *tensor.Loss) error {
	all := s.largest(in)
	for i := range len(dst) / 4 {
		if !isFinite(all[i]) {
			return &notFiniteError{1, s.To}
		}
		scale, _ := s.encoder.Scale(all[i])
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(scale))
	}
	return nil
}

// Prove demands the very scale, and that it is right by its definition: the largest code stands for
// the block's largest magnitude but for roundings, or is, with a power of two, the least that is
// not below it; and the factor of the codes is its reciprocal.
func (s *Scales) Prove(out []byte, in Input) error {
	for i, largest := range s.largest(in)[:len(out)/4] {
		got := math.Float32frombits(binary.LittleEndian.Uint32(out[4*i:]))
		want, factor := s.encoder.Scale(largest)
		if got != want || !s.defined(float64(got), float64(factor), float64(largest)) {
			return &Mismatch{i, fmt.Sprint(got), fmt.Sprintf("%v for a largest magnitude of %v", want, largest)}
		}
	}
	return nil
}

// defined reports whether a scale and its factor are right for a largest magnitude.
func (s *scaling) defined(scale, factor, largest float64) bool {
	const least, roundings = 0x1p-126, 0x1p-21     // three roundings; one may be of a denormal reciprocal, to 22 bits
	top := scale * float64(s.encoder.Form.Largest) // what the largest code stands for
	fraction, _ := math.Frexp(scale)
	switch {
	case math.Abs(scale*factor-1) > roundings:
		return false
	case largest == 0:
		return scale == 1
	case scale == least:
		return largest <= top
	case s.PowersOfTwo:
		return fraction == 0.5 && largest <= top && top < 2*largest
	}
	return math.Abs(top-largest) <= roundings*largest
}
