package kernel

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSquaresAreTheDefinition: MatMul with squared weights is the dot product with the
// squares of the decoded numbers, in all formats, for few tokens and many.
func TestSquaresAreTheDefinition(t *testing.T) {
	each(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 2))
		for _, f := range []Format{F32, F16, BF16, F8E4M3} {
			for _, shape := range [][3]int{{1, 5, 16}, {3, 7, 33}, {13, 34, 100}, {2, 3, 7}, {2, 150, 2100}, {530, 40, 70}} {
				tokens, rows, cols := shape[0], shape[1], shape[2]
				w := stored(r, rows, cols, f, 3)
				x := random(r, tokens*cols)
				want := make([]float32, tokens*rows)
				for row := range rows {
					plain := append([]float32{}, w.Row(make([]float32, cols), row)...)
					for i, v := range plain {
						plain[i] = v * v
					}
					for token := range tokens {
						want[token*rows+row] = Dot32(x[token*cols:(token+1)*cols], plain)
					}
				}
				squared := w
				squared.Square = true
				got := make([]float32, tokens*rows)
				MatMul(got, x, squared, nil, Float32, 2)
				requireSame(t, want, got)

				for _, acc := range []Accumulator{Float64, Float32} {
					bias, y := random(r, rows), random(r, tokens*cols)
					product, both := make([]float32, tokens*rows), random(r, tokens*rows)
					MatMul(product, y, w, bias, acc, 1)
					clear(got)
					MatMulSquares(both, y, w, bias, acc, got, x, 2)
					requireSame(t, product, both)
					requireSame(t, want, got)
				}

				values := make([]float32, 0, rows*cols)
				for row := range rows {
					values = append(values, w.Row(make([]float32, cols), row)...)
				}
				kept := append([]float32{}, values...)
				MatMul(got, x, Matrix{Rows: rows, Cols: cols, Values: values, Square: true}, nil, Float32, 1)
				requireSame(t, want, got)
				requireSame(t, kept, values)
			}
		}
	})
}

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
