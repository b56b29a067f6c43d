package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// fitTries are numerators as the encoders of Q4_K and Q6_K have them.
func fitTries() (minimums, symmetric []float32) {
	symmetric = []float32{-32}
	for i := range 21 {
		minimums = append(minimums, -1+0.1*float32(i)+15)
		symmetric = append(symmetric, -(32 + 0.1*float32(i-10)))
	}
	return minimums, symmetric
}

// fitCases are groups of numbers of all kinds: ordinary ones, heavy tails, all equal, all zero,
// denormal, huge, of one sign, below the least group.
func fitCases(r *rand.Rand) (cases []Fit) {
	kinds := []func() float32{
		func() float32 { return float32(r.NormFloat64()) },
		func() float32 { return float32(r.NormFloat64() / r.NormFloat64()) },
		func() float32 { return 3 },
		func() float32 { return -3 },
		func() float32 { return 0 },
		func() float32 { return float32(math.Copysign(0, float64(r.IntN(2))-1)) },
		func() float32 { return float32(r.NormFloat64()) * 1e-41 },
		func() float32 { return float32(r.NormFloat64()) * 1e37 },
		func() float32 { return float32(5 + r.Float64()) },
		func() float32 { return -float32(5 + r.Float64()) },
		func() float32 { return float32(r.NormFloat64()) * 1e-15 },
		func() float32 { return float32(r.IntN(3) - 1) },
	}
	for range 100 {
		var f Fit
		for g := range FitGroups {
			kind := kinds[r.IntN(len(kinds))]
			for j := range f.X {
				f.X[j][g] = kind()
			}
		}
		cases = append(cases, f)
	}
	return cases
}

// TestFit compares the kernels with portable Go, to the bit; of NaN only that it is one is defined.
func TestFit(t *testing.T) {
	minimums, symmetric := fitTries()
	each(t, func(t *testing.T) {
		for i, f := range fitCases(rand.New(rand.NewPCG(1, 2))) {
			for most, tries := range map[int][]float32{15: minimums, 31: minimums[:1]} {
				want, got := f, f
				for g := range FitGroups {
					want.minimumsPortable(g, int32(most), tries)
				}
				got.Minimums(most, tries)
				requireSameFit(t, &want, &got, fmt.Sprintf("case %d, minimums, %d", i, most))
			}
			for _, tries := range [][]float32{symmetric, symmetric[:1]} {
				want, got := f, f
				for g := range FitGroups {
					want.symmetricPortable(g, tries)
				}
				got.Symmetric(tries)
				requireSameFit(t, &want, &got, fmt.Sprintf("case %d, symmetric", i))
			}
		}
	})
}

func requireSameFit(t *testing.T, want, got *Fit, name string) {
	require.Equal(t, want.X, got.X, name)
	for g := range FitGroups {
		w := []float32{want.Scale[g], want.Low[g], want.Per[g], want.From[g]}
		for k, v := range []float32{got.Scale[g], got.Low[g], got.Per[g], got.From[g]} {
			require.True(t, math.Float32bits(w[k]) == math.Float32bits(v) || w[k] != w[k] && v != v, "%s, group %d: %v, not %v", name, g, v, w[k])
		}
	}
}

// BenchmarkFit fits 256 numbers, or 128, in numbers a second.
func BenchmarkFit(b *testing.B) {
	minimums, symmetric := fitTries()
	var f Fit
	r := rand.New(rand.NewPCG(1, 2))
	for j := range f.X {
		for g := range f.X[j] {
			f.X[j][g] = float32(r.NormFloat64())
		}
	}
	for _, name := range Implementations() {
		restore := Use(name)
		b.Run("minimums/"+name, func(b *testing.B) {
			b.SetBytes(256)
			for b.Loop() {
				f.Minimums(15, minimums)
			}
		})
		b.Run("symmetric/"+name, func(b *testing.B) {
			b.SetBytes(128)
			for b.Loop() {
				f.Symmetric(symmetric)
			}
		})
		restore()
	}
}
