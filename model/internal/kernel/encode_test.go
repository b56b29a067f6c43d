package kernel

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// rowsOfBlocks are blocks of 32 numbers: of many sizes, zeros, denormals, ties, one outlier, numbers
// whose scale is beyond F16 and whose squares are beyond float32.
func rowsOfBlocks(r *rand.Rand, n int) []float32 {
	x := make([]float32, 32*n)
	for i := range n {
		block, scale := x[32*i:][:32], float32(math.Ldexp(1, r.IntN(270)-148))
		for j := range block {
			switch i % 6 {
			case 0:
				block[j] = float32(r.NormFloat64())
			case 1:
				block[j] = float32(r.IntN(255)-127) / 2 * scale // ties
			case 2:
				block[j] = float32(math.Float32frombits(uint32(r.IntN(40)))) // denormals
			case 3:
				block[j] = float32(r.NormFloat64()) * scale
			case 4:
				block[j] = math.Nextafter32(0.5, 0) * float32(1-2*r.IntN(2))
			}
			if v := block[j]; v-v != 0 {
				block[j] = 3e38
			}
		}
		if i%6 >= 4 {
			block[r.IntN(32)] = 127 * float32(1-2*r.IntN(2))
		}
	}
	return x
}

// TestEncodeQ8IsPortable compares the kernels with portable Go, and looks beyond the end.
func TestEncodeQ8IsPortable(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	x := rowsOfBlocks(r, 3000)
	want := make([]byte, Q8_0.Bytes(len(x)))
	for i := range len(x) / 32 {
		encodeQ8Portable((*[34]byte)(want[34*i:]), (*[32]float32)(x[32*i:]))
	}
	each(t, func(t *testing.T) {
		for _, n := range []int{0, 1, 2, 7, 3000} {
			got := make([]byte, 34*n+3)
			fill(got, 0xa5)
			EncodeQ8(got, x[:32*n])
			require.True(t, bytes.Equal(want[:34*n], got[:34*n]), "%d blocks", n)
			require.Equal(t, []byte{0xa5, 0xa5, 0xa5}, got[34*n:])
		}
		require.Panics(t, func() { EncodeQ8(make([]byte, 33), x[:32]) })
		require.Panics(t, func() { EncodeQ8(make([]byte, 34), x[:31]) })
	})
}

// TestBlockErrorsIsPortable compares the kernels with portable Go, at any alignment, and
// with NaNs.
func TestBlockErrorsIsPortable(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	x := rowsOfBlocks(r, 600)
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = v * float32(1+r.NormFloat64()*0.01)
		switch r.IntN(500) {
		case 0:
			y[i] = float32(math.NaN())
		case 1:
			y[i] = float32(math.Inf(-1))
		}
	}
	each(t, func(t *testing.T) {
		for i := range len(x)/32 - 8 {
			for _, n := range []int{0, 8, 32, 256} {
				var want BlockSums
				a, b := y[32*i+i%32:][:n], x[32*i+i%32:][:n]
				blockErrorsPortable(&want, a, b)
				var got BlockSums
				got.Compare(a, b)
				if want.Largest >= 0x7f800000 {
					require.GreaterOrEqual(t, got.Largest, uint32(0x7f800000))
					continue
				}
				require.Equal(t, want, got, "%d from %d", n, 32*i)
			}
		}
		require.Panics(t, func() { new(BlockSums).Compare(y[:8], x[:16]) })
		require.Panics(t, func() { new(BlockSums).Compare(y[:7], x[:7]) })
	})
}
