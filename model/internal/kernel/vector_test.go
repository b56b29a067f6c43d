package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestVectors: products with one vector have the bits of Dot32 of decoded rows and columns, in every implementation,
// format and shape.
func TestVectors(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	numbers := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64() * math.Ldexp(1, r.IntN(8)-4))
		}
		return x
	}
	for _, rows := range []int{1, 5, 16, 33, 200} {
		for _, cols := range []int{1, 16, 48, 100, 272, 300} {
			n := rows * cols
			codes := make([]byte, 2*n)
			for i := range codes {
				for codes[i] = byte(r.Uint32()); codes[i]&0x7f >= 0x78; { // no NaN, of BF16 either
					codes[i] = byte(r.Uint32())
				}
			}
			kinds := map[string]Matrix{
				"F32":  {Rows: rows, Cols: cols, Values: numbers(n)},
				"BF16": {Rows: rows, Cols: cols, Format: BF16, Data: codes},
			}
			for _, block := range [][2]int{{32, 128}, {1, 16}, {7, 40}, {1000, 1000}} {
				grid := ceilDiv(rows, block[0]) * ceilDiv(cols, block[1])
				kinds[fmt.Sprint("FP8 ", block)] = Matrix{Rows: rows, Cols: cols, Format: F8E4M3, Data: codes[1 : n+1],
					Scales: numbers(grid), BlockRows: block[0], BlockCols: block[1]}
			}
			for name, w := range kinds {
				x, y := numbers(cols), numbers(rows)
				values := make([]float32, n)
				for i := range rows {
					copy(values[i*cols:], w.Row(make([]float32, cols), i))
				}
				wantRows, wantCols, column := make([]float32, rows), make([]float32, cols), make([]float32, rows)
				for i := range rows {
					wantRows[i] = Dot32(x, values[i*cols:][:cols])
				}
				for c := range cols {
					for i := range rows {
						column[i] = values[i*cols+c]
					}
					wantCols[c] = Dot32(y, column)
				}
				each(t, func(t *testing.T) {
					gotRows, gotCols := make([]float32, rows), make([]float32, cols)
					Times(gotRows, x, w)
					TimesColumns(gotCols, y, w)
					require.Equal(t, wantRows, gotRows, "%s [%d %d]", name, rows, cols)
					require.Equal(t, wantCols, gotCols, "%s [%d %d]", name, rows, cols)
				})
			}
		}
	}
}
