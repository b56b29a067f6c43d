// Package kernel holds the inner loops: dot products, matrix products, the
// widening and narrowing of 8- and 16-bit floats, and exp. Every result is defined to
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
	F8E4M3 // OCP e4m3fn: no infinities, NaN is S.1111.111 alone, largest 448; read only
)

// Size returns the size of one number in bytes.
func (f Format) Size() int {
	switch f {
	case F32:
		return 4
	case F8E4M3:
		return 1
	}
	return 2
}

// String returns the name that safetensors uses, but for the underscore of F8_E4M3.
func (f Format) String() string { return [...]string{"F32", "F16", "BF16", "F8E4M3"}[f] }

// Accumulator says in what precision a dot product is summed.
type Accumulator uint8

const (
	// Float64 sums in float64: the product of two float32 is exact, each addition
	// rounds once to float64, and the sum is rounded once to float32 at the end.
	Float64 Accumulator = iota
	// Float32 sums in float32 with fused multiply-add.
	Float32
)
