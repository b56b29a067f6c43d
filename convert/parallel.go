package convert

import (
	"cmp"
	"context"
	"encoding/hex"
	"runtime"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"dsmoe/convert/internal/lanes"
)

// processors is how many goroutines compute at once: what the runtime had at first. A
// program may allow it more since then, so that a goroutine in a system call, which
// keeps its processor until the scheduler takes it away, keeps no other from computing.
var processors = runtime.GOMAXPROCS(0)

// maxWorkers is how many tensors are worked on at once: enough to fill the lanes
// of a hash for every processor while as many others wait for the disk.
func maxWorkers() int { return min(16*processors, 64) }

// inParallel calls do for 0, …, len(sizes)-1, of which sizes has the bytes: in this
// order but for those with more than a worker's share of all bytes, which go first,
// as each is hashed by one worker from its begin to its end. newWorker makes a do
// for one goroutine; all goroutines have entered the pool.
func inParallel(ctx context.Context, pool *lanes.Pool, workers int, sizes []int64, newWorker func() (do func(ctx context.Context, i int) error)) error {
	g, ctx := errgroup.WithContext(ctx)
	todo := order(sizes, workers)
	workers = min(workers, len(todo))
	for range workers {
		pool.Enter()
	}
	var next atomic.Int64
	for range workers {
		g.Go(func() error {
			defer pool.Leave()
			do := newWorker()
			for {
				n := int(next.Add(1)) - 1
				if n >= len(todo) || ctx.Err() != nil {
					return ctx.Err()
				}
				if err := do(ctx, todo[n]); err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}

// order returns the order of work: see inParallel.
func order(sizes []int64, workers int) []int {
	all := int64(0)
	todo := make([]int, len(sizes))
	for i, size := range sizes {
		all += size
		todo[i] = i
	}
	share := all / int64(workers)
	slices.SortStableFunc(todo, func(a, b int) int { return cmp.Compare(max(sizes[b], share), max(sizes[a], share)) })
	return todo
}

// sumOf returns the sum of all that d has absorbed, in hexadecimal digits.
func sumOf(d *lanes.Digest) string {
	sum := d.Sum()
	return hex.EncodeToString(sum[:])
}
