package tensor

import (
	"fmt"
	"math"
	"slices"

	"dsmoe/model/internal/kernel"
)

// blockFormats holds how the kernels read the block types.
var blockFormats = [...]kernel.Format{Q4_0: kernel.Q4_0, Q5_0: kernel.Q5_0, Q5_1: kernel.Q5_1, Q8_0: kernel.Q8_0,
	Q2_K: kernel.Q2_K, Q3_K: kernel.Q3_K, Q4_K: kernel.Q4_K, Q5_K: kernel.Q5_K, Q6_K: kernel.Q6_K, MXFP4: kernel.MXFP4}

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
	case INT4:
		return kernel.INT4, true
	case F4:
		return kernel.F4, true
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

// The values of the codes of four bits.
var (
	valuesINT4 = [16]float64{-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7}
	valuesE2M1 = [16]float64{0, 0.5, 1, 1.5, 2, 3, 4, 6, math.Copysign(0, -1), -0.5, -1, -1.5, -2, -3, -4, -6}
)

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
