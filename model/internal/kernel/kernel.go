package kernel

// lanes is the number of partial sums of a dot product; element k belongs to lane k mod
// lanes.
const lanes = 16

// Format is a storage format of floating point numbers.
type Format uint8

// The formats that the kernels read and write, all little-endian.
const (
	F32  Format = iota // IEEE binary32: 8 bits of exponent, 23 of mantissa
	F16                // IEEE binary16: 5 bits of exponent, 10 of mantissa
	BF16               // bfloat16, the upper half of an F32: 8 bits of exponent, 7 of mantissa

	// F8E4M3 is OCP e4m3fn: 4 bits of exponent, 3 of mantissa, no infinities, NaN is
	// S.1111.111 alone, the largest number 448. It is read only.
	F8E4M3

	// F8E8M0 is 2^(b-127), of 8 bits, as scales are; 255 is NaN. It is read only.
	F8E8M0

	// Codes of 2 to 8 bits, the lowest first, times a scale: see codes.go. They are read only, by whole bytes.
	F6E2M3
	F4
	INT2
	INT3
	INT4
	INT5
	INT6
	INT7
	UINT8
	INT8

	// The block formats of ggml: see blocks.go. They are read only, by whole blocks.
	Q4_0
	Q4_1
	Q5_0
	Q5_1
	Q8_0
	Q2_K
	Q3_K
	Q4_K
	Q5_K
	Q6_K
	IQ4_NL
	IQ4_XS
	MXFP4
)

// Blocked reports whether f is a block format: only its whole blocks have a size. A block of codes is the fewest that
// fill bytes.
func (f Format) Blocked() bool { return f > F8E8M0 }

// Size returns the size of one number in bytes; f is not a block format.
func (f Format) Size() int { return [...]int{F32: 4, F16: 2, BF16: 2, F8E4M3: 1, F8E8M0: 1}[f] }

// LeastNormal returns the least normal number of F32, F16 or BF16.
func (f Format) LeastNormal() float32 {
	return [...]float32{F32: 0x1p-126, F16: 0x1p-14, BF16: 0x1p-126}[f]
}

// String returns the name that safetensors or ggml uses; F8_E4M3 loses its underscore.
func (f Format) String() string {
	return [...]string{
		"F32", "F16", "BF16", "F8E4M3", "F8E8M0", "F6E2M3", "F4", "INT2", "INT3", "INT4", "INT5", "INT6", "INT7",
		"UINT8", "INT8", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS",
		"MXFP4",
	}[f]
}

// Accumulator is the precision in which a dot product is summed.
type Accumulator uint8

const (
	// Float64 sums in float64: the product of two float32 is exact, each addition
	// rounds once to float64, and the sum is rounded once to float32 at the end.
	Float64 Accumulator = iota
	// Float32 sums in float32 with fused multiply-add.
	Float32
)

// ceilDiv returns ⌈a/b⌉ for a ≥ 0 and b > 0.
func ceilDiv(a, b int) int { return (a + b - 1) / b }

// roundUp returns the smallest multiple of b that is at least a.
func roundUp(a, b int) int { return ceilDiv(a, b) * b }
