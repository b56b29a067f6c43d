package operation

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model/tensor"
)

// TestShorten: a number that I32 does not have is an error that names it, and no other number is proven.
func TestShorten(t *testing.T) {
	in, out := Input{Data: numbers(tensor.I64, 0, -1, math.MaxInt32, math.MinInt32)}, make([]byte, 16)
	require.NoError(t, Shorten{}.Apply(out, in, &tensor.Loss{}))
	require.Equal(t, []byte{0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 127, 0, 0, 0, 128}, out)
	require.NoError(t, Shorten{}.Prove(out, in))
	requireMismatches(t, Shorten{}, out, in)
	for _, n := range []int64{math.MaxInt32 + 1, math.MinInt32 - 1, 1 << 32} {
		in := Input{Data: numbers(tensor.I64, 3, n), Into: 5}
		require.ErrorContains(t, Shorten{}.Apply(make([]byte, 8), in, &tensor.Loss{}), "element 6 is")
		require.Error(t, Shorten{}.Prove(out[:8], in))
	}
}
