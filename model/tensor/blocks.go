package tensor

// The encoders of ggml's block types: byte for byte what the functions quantize_row_…_ref
// of ggml-quants.c give, which llama.cpp quantises with where there is no importance
// matrix. The arithmetic is float32, each operation rounded once, in the order of the C
// source: as C means it, and as compilers for x86-64 without FMA do it, so that builds
// which contract a*b + c may differ from it, and from each other, in single codes. What C
// leaves undefined, the conversion of a number that an integer cannot hold, is what SSE2
// gives. No number that is encoded is infinite or NaN.

import (
	"encoding/binary"
	"math"

	"dsmoe/model/internal/kernel"
)

// PutF16 rounds v to F16 and stores it.
func PutF16(dst []byte, v float32) {
	binary.LittleEndian.PutUint16(dst, uint16(kernel.Encode(math.Float32bits(v), kernel.F16)))
}

// getF16 reads an F16.
func getF16(src []byte) float32 {
	return math.Float32frombits(kernel.Decode(uint32(binary.LittleEndian.Uint16(src)), kernel.F16))
}

// inverse is 1/d, or 0 for 0.
func inverse(d float32) float32 {
	if d == 0 {
		return 0
	}
	return 1 / d
}

// extreme returns the first number of largest magnitude, with its sign.
func extreme(x []float32) (v float32) {
	largest := uint32(0)
	for _, y := range x {
		if m := math.Float32bits(y) &^ (1 << 31); m > largest {
			largest, v = m, y
		}
	}
	return v
}

// truncated is v as int8, toward zero; 0 where v is no int32.
func truncated(v float32) int8 {
	if !IsFinite(v) || v >= 1<<31 || v < -1<<31 {
		return 0
	}
	return int8(int32(v))
}

// encodeQ4_0 is quantize_row_q4_0_ref: d = x_max/-8 for the x_max of largest magnitude,
// q = min(15, trunc(x·(1/d) + 8.5)).
func encodeQ4_0(dst []byte, x []float32) {
	d := extreme(x) / -8
	PutF16(dst, d)
	id := inverse(d)
	for j, q := 0, dst[2:18]; j < 16; j++ {
		q[j] = upTo(15, float32(x[j]*id)+8.5) | upTo(15, float32(x[j+16]*id)+8.5)<<4
	}
}

// upTo is min(most, v truncated) as C's MIN of an int and an int8_t, in eight bits.
func upTo(most int8, v float32) byte { return byte(min(most, truncated(v))) }

// encodeQ5_0 is quantize_row_q5_0_ref: as Q4_0 with -16, 16.5 and 31. The fifth bits of all
// codes are a uint32.
func encodeQ5_0(dst []byte, x []float32) {
	d := extreme(x) / -16
	PutF16(dst, d)
	id, high := inverse(d), uint32(0)
	for j, q := 0, dst[6:22]; j < 16; j++ {
		a, b := upTo(31, float32(x[j]*id)+16.5), upTo(31, float32(x[j+16]*id)+16.5)
		q[j] = a&15 | b&15<<4
		high |= uint32(a>>4&1)<<j | uint32(b>>4&1)<<(j+16)
	}
	binary.LittleEndian.PutUint32(dst[2:], high)
}

// encodeLine sets the scale and minimum of a block of Q4_1 or Q5_1, and codes to most: d = (max - min)/most,
// q = trunc((x - min)·(1/d) + 0.5). It returns the fifth bits of all codes.
func encodeLine(dst []byte, x []float32, most float32) (fifth uint32) {
	low, high := float32(math.MaxFloat32), float32(-math.MaxFloat32)
	for _, v := range x {
		if v < low {
			low = v
		}
		if v > high {
			high = v
		}
	}
	d := (high - low) / most
	PutF16(dst, d)
	PutF16(dst[2:], low)
	id := inverse(d)
	for j, q := 0, dst[len(dst)-16:]; j < 16; j++ {
		a, b := byte(truncated(float32((x[j]-low)*id)+0.5)), byte(truncated(float32((x[j+16]-low)*id)+0.5))
		q[j] = a&15 | b&15<<4
		fifth |= uint32(a>>4&1)<<j | uint32(b>>4&1)<<(j+16)
	}
	return fifth
}

// encodeQ4_1 is quantize_row_q4_1_ref.
func encodeQ4_1(dst []byte, x []float32) { encodeLine(dst[:20], x, 15) }

// encodeQ5_1 is quantize_row_q5_1_ref.
func encodeQ5_1(dst []byte, x []float32) {
	binary.LittleEndian.PutUint32(dst[4:], encodeLine(dst[:24], x, 31))
}

func abs32(v float32) float32 { return math.Float32frombits(math.Float32bits(v) &^ (1 << 31)) }

// errorF16 is how far a number may be from the F16 that it was rounded to: half a unit. It compares, as max takes longer.
func errorF16(d float32) float32 {
	if e := 0x1p-11 * d; !(e <= 0x1p-25) {
		return e
	}
	return 0x1p-25
}
