package report

import (
	"fmt"
	"math"
	"strconv"

	"dsmoe/text"
)

// JSONFloat returns a pointer to v, nil if JSON has no number for it.
func JSONFloat(v float64) *float64 {
	if math.IsInf(v, 0) || math.IsNaN(v) {
		return nil
	}
	return &v
}

// Number prints a float32 with all its digits, NaN and infinities by name.
func Number(v float32) string { return strconv.FormatFloat(float64(v), 'g', -1, 32) }

// Unflatten is the index of element i of a tensor of this shape.
func Unflatten(i int, shape []int) []int {
	index := make([]int, len(shape))
	for d := len(shape) - 1; d >= 0; d-- {
		index[d], i = i%shape[d], i/shape[d]
	}
	return index
}

func short(v *float64, format string) string {
	if v == nil {
		return "-"
	}
	return text.Figure(format, *v)
}

func percent(v *float64) string {
	switch {
	case v == nil:
		return "-"
	case *v-*v != 0:
		return text.Figure("", *v)
	case *v >= 10:
		return fmt.Sprintf("%.1e×", *v)
	}
	return fmt.Sprintf("%.4g%%", *v*100)
}

// orInfinite prints z; what is missing is infinite.
func orInfinite(z *float64) string {
	if z == nil {
		return "infinite"
	}
	return text.Figure("%.3g", *z)
}
