//go:build !race

package kernel

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMatMulMakesNoGarbage holds the allocations of one call at a few, whatever the
// size: goroutines when there are several workers, nothing otherwise. With the race
// detector a sync.Pool drops items at random, so that there is nothing to hold.
func TestMatMulMakesNoGarbage(t *testing.T) {
	each(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(6, 2))
		for _, f := range []Format{BF16, F8E4M3} {
			w := stored(r, 512, 100, f, 0)
			x, dst := random(r, 24*100), make([]float32, 24*512)
			for _, acc := range accumulators {
				one := testing.AllocsPerRun(5, func() { MatMul(dst, x, w, nil, acc, 1) })
				require.LessOrEqual(t, one, 1.0, "format %v", f)
				two := testing.AllocsPerRun(5, func() { MatMul(dst, x, w, nil, acc, 2) })
				require.LessOrEqual(t, two, 12.0, "format %v", f)
			}
		}
	})
}
