package tensor

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"dsmoe/model/internal/kernel"
)

// blockFormats holds how the kernels read the block types.
var blockFormats = [...]kernel.Format{Q4_0: kernel.Q4_0, Q4_1: kernel.Q4_1, Q5_0: kernel.Q5_0, Q5_1: kernel.Q5_1,
	Q8_0: kernel.Q8_0,
	Q2_K: kernel.Q2_K, Q3_K: kernel.Q3_K, Q4_K: kernel.Q4_K, Q5_K: kernel.Q5_K, Q6_K: kernel.Q6_K,
	IQ4_NL: kernel.IQ4_NL, IQ4_XS: kernel.IQ4_XS, MXFP4: kernel.MXFP4}

// Format returns how the kernels read elements of d, and whether they can.
func (d DType) Format() (kernel.Format, bool) {
	if d.Blocked() {
		return blockFormats[d], true
	}
	switch d {
	case F32:
		return kernel.F32, true
	case F16:
		return kernel.F16, true
	case BF16:
		return kernel.BF16, true
	case F8E4M3:
		return kernel.F8E4M3, true
	case F8E8M0:
		return kernel.F8E8M0, true
	case F6E2M3:
		return kernel.F6E2M3, true
	}
	if F4 <= d && d <= INT8 {
		return kernel.F4 + kernel.Format(d-F4), true
	}
	return 0, false
}

// Float32s appends the elements of t to dst as float32 and returns it. F32, F16, BF16,
// F8_E8M0 and codes (without any scale) are exact, block types what ggml's dequantize_row
// functions give; other dtypes are an error.
func (t Tensor) Float32s(dst []float32) ([]float32, error) {
	f, ok := t.DType.Format()
	if !ok {
		return dst, fmt.Errorf("dtype %s does not decode to float32", t.DType)
	}
	n := len(dst)
	dst = slices.Grow(dst, t.Len())[:n+t.Len()]
	kernel.Widen(dst[n:], t.Data, f)
	return dst, nil
}

// The values of the codes of E2M1 and E2M3.
var (
	valuesE2M1 = valuesFloat(2, 1)
	valuesE2M3 = valuesFloat(2, 3)
)

// valuesFloat returns what floats without infinities and NaN stand for: of a sign, so many bits of exponent with the
// bias 2^(exponent-1) - 1, and of fraction.
func valuesFloat(exponent, fraction int) (values []float64) {
	steps := 1 << fraction
	for code := range 2 << (exponent + fraction) {
		e, f := code>>fraction&(1<<exponent-1), float64(code%steps)
		if e > 0 {
			f += float64(steps)
		}
		v := math.Ldexp(f, max(e, 1)-(1<<(exponent-1)-1)-fraction)
		if code>>(exponent+fraction) == 1 {
			v = -v
		}
		values = append(values, v)
	}
	return values
}

// valuesInteger returns what codes of so many bits stand for: integers from -2^(bits-1) on, with that added.
func valuesInteger(bits int) (values []float64) {
	for code := range 1 << bits {
		values = append(values, float64(code-1<<(bits-1)))
	}
	return values
}

// eachDecoded calls f for parts of what the blocks of data stand for.
func (d DType) eachDecoded(data []byte, f func(x []float32)) {
	var room [piece]float32
	format, _ := d.Format()
	for len(data) > 0 {
		n := min(piece, d.Elements(int64(len(data))))
		part := data[:d.Bytes(n)]
		kernel.Widen(room[:n], part, format)
		f(room[:n])
		data = data[len(part):]
	}
}

// piece is how many elements are converted at a time: source, target and what they are
// as float32 fit a level-1 cache together.
const piece = 2048

// PutFloat32s writes x to dst, four bytes each, the lowest first.
func PutFloat32s(dst []byte, x []float32) { kernel.Narrow(dst, x, kernel.F32) }

// Float32Bytes returns the bytes of x, four each, the lowest first: x itself where the machine has them in that order.
func Float32Bytes(x []float32) []byte {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
	}
	data := make([]byte, 4*len(x))
	PutFloat32s(data, x)
	return data
}
