package bounds_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
)

// TestCompare pins the metrics by hand-made cases.
func TestCompare(t *testing.T) {
	t.Parallel()
	want := []float32{1, -1, 1, -1, 0.01, 0, 0, 0}
	got := slices.Clone(want)
	m := bounds.Compare(got, want, 4, tensor.F32)
	require.InEpsilon(t, math.Sqrt((4+0.0001)/8), m.Scale, 1e-6)
	require.Equal(t, bounds.Metrics{BitEqual: 1, OneULP: 1, Finite: true, Got: 1, Want: 1, Scale: m.Scale, Rows: []float64{0, 0}}, m)

	got[2] += 0x1p-23
	m = bounds.Compare(got, want, 4, tensor.F32)
	rms := math.Sqrt((4 + 0.0001) / 8)
	require.InEpsilon(t, 0x1p-23/rms, m.MaxRMS, 1e-6)
	require.InEpsilon(t, 0x1p-23/math.Sqrt(8)/rms, m.RelRMS, 1e-6)
	require.InEpsilon(t, 0x1p-23/2, m.RowRMS, 1e-6)
	require.Equal(t, 2, m.Worst)
	require.Equal(t, 7.0/8, m.BitEqual)
	require.Equal(t, 1.0, m.OneULP)

	got[6] = float32(math.NaN())
	scale, m := m.Scale, bounds.Compare(got, want, 4, tensor.F32)
	require.True(t, math.IsNaN(float64(m.Got)))
	m.Got = 0
	require.Equal(t, bounds.Metrics{Worst: 6, Scale: scale, Rows: []float64{0, math.Inf(1)}}, m, "of the first row nothing counts any more")

	zero := make([]float32, 4)
	m = bounds.Compare([]float32{0, 0, 1e-30, 0}, zero, 4, tensor.F32)
	require.True(t, math.IsInf(m.RelRMS, 1), "a golden of zeros demands zeros")
	require.Zero(t, bounds.Compare(zero, zero, 4, tensor.F32).RelRMS)

	m = bounds.Compare([]float32{1, 1.0078125, 1.015625, 2}, []float32{1, 1, 1, 2}, 4, tensor.BF16)
	require.Equal(t, 0.5, m.BitEqual)
	require.Equal(t, 0.75, m.OneULP)
}
