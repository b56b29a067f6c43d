// Package kernel holds the inner loops: dot products, matrix products, the
// widening and narrowing of 16-bit floats, and exp. Every result is defined to
// the bit, so that it depends neither on the machine, nor on the number of
// threads, nor on how a batch is cut.
//
// The entry points are MatMul (the one that takes the time), Dot32 and Dot64
// (whose comments define the order of every sum), Widen and Narrow.
//
// Lengths that do not fit are a programmer's mistake and panic.
package kernel

// Lanes is the number of partial sums of a dot product; element k belongs to
// lane k mod Lanes.
const Lanes = 16

// Format is a storage format of floating point numbers.
type Format uint8

// The formats that the kernels read and write, all little-endian.
const (
	F32 Format = iota
	F16
	BF16
)

// Size returns the size of one number in bytes.
func (f Format) Size() int {
	if f == F32 {
		return 4
	}
	return 2
}

// Accumulator says in what precision a dot product is summed.
type Accumulator uint8

const (
	// Float64 sums in float64: the product of two float32 is exact, each addition
	// rounds once to float64, and the sum is rounded once to float32 at the end.
	Float64 Accumulator = iota
	// Float32 sums in float32 with fused multiply-add.
	Float32
)

// Matrix is a row-major matrix of Rows × Cols numbers: either as it is stored, in
// Data, which need not be aligned, or, if Data is nil, in Values. If Round is set,
// each stored number is rounded to Via after widening, as the reference does when
// it casts its weights to the compute dtype.
type Matrix struct {
	Format Format
	Rows   int
	Cols   int
	Data   []byte
	Round  bool
	Via    Format
	Values []float32
}

// row returns row r, widened into dst[:Cols] if it is stored.
func (m Matrix) row(dst []float32, r int) []float32 {
	if m.Data == nil {
		return m.Values[r*m.Cols : (r+1)*m.Cols]
	}
	n := m.Cols * m.Format.Size()
	dst = dst[:m.Cols]
	Widen(dst, m.Data[r*n:(r+1)*n], m.Format)
	if m.Round {
		RoundTo(dst, m.Via)
	}
	return dst
}
