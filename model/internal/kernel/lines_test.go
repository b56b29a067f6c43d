package kernel

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// lineCases are numbers and lines of all kinds, some of parts without scale.
func lineCases(r *rand.Rand) (x [256]float32, l Lines) {
	sizes := []float32{1, 1, 1, 1e-20, 1e20, 1e-41, 0}
	for p := range l.Scale {
		size := sizes[r.IntN(len(sizes))]
		l.Scale[p], l.Low[p] = float32(r.NormFloat64())*size, float32(r.IntN(2))*r.Float32()*size
		for i := range 16 {
			x[16*p+i] = float32(r.NormFloat64()) * 10 * sizes[r.IntN(2)]
		}
	}
	return x, l
}

// TestLines compares the kernels with portable Go, to the bit.
func TestLines(t *testing.T) {
	each(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 2))
		for range 200 {
			x, l := lineCases(r)
			for _, limits := range [][2]int32{{0, 3}, {0, 15}, {0, 31}, {-4, 3}, {-32, 31}} {
				var y, z [256]float32
				want, got := l, l
				want.encodePortable(&x, limits[0], limits[1])
				got.Encode(&x, limits[0], limits[1])
				for i := range want.Codes { // those of a part without scale are undefined
					if l.Scale[i/16] == 0 {
						want.Codes[i], got.Codes[i] = byte(i)&3, byte(i)&3
					}
				}
				require.True(t, want == got, limits)
				want.decodePortable(&y, -limits[0])
				got.Decode(&z, -limits[0])
				require.Equal(t, bitsOf(y[:]), bitsOf(z[:]), limits)
				for _, n := range []int{8, 16, 32, 256} {
					spans := make([]Span, 256/n)
					Spans(spans, y[:], x[:])
					for i, s := range spans {
						require.Equal(t, spanPortable(y[i*n:][:n], x[i*n:][:n]), s)
					}
				}
			}
		}
		require.Panics(t, func() { Spans(make([]Span, 3), make([]float32, 16), make([]float32, 16)) })
		require.Panics(t, func() { Spans(make([]Span, 1), make([]float32, 16), make([]float32, 8)) })
	})
}

func bitsOf(x []float32) (bits []uint32) {
	for _, v := range x {
		bits = append(bits, math.Float32bits(v))
	}
	return bits
}

// TestGroups checks where the numbers of groups lie, and compares weights with portable Go.
func TestGroups(t *testing.T) {
	each(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 2))
		for _, f := range fitCases(r) {
			for _, n := range []int{16, 32} {
				x := make([]float32, n*FitGroups)
				for i := range x {
					x[i] = f.X[i%n][i/n]
				}
				for _, groups := range []int{FitGroups, FitGroups / 2, 1} {
					var want, got Fit
					for i, v := range x[:groups*n] {
						want.X[i%n][i/n] = v
					}
					got.SetNumbers(x[:groups*n], n)
					got.SetWeights(x[:groups*n], n)
					require.True(t, want.X == got.X && want.X == got.W, "%d groups of %d", groups, n)
				}
				for _, rms := range []bool{false, true} {
					want, got := f, f
					want.weighPortable(n, rms)
					got.Weigh(n, rms)
					require.True(t, slices.Equal(want.W[:n], got.W[:n]), "%d, %v", n, rms)
				}
				want, got := f, f
				got.WeighSquares(n)
				for i, v := range x {
					want.W[i%n][i/n] = v * v
				}
				require.True(t, want == got, n)
			}
		}
	})
}
