package kernel

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestColumnsAreTheDefinition, for widths around a block of columns and its vectors, with
// scales and without.
func TestColumnsAreTheDefinition(t *testing.T) {
	each(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(3, 4))
		for _, cols := range []int{1, 15, 16, 17, columnBlock, columnBlock + 19} {
			for _, f := range []Format{F32, BF16, F8E4M3} {
				const rows, tokens = 9, 3
				w := stored(r, rows, cols, f, 1)
				if f == F8E4M3 {
					w.BlockRows, w.BlockCols = 4, 48
					w.Scales = random(r, ceilDiv(rows, 4)*ceilDiv(cols, 48))
				}
				a, b := random(r, tokens*rows), random(r, tokens*rows)
				products, squares := make([]float32, tokens*cols), make([]float32, tokens*cols)
				for row := range rows {
					for c, v := range w.Row(make([]float32, cols), row) {
						for token := range tokens {
							products[token*cols+c] += float32(a[token*rows+row] * v)
							squares[token*cols+c] += float32(b[token*rows+row] * float32(v*v))
						}
					}
				}
				gotProducts, gotSquares := random(r, tokens*cols), random(r, tokens*cols)
				Columns(gotProducts, a, gotSquares, b, w, 2)
				requireSame(t, products, gotProducts)
				requireSame(t, squares, gotSquares)
			}
		}
	})
	require.Panics(t, func() {
		Columns(make([]float32, 3), make([]float32, 2), make([]float32, 2), make([]float32, 2), Matrix{Rows: 2, Cols: 2, Values: make([]float32, 4)}, 1)
	})
}
