package kernel

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// Parallel calls f(0) … f(n-1) on at most workers goroutines (0 means GOMAXPROCS)
// and waits for all of them. The calls must write to disjoint places.
func Parallel(n, workers int, f func(i int)) {
	workers = min(Workers(workers), n)
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
	wg.Go(func() {}) // the newest goroutine waits for this processor, the others can be stolen at once
	work()           // the caller is one of them: it need not be woken
	wg.Wait()
}

// Workers returns n, or GOMAXPROCS if n is not positive.
func Workers(n int) int {
	if n <= 0 {
		return runtime.GOMAXPROCS(0)
	}
	return n
}
