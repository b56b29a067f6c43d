package kernel

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// Parallel calls f(0) … f(n-1) on at most workers goroutines (0 means GOMAXPROCS)
// and waits for all of them. The calls must write to disjoint places.
func Parallel(n, workers int, f func(i int)) {
	workers = min(workerCount(workers), n)
	if workers <= 1 {
		for i := range n {
			f(i)
		}
		return
	}
	var next atomic.Int64
	work := func() {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			f(i)
		}
	}
	var wg sync.WaitGroup
	for range workers - 1 {
		wg.Go(work)
	}
	// The scheduler reserves the goroutine that was started last for the processor that
	// started it, and other processors steal it only after a while. An empty goroutine
	// takes that place, so that idle processors take up the workers at once.
	wg.Go(func() {})
	work() // this goroutine is one of the workers
	wg.Wait()
}

// workerCount returns n, or GOMAXPROCS if n is not positive.
func workerCount(n int) int {
	if n <= 0 {
		return runtime.GOMAXPROCS(0)
	}
	return n
}
