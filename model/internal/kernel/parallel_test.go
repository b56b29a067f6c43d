package kernel

import (
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestParallel calls each index once, on no more goroutines than it may.
func TestParallel(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 2, 7, 100} {
		for _, workers := range []int{0, 1, 2, 3, 200} {
			calls := make([]atomic.Int32, n)
			var running, most atomic.Int32
			Parallel(n, workers, func(i int) {
				now := running.Add(1)
				for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
				}
				runtime.Gosched()
				calls[i].Add(1)
				running.Add(-1)
			})
			for i := range calls {
				require.Equal(t, int32(1), calls[i].Load(), "index %d of %d, %d workers", i, n, workers)
			}
			require.LessOrEqual(t, int(most.Load()), min(n, workerCount(workers)))
		}
	}
}

// TestParallelInOrder runs in order where there is one worker.
func TestParallelInOrder(t *testing.T) {
	t.Parallel()
	var got []int
	Parallel(5, 1, func(i int) { got = append(got, i) })
	require.Equal(t, []int{0, 1, 2, 3, 4}, got)
}

// TestWorkerCount takes GOMAXPROCS for what is not positive.
func TestWorkerCount(t *testing.T) {
	t.Parallel()
	require.Equal(t, runtime.GOMAXPROCS(0), workerCount(0))
	require.Equal(t, runtime.GOMAXPROCS(0), workerCount(-1))
	require.Equal(t, 3, workerCount(3))
}

// TestUse changes the implementation and brings the one before back.
func TestUse(t *testing.T) {
	names := Implementations()
	require.Equal(t, "portable", names[len(names)-1])
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(names))), len(names))
	before := current()
	for _, name := range names {
		restore := Use(name)
		require.Equal(t, name, current().name)
		restore()
		require.Same(t, before, current())
	}
	require.Panics(t, func() { Use("vax") })
}
