package bounds

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// TestRoundsTo: a value is the only one if 8 σ do not reach the middle between it and the next one.
func TestRoundsTo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		sigma float32 // in units of u
		only  bool
	}{{0, true}, {0x1p16 / Lambda * 0.99, true}, {0x1p16 / Lambda * 1.01, false}} {
		x := &Value{Activation: &model.Activation{Shape: []int{1}, Values: []float32{1 + 0x1p-7}, DType: tensor.BF16},
			sigma: &model.Activation{Values: []float32{c.sigma}}}
		y, only := x.RoundsTo(0)
		require.Equal(t, float32(1+0x1p-7), y)
		require.Equal(t, c.only, only, c.sigma)
	}
}

// TestSchedules cut sums in two forms, which are one where K allows only one.
func TestSchedules(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		s       Schedule
		k, part int
		cuts    bool
	}{
		{Schedule{Parts: 4}, 192, 64, false}, {Schedule{Parts: 4}, 256, 64, true}, {Schedule{Parts: 4}, 200, 64, true},
		{Schedule{Parts: 4, Even: true}, 200, 50, true}, {Schedule{Parts: 4, Even: true}, 256, 64, false},
		{Schedule{Parts: 4, Even: true}, 202, 202, false},
		{Schedule{Terms: 8}, 20, 8, true}, {Schedule{Terms: 8}, 8, 8, false},
	} {
		if c.cuts {
			require.Equal(t, c.part, c.s.part(c.k), c)
		}
		require.Equal(t, c.cuts, c.s.Cuts(c.k), c)
	}
}

// TestDenormalPartialSums: processors' products of BF16 numbers turn partial sums below the least normal number into 0.
// Sums of the usual size have no more variance for it.
func TestDenormalPartialSums(t *testing.T) {
	t.Parallel()
	const tokens, in, out = 12, 96, 40
	a := NewAnalysis(model.Options{DType: tensor.BF16}, nil)
	defer a.Close()
	for name, shift := range map[string]float64{"two signs": -0.5, "one sign": 0} {
		r := rand.New(rand.NewPCG(1, 2))
		x, w := make([]float32, tokens*in), make([]float32, out*in)
		for i := range x {
			x[i] = to16(float32(math.Ldexp(0.5+r.Float64(), -124)))
		}
		for i := range w {
			w[i] = to16(float32(r.Float64()+shift) / 8)
		}
		y := a.Linear(value16(x, tokens, in), &model.Linear{Weight: weight16("w", w, out, in)})
		want := make([]float32, tokens*out)
		for i := range want {
			for k := range in {
				want[i] += float32(x[i/out*in+k] * w[i%out*in+k])
				if math.Abs(float64(want[i])) < leastNormal {
					want[i] = 0
				}
			}
			want[i] = to16(want[i])
		}
		require.LessOrEqual(t, Measure(y, want, allRows(want, y), 1).Largest, float64(Lambda), name)
	}
	lossy := a.gemm(tensor.BF16, 4096)
	require.Equal(t, a.sums(4096).variance(0x1p-40, 0x1p-80, 0x1p-80), lossy.variance(0x1p-40, 0x1p-80, 0x1p-80))
	require.Zero(t, lossy.variance(0, 0, 0), "terms of 0 lose nothing")
}
