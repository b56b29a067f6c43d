package stats

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOrdinaryNumbers: numbers that are added together have the counts, sums and peaks of rows, to the bit, that they
// have one by one, and none is added if F16 has no room for one of them.
func TestOrdinaryNumbers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	all := make([]float32, 5*8*chunkElements)
	for i := range all {
		all[i] = float32(r.NormFloat64() * math.Ldexp(1, r.IntN(20)-10))
		if r.IntN(50) == 0 {
			all[i] = float32(math.Copysign(0, r.Float64()-0.5))
		}
	}
	for _, n := range []int{1, 1000, 1024, 1025, 8192, 8193, 20000, len(all)} {
		for _, width := range []int64{1, 700, 7168, 50000} {
			values, at := all[:n], int64(300)
			want, got := newSums(), newSums()
			room := func() *rowPeaks { return &rowPeaks{width: width, peaks: make([]float32, (at+int64(n))/width+1)} }
			wantRows, gotRows := room(), room()
			for range 2 { // a second tile is merged
				want.addValues(values)
				wantRows.raiseAll(at, values)
				require.True(t, got.addOrdinary(values, gotRows, at))
			}
			require.Equal(t, want, got, n)
			require.Equal(t, wantRows, gotRows, n)
			for _, v := range []float32{beyondF16, -beyondF16, float32(math.Inf(-1)), float32(math.NaN())} {
				before := got
				kept := values[n/2]
				values[n/2] = v
				require.False(t, got.addOrdinary(values, nil, at))
				require.Equal(t, before, got)
				values[n/2] = kept
			}
		}
	}
}
