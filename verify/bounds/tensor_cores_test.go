package bounds

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/verifytest"
)

// TestSumsOfTensorCores: sums that tensor cores cut off, and float32 sums of a GPU, which are one chain, are right
// references, a wrong weight is seen in them. The bounds of a CPU call long sums wrong.
func TestSumsOfTensorCores(t *testing.T) {
	t.Parallel()
	const rows, out = 8, 12
	tf32 := newPrecision(11, -126, math.MaxFloat32)
	numbers := map[string]func(r *rand.Rand, i, k int) float64{
		"normal":   func(r *rand.Rand, _, _ int) float64 { return r.NormFloat64() },
		"one sign": func(r *rand.Rand, _, _ int) float64 { return math.Abs(r.NormFloat64()) },
		"massive": func(r *rand.Rand, i, _ int) float64 {
			if i == 3 {
				return 400 * r.NormFloat64()
			}
			return r.NormFloat64()
		},
		"runs of one sign": func(r *rand.Rand, i, k int) float64 { return math.Abs(r.NormFloat64()) * float64(1-6*i/k%2*2) },
	}
	for _, of := range []struct {
		d     tensor.DType
		short bool // float32 operands are rounded to TF32
		cores []verifytest.TensorCore
	}{
		{tensor.BF16, false, []verifytest.TensorCore{{Terms: 4, Fraction: 23}, {Terms: 8, Fraction: 24}, {Terms: 16, Fraction: 25}}},
		{tensor.F16, false, []verifytest.TensorCore{{Terms: 4, Fraction: 23}, {Terms: 8, Fraction: 24}, {Terms: 16, Fraction: 25}}},
		{tensor.F32, true, []verifytest.TensorCore{{Terms: 4, Fraction: 24}, {Terms: 8, Fraction: 25}}},
		{tensor.F32, false, []verifytest.TensorCore{{}}},
	} {
		beyond, cpu := 0.0, NewAnalysis(model.Options{DType: of.d}, nil)
		defer cpu.Close()
		gpu := NewAnalysis(model.Options{DType: of.d}, nil)
		defer gpu.Close()
		gpu.SetReference(Reference{GPU: true, TF32: of.short})
		for name, number := range numbers {
			for _, k := range []int{64, 7168} {
				r := rand.New(rand.NewPCG(21, 22))
				stored := func(v float64) float32 {
					if of.short {
						v, _ = tf32.point(v, 0)
					}
					return tensor.Rounded(float32(v), of.d)
				}
				x, w := make([]float32, rows*k), make([]float32, out*k)
				for i := range x {
					x[i] = stored(number(r, i%k, k))
				}
				for i := range w {
					if w[i] = stored(r.NormFloat64()); name == "one sign" || name == "runs of one sign" {
						w[i] = float32(math.Abs(float64(w[i])))
					}
				}
				in := &model.Activation{DType: of.d, Shape: []int{rows, k}, Values: x}
				l := &model.Linear{Weight: storedWeight(w, out, k)}
				y := gpu.Linear(Exact(in), l)
				for _, core := range of.cores {
					golden := make([]float32, rows*out)
					for i := range golden {
						golden[i] = tensor.Rounded(core.Dot(x[i/out*k:][:k], w[i%out*k:][:k]), of.d)
					}
					d, what := Measure(y, golden, allRows(golden, y), 1), fmt.Sprint(of.d, core, name, k)
					require.Less(t, d.Largest, 4.0, what)
					require.Less(t, d.Rms, 1.1, what)
					other := cpu.Linear(Exact(in), l)
					beyond = max(beyond, Measure(other, golden, allRows(golden, other), 1).Largest)
				}
				change := 20*Unit*math.Sqrt(y.Variance(5)) + 2*PrecisionOf(of.d).Ulp(float64(y.Values[5]))
				w[5*k+7] += float32(change / float64(x[7]))
				golden := append([]float32(nil), y.Values...)
				golden[5] = tensor.Rounded(of.cores[0].Dot(x[:k], w[5*k:][:k]), of.d)
				require.Greater(t, Measure(y, golden, allRows(golden, y), 1).Largest, float64(Lambda), "%v %s %d", of.d, name, k)
			}
		}
		require.Greater(t, beyond, 5.0, of.d)
	}
}
