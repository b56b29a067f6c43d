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
		func() float32 { return float32(5 + r.Float64()) },
		func() float32 { return -float32(5 + r.Float64()) },
		func() float32 { return float32(r.NormFloat64()) * 1e-15 },
		func() float32 { return float32(r.IntN(3) - 1) },
		func() float32 { return float32(r.NormFloat64()) * 1e-41 },
		func() float32 { return float32(r.NormFloat64()) * 1e37 },
	}
	for i := range 100 {
		var f Fit
		for g := range FitGroups { // the last two, whose codes may be too large to round, are in every other case
			kind := kinds[r.IntN(len(kinds)-i%2*2)]
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
		r := rand.New(rand.NewPCG(1, 2))
		for i, f := range fitCases(r) {
			weigh(&f, r)
			for most, tries := range map[int][]float32{3: minimums[:16], 15: minimums, 31: minimums[:1]} {
				for _, n := range []int{16, 32} {
					for _, absolute := range []bool{false, true} {
						want, got := f, f
						for g := range FitGroups {
							want.minimumsPortable(g, n, int32(most), tries, absolute)
						}
						got.Minimums(n, most, tries, absolute)
						requireSameFit(t, &want, &got, fmt.Sprintf("case %d, minimums, %d of %d, %v", i, most, n, absolute))
					}
				}
			}
			for most, tries := range map[int][]float32{4: symmetric, 32: symmetric[:1], 31: symmetric} {
				for _, n := range []int{16, 32} {
					want, got := f, f
					for g := range FitGroups {
						want.symmetricPortable(g, n, int32(most), tries)
					}
					got.Symmetric(n, most, tries)
					requireSameFit(t, &want, &got, fmt.Sprintf("case %d, symmetric, %d of %d", i, most, n))
				}
			}
			want, got := f, f
			for g := range FitGroups {
				want.stepwisePortable(g)
			}
			got.Stepwise()
			requireSameFit(t, &want, &got, fmt.Sprintf("case %d, stepwise", i))
			require.Equal(t, want.L[:16], got.L[:16], "case %d, stepwise", i)
		}
	})
}

// weigh sets the weights: |x|, zeros, random ones, or the same for all.
func weigh(f *Fit, r *rand.Rand) {
	for g := range FitGroups {
		kind := r.IntN(4)
		for j := range f.W {
			f.W[j][g] = []float32{float32(math.Abs(float64(f.X[j][g]))), float32(r.IntN(2)), r.Float32(), 1}[kind]
		}
	}
}

func requireSameFit(t *testing.T, want, got *Fit, name string) {
	if want.X != got.X {
		require.Equal(t, want.X, got.X, name)
	}
	for g := range FitGroups {
		w := []float32{want.Scale[g], want.Low[g], want.Per[g], want.From[g]}
		for k, v := range []float32{got.Scale[g], got.Low[g], got.Per[g], got.From[g]} {
			if math.Float32bits(w[k]) != math.Float32bits(v) && (w[k] == w[k] || v == v) {
				require.Fail(t, name, "group %d: %v, not %v", g, v, w[k])
			}
		}
	}
}

// BenchmarkFit fits numbers, 32 or 16 of each group, in numbers a second.
func BenchmarkFit(b *testing.B) {
	minimums, symmetric := fitTries()
	var f Fit
	r := rand.New(rand.NewPCG(1, 2))
	for j := range f.X {
		for g := range f.X[j] {
			f.X[j][g], f.W[j][g] = float32(r.NormFloat64()), 1
		}
	}
	for _, name := range Implementations() {
		restore := Use(name)
		b.Run("minimums/"+name, func(b *testing.B) {
			b.SetBytes(32 * FitGroups)
			for b.Loop() {
				f.Minimums(32, 15, minimums, false)
			}
		})
		b.Run("symmetric/"+name, func(b *testing.B) {
			b.SetBytes(16 * FitGroups)
			for b.Loop() {
				f.Symmetric(16, 32, symmetric)
			}
		})
		b.Run("stepwise/"+name, func(b *testing.B) {
			b.SetBytes(16 * FitGroups)
			for b.Loop() {
				f.Stepwise()
			}
		})
		restore()
	}
}
