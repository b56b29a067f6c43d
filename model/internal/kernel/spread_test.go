package kernel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// spreadNumbers are numbers of many sizes, zeros of both signs and, if asked for, infinities and NaNs.
func spreadNumbers(n int, special bool) []float32 {
	r := rand.New(rand.NewPCG(7, 8))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64() * math.Ldexp(1, r.IntN(60)-30))
		switch kind := r.IntN(400); {
		case kind < 20:
			x[i] = float32(math.Copysign(0, float64(kind)-10))
		case kind == 20 && special:
			x[i] = float32(math.Inf(1 - 2*r.IntN(2)))
		case kind == 21 && special:
			x[i] = float32(math.NaN())
		}
	}
	return x
}

// TestExtremesByDefinition compares every implementation with comparisons of numbers, at lengths and alignments
// that leave rests.
func TestExtremesByDefinition(t *testing.T) {
	for _, special := range []bool{false, true} {
		x := spreadNumbers(2*chunk+100, special)
		each(t, func(t *testing.T) {
			require.Equal(t, Extremes{}, ExtremesOf(nil))
			for _, n := range []int{1, 7, 8, 15, 16, 17, 31, 128, 1000, chunk, 2*chunk + 9} {
				for at := range 20 {
					part := x[at*4:][:n]
					least, most, largest, zeros := math.Inf(1), math.Inf(-1), 0.0, uint32(0)
					for _, v := range part {
						least, most = min(least, float64(v)), max(most, float64(v))
						if largest = max(largest, math.Abs(float64(v))); v == 0 {
							zeros++
						}
					}
					e := ExtremesOf(part)
					require.Equal(t, zeros, e.Zeros, "%d from %d", n, at)
					if math.IsInf(largest, 0) || math.IsNaN(largest) {
						require.False(t, e.Largest <= math.MaxFloat32, "%d from %d", n, at)
						continue
					}
					require.Equal(t, []float64{least, most, largest}, []float64{float64(e.Least) + 0, float64(e.Most) + 0, float64(e.Largest)})
				}
			}
		})
	}
}

// TestMomentsIsPortable compares the kernels with portable Go, to the bit.
func TestMomentsIsPortable(t *testing.T) {
	x := spreadNumbers(Runs*8200+3, false)
	each(t, func(t *testing.T) {
		for _, n := range []int{1, 3, 4, 8, 100, 1024, 1026, 4096, 8192, 8196} {
			for at := range 4 {
				var want, got [2][Runs]float64
				momentsPortable(&want[0], &want[1], x[at:][:Runs*n])
				Moments(&got[0], &got[1], x[at:][:Runs*n])
				require.Equal(t, want, got, "%d from %d", n, at)
			}
		}
		require.Panics(t, func() { Moments(new([Runs]float64), new([Runs]float64), x[:9]) })
		require.Panics(t, func() { Moments(new([Runs]float64), new([Runs]float64), nil) })
	})
}

// TestPowers compares with sums of squares number by number, to the bit: of runs that have infinities and NaNs, too, and of
// some that are all zero.
func TestPowers(t *testing.T) {
	for _, special := range []bool{false, true} {
		x := spreadNumbers(Runs*8200, special)
		each(t, func(t *testing.T) {
			for _, n := range []int{1, 4, 100, 1026, 7168, 8200} {
				var want, got [2][Runs]float64
				squared, left := make([]float32, Runs*n), append([]float32(nil), x[:Runs*n]...)
				clear(left[2*n : 4*n])
				for i, v := range left {
					squared[i] = v * v
					want[0][i/n] += float64(v) * float64(v)
					want[1][i/n] += float64(squared[i]) * float64(squared[i])
				}
				Powers(&got[0], &got[1], left)
				for i := range want {
					for run, sum := range want[i] {
						require.True(t, got[i][run] == sum || got[i][run] != got[i][run] && sum != sum, "%d: %v", n, got)
					}
				}
				requireSame(t, squared, left)
			}
			require.Panics(t, func() { Powers(new([Runs]float64), new([Runs]float64), x[:9]) })
		})
	}
}

func BenchmarkSpread(b *testing.B) {
	x := spreadNumbers(1<<16, false)
	b.SetBytes(int64(len(x)))
	var m, s [Runs]float64
	for b.Loop() {
		ExtremesOf(x)
		for i := 0; i < len(x); i += Runs * 1024 {
			Moments(&m, &s, x[i:][:Runs*1024])
		}
	}
}
