package kernel

import (
	"fmt"
	"slices"
	"sync/atomic"
)

// portable is the definition of all results: no assembly at all.
var portable = implementation{name: "portable"}

// active is the implementation in use, nil until the first kernel runs.
var active atomic.Pointer[implementation]

// current returns the implementation in use, choosing the best on the first call.
func current() *implementation {
	if im := active.Load(); im != nil {
		return im
	}
	active.CompareAndSwap(nil, supported()[0])
	return active.Load()
}

// supported lists the implementations that this machine runs, best first. The
// last is portable Go.
func supported() []*implementation { return append(native(), &portable) }

// Implementations names what this machine runs, best first: "avx512", "avx2",
// "neon", "portable". The environment variable GODEBUG=cpu.avx512f=off (and the
// like) hides a feature from them.
func Implementations() []string {
	var names []string
	for _, im := range supported() {
		names = append(names, im.name)
	}
	return names
}

// Use makes the named implementation the one in use, for tests and benchmarks,
// and returns a function that undoes it. No result depends on it.
func Use(name string) (restore func()) {
	all := supported()
	i := slices.IndexFunc(all, func(im *implementation) bool { return im.name == name })
	if i < 0 {
		panic(fmt.Sprintf("kernel: Use: no implementation %q here", name))
	}
	previous := active.Swap(all[i])
	return func() { active.Store(previous) }
}
