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
		for _, n := range []int{8, 32, 256} {
			for _, blocks := range []int{0, 1, 2, 7, 64} {
				for at := 0; at+blocks*n <= len(x); at += 31 * n / 8 {
					a, b, got := y[at:][:blocks*n], x[at:][:blocks*n], make([]BlockSums, blocks+1)
					Compare(got[:blocks], a, b)
					require.Zero(t, got[blocks])
					for k, s := range got[:blocks] {
						var want BlockSums
						blockErrorsPortable(&want, a[k*n:][:n], b[k*n:][:n])
						if want.Largest >= 0x7f800000 {
							require.GreaterOrEqual(t, s.Largest, uint32(0x7f800000))
							continue
						}
						require.Equal(t, want, s, "block %d of %d of %d from %d", k, blocks, n, at)
					}
				}
			}
		}
		require.Panics(t, func() { Compare(make([]BlockSums, 1), y[:8], x[:16]) })
		require.Panics(t, func() { Compare(make([]BlockSums, 1), y[:7], x[:7]) })
		require.Panics(t, func() { Compare(make([]BlockSums, 3), y[:32], x[:32]) })
	})
}

// TestCompareQ8IsPortable compares the kernels with portable Go: blocks of numbers, with some codes and scales that are wrong,
// infinite and NaN.
func TestCompareQ8IsPortable(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	x := rowsOfBlocks(r, 1100)
	blocks := make([]byte, Q8_0.Bytes(len(x)))
	EncodeQ8(blocks, x)
	for range 300 {
		blocks[r.IntN(len(blocks))] = byte(r.Uint32())
	}
	want, infinite := make([]BlockSums, 1100), 0
	for k := range want {
		compareQ8Portable(&want[k], blocks[34*k:][:34], x[32*k:][:32])
		if want[k].Largest >= 0x7f800000 {
			infinite++
		}
	}
	require.Greater(t, infinite, 10)
	each(t, func(t *testing.T) {
		for _, n := range []int{0, 1, 2, 7, 1100} {
			got := make([]BlockSums, n+1)
			CompareQ8(got[:n], blocks[:34*n], x[:32*n])
			require.Zero(t, got[n])
			for k, s := range got[:n] {
				if want[k].Largest >= 0x7f800000 {
					require.GreaterOrEqual(t, s.Largest, uint32(0x7f800000))
					continue
				}
				require.Equal(t, want[k], s, "block %d of %d", k, n)
			}
		}
		require.Panics(t, func() { CompareQ8(make([]BlockSums, 1), blocks[:34], x[:64]) })
		require.Panics(t, func() { CompareQ8(make([]BlockSums, 1), blocks[:33], x[:32]) })
	})
}

// TestWidenQ8IsPortable compares the kernels with the definition, and looks beyond the end.
func TestWidenQ8IsPortable(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	src := make([]byte, 34*1100)
	for i := range src {
		src[i] = byte(r.Uint32())
	}
	each(t, func(t *testing.T) {
		for _, n := range []int{0, 1, 2, 7, 1100} {
			got := make([]float32, 32*n+1)
			got[32*n] = 5
			Widen(got[:32*n], src[:34*n], Q8_0)
			require.EqualValues(t, 5, got[32*n])
			for i, v := range got[:32*n] {
				want := float32(int8(src[i/32*34+2+i%32])) * f16At(src[i/32*34:])
				if want == want || v == v {
					require.Equal(t, math.Float32bits(want), math.Float32bits(v), "number %d of %d blocks", i, n)
				}
			}
		}
	})
}
