package kernel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLossesCountsByDefinition compares every implementation with comparisons of numbers, one
// by one, at lengths and alignments that leave rests.
func TestLossesCountsByDefinition(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	each(t, func(t *testing.T) {
		for _, to := range roundingsFormats {
			least := to.LeastNormal()
			kinds := []float32{0, float32(math.Copysign(0, -1)), 1, -1, least, -least, math.Nextafter32(least, 0), math.Nextafter32(least, 1), 0x1p-24,
				-0x1p-149, math.MaxFloat32, -math.MaxFloat32, float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), .1, -3e-7}
			x, y := make([]float32, 70000), make([]float32, 70000)
			for i := range x {
				x[i], y[i] = kinds[r.IntN(len(kinds))], kinds[r.IntN(len(kinds))]
				if r.IntN(2) == 0 {
					y[i] = -x[i]
				}
			}
			out := make([]byte, len(x)*to.Size())
			Narrow(out, y, to)
			Widen(y, out, to)
			defined := func(y, x []float32) (l Losses) {
				for i, v := range x {
					a, b := math.Abs(float64(v)), math.Abs(float64(y[i]))
					changed := a != b && (a == a || b == b)
					if changed {
						l.Changed++
					}
					if changed && a < float64(least) {
						l.Small++
					}
					if changed && b == 0 {
						l.Zero++
					}
					if b != b || math.IsInf(b, 0) {
						l.Infinite++
					}
				}
				return l
			}
			for _, n := range []int{0, 1, 7, 8, 9, 15, 16, 17, 31, 64, 1000, 2048, 65543} {
				for at := range 9 {
					got := Losses{Changed: 9, Small: 9, Zero: 9, Infinite: 9}
					got.Count(out[at*to.Size():(at+n)*to.Size()], to, x[at:at+n])
					require.Equal(t, defined(y[at:at+n], x[at:at+n]), got, "%d from %d to %s", n, at, to)
				}
			}
		}
		require.Panics(t, func() { new(Losses).Count(make([]byte, 16), F16, make([]float32, 7)) })
	})
}
