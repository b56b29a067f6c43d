package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTilesAreTheDotProduct runs each tile by itself and looks behind the scratch that it
// may use.
func TestTilesAreTheDotProduct(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(17, 2))
	for _, im := range supported() {
		for f, set := range im.tile {
			for n := 1; n <= 1100; n += 1 + n/3 {
				if !im.anyLength {
					n = roundUp(n, lanes)
				}
				w := stored(r, tileRows, n, Format(f), 3)
				x := awkward(r, maxWidth*n)
				for i := range maxWidth {
					if set.float32[i] != nil {
						name := fmt.Sprintf("%s %v×%d, length %d", im.name, Format(f), i+1, n)
						checkTile(t, name, set.float32[i], w, x[:(i+1)*n], Dot32)
						checkTile(t, name, set.float64[i], w, x[:(i+1)*n], Dot64)
					}
				}
			}
		}
	}
}

// tileWeightsOf points to the rows of w.
func tileWeightsOf(w *Matrix) (rows [tileRows]*byte) {
	for j := range rows {
		rows[j] = (*byte)(w.start(j))
	}
	return rows
}

// checkTile compares one tile with the definition of its sums.
func checkTile[F float32 | float64](t *testing.T, name string, tile tileKernel[F], w Matrix, x []float32, dot func(x, w []float32) F) {
	t.Helper()
	n, row := w.Cols, make([]float32, w.Cols)
	tokens := make([]F, len(x))
	for i, v := range x {
		tokens[i] = F(v)
	}
	var out struct {
		sum   [256]F
		guard [64]F
	}
	fill(out.guard[:], 7)
	s, rows := new(tileScratch[F]), tileWeightsOf(&w)
	width := len(x) / n
	for i := range width {
		s.x[i] = &tokens[i*n]
	}
	tile(&rows, &s.x, n, &out.sum)
	for i := range width {
		for j := range tileRows {
			want, got := dot(x[i*n:(i+1)*n], w.Row(row, j)), out.sum[tileRows*i+j]
			require.True(t, same(want, got), "%s: token %d row %d: got %x, want %x", name, i, j, got, want)
		}
	}
	for _, v := range out.guard {
		require.Equal(t, F(7), v, name)
	}
}

// TestTileWidth takes the smallest width that holds the tokens.
func TestTileWidth(t *testing.T) {
	t.Parallel()
	some := func(*[tileRows]*byte, *[maxWidth]*float32, int, *[256]float32) {}
	set := tiles{float32: [maxWidth]tileKernel[float32]{some, some, nil, some}}
	for n, want := range map[int]int{1: 1, 2: 2, 3: 4, 4: 4, 5: 4, 100: 4} {
		require.Equal(t, want, set.width(n), "%d tokens", n)
	}
	set = tiles{float32: [maxWidth]tileKernel[float32]{some, some, some, nil}}
	require.Equal(t, 3, set.width(9))
}

// TestSetTokensPads with numbers that change no sum.
func TestSetTokensPads(t *testing.T) {
	t.Parallel()
	negative := float32(math.Copysign(0, -1))
	for _, acc := range accumulators {
		j := &job{serial: 1, im: &portable, x: []float32{1, 2, 3, 4, 5, 6}, w: Matrix{Cols: 3}, length: 16, acc: acc}
		var s scratch
		s.setTokens(j, 0, 2)
		for i, want := range [][]float32{{1, 2, 3, negative}, {4, 5, 6, negative}} {
			for k := range 16 {
				want := want[min(k, 3)]
				if acc == Float32 {
					require.Equal(t, math.Float32bits(want), math.Float32bits(s.x[i*16+k]))
				} else {
					require.Equal(t, math.Float64bits(float64(want)), math.Float64bits(s.wide[i*16+k]))
				}
			}
		}
		j.x = []float32{9, 9, 9, 9, 9, 9}
		s.setTokens(j, 0, 2)
		if acc == Float32 {
			require.Equal(t, float32(1), s.x[0], "the tokens of a job are set once")
		} else {
			require.Equal(t, 1.0, s.wide[0])
		}
		j.serial++
		s.setTokens(j, 0, 2)
		if acc == Float32 {
			require.Equal(t, float32(9), s.x[0])
		} else {
			require.Equal(t, 9.0, s.wide[0])
		}
	}
}
