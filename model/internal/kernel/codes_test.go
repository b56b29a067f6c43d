package kernel

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWidenNibbles: every pair of codes, in blocks of several lengths, by the definition.
func TestWidenNibbles(t *testing.T) {
	src := make([]byte, 256)
	for i := range src {
		src[i] = byte(i)
	}
	e2m1 := [8]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6}
	for _, f := range []Format{INT4, F4} {
		for _, block := range []int{1, 3, 16, 32, 512} {
			scales, zeros := make([]float32, 512), []float32(nil)
			for i := range scales {
				scales[i] = float32(i%7) - 2.5
				if f == INT4 {
					zeros = append(zeros, float32(i%5)-3)
				}
			}
			got := make([]float32, 512)
			WidenBlocks(got, src, f, scales, zeros, block)
			for i, v := range got {
				code := int(src[i/2]) >> (i % 2 * 4) & 15
				want := float32(code) - 8
				if f == INT4 {
					want -= zeros[i/block]
				} else if want = e2m1[code&7]; code > 7 {
					want = -want
					if code == 8 {
						want = float32(math.Copysign(0, -1))
					}
				}
				want *= scales[i/block]
				require.Equal(t, math.Float32bits(want), math.Float32bits(v), "%v, element %d of blocks of %d", f, i, block)
			}
		}
	}
	var scales [256]float32
	Widen(scales[:], src, F8E8M0)
	for i, v := range scales[:255] {
		require.Equal(t, math.Ldexp(1, i-127), float64(v))
	}
	require.NotEqual(t, scales[255], scales[255], "NaN")
}
