package tensor

import (
	"fmt"

	"dsmoe/model/internal/kernel"
)

// Format returns how the kernels read elements of d, and whether they can.
func (d DType) Format() (kernel.Format, bool) {
	switch d {
	case F32:
		return kernel.F32, true
	case F16:
		return kernel.F16, true
	case BF16:
		return kernel.BF16, true
	case F8E4M3:
		return kernel.F8E4M3, true
	}
	return 0, false
}

// Float32s appends the elements of t to dst as float32 and returns it. F32, F16, BF16
// and F8_E4M3 (without any scale) are exact; other dtypes are an error.
func (t Tensor) Float32s(dst []float32) ([]float32, error) {
	f, ok := t.DType.Format()
	if !ok {
		return dst, fmt.Errorf("dtype %s does not decode to float32", t.DType)
	}
	n := len(dst)
	dst = append(dst, make([]float32, t.Len())...)
	kernel.Widen(dst[n:], t.Data, f)
	return dst, nil
}
