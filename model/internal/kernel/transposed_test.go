package kernel

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTransposed: numbers of some columns, around a block of rows, with scales and without.
func TestTransposed(t *testing.T) {
	each(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(5, 6))
		for _, rows := range []int{1, transposeRows - 1, transposeRows, 2*transposeRows + 3} {
			for _, f := range []Format{F32, BF16, F8E4M3} {
				const cols, from, to = 150, 48, 131
				w := stored(r, rows, cols, f, 1)
				if f == F8E4M3 {
					w.BlockRows, w.BlockCols = 4, 48
					w.Scales = random(r, ceilDiv(rows, 4)*ceilDiv(cols, 48))
				}
				want := make([]float32, (to-from)*rows)
				for row := range rows {
					for c, v := range w.Row(make([]float32, cols), row)[from:to] {
						want[c*rows+row] = v
					}
				}
				got := random(r, (to-from)*rows)
				Transposed(got, w, from, to, 2)
				requireSame(t, want, got)
			}
		}
	})
	require.Panics(t, func() {
		Transposed(make([]float32, 3), Matrix{Rows: 2, Cols: 2, Values: make([]float32, 4)}, 0, 2, 1)
	})
}
