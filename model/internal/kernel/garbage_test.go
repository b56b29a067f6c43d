//go:build !race

package kernel

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// The race detector makes sync.Pool forget at random, so this is not for it.

// TestMatMulMakesNoGarbage holds the allocations of one call at a few, whatever the
// size: goroutines when there are several workers, nothing otherwise.
func TestMatMulMakesNoGarbage(t *testing.T) {
	each(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(6, 2))
		for _, f := range []Format{BF16, F8E4M3} {
			w := stored(r, 512, 100, f, 0)
			x, dst := random(r, 24*100), make([]float32, 24*512)
			for _, acc := range []Accumulator{Float64, Float32} {
				one := testing.AllocsPerRun(20, func() { MatMul(dst, x, w, nil, acc, 1) })
				require.LessOrEqual(t, one, 1.0, "format %v", f)
				two := testing.AllocsPerRun(20, func() { MatMul(dst, x, w, nil, acc, 2) })
				require.LessOrEqual(t, two, 12.0, "format %v", f)
			}
		}
	})
}
