package kernel

import (
	"fmt"
	"slices"
	"sync/atomic"
)

// implementation is a set of kernels for one kind of processor. What is nil or empty is
// done in portable Go, which gives the same bits.
type implementation struct {
	name string

	// tile is indexed by the format of the weights. An implementation has tiles for F32,
	// among them one of width 1, or none at all.
	tile [F8E4M3]tiles
	// anyLength says that the tiles take rows of any length n. Otherwise n is a multiple
	// of lanes, and shorter rows are padded.
	anyLength bool

	panels32 panelKernels[float32] // float32 sums
	panels64 panelKernels[float64] // float64 sums

	partial partialKernels // PartialSums

	// The kernels below convert n numbers, a multiple of lanes.
	element elementKernels
	// stream holds the kernels whose stores go around the caches; dst is aligned to
	// cacheLine.
	stream elementKernels
	// widenE4M3 multiplies each block of F8E4M3 with its scale; block is a multiple of lanes.
	widenE4M3 func(dst *float32, src *byte, n int, scales *float32, block int)
	widen64   func(dst *float64, src *float32, n int)
	exp       func(dst, src *float64, n int) // dst[i] = Exp(src[i])

	square      func(dst, src *float32, n int)                 // dst[i] = src[i] * src[i]
	addMultiple func(dst, src *float32, n int, factor float32) // dst[i] += float32(factor * src[i])

	encodeQ8    func(dst *byte, src *float32, n int)      // n is a multiple of 32
	blockErrors func(sums *float64, y, x *float32, n int) // sums begins a BlockSums; n is a multiple of 8

	// Fit.Minimums and Fit.Symmetric; fit begins a Fit, and n is at least 1.
	fitMinimums  func(fit *float32, most int, tries *float32, n int)
	fitSymmetric func(fit, tries *float32, n int)

	// losses counts in the fields of a Losses, which sums begins; n is a multiple of 8.
	losses func(sums *uint32, y, x *float32, n int, least uint32)

	// largest16 returns the largest of n patterns of 16 bits without their signs; n is a
	// multiple of largestBlock, and not 0.
	largest16 func(src *byte, n int) uint16
}

// elementKernels holds conversions between float32 and the format that is their index.
type elementKernels struct {
	widen  [F8E4M3]func(dst *float32, src *byte, n int)
	narrow [F8E4M3]func(dst *byte, src *float32, n int)
}

// hasTiles says whether im multiplies matrices other than in portable Go.
func (im *implementation) hasTiles() bool { return im.tile[F32].float32[0] != nil }

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
// and returns a function that undoes it. No result depends on it. It panics if the
// machine does not run that implementation.
func Use(name string) (restore func()) {
	all := supported()
	i := slices.IndexFunc(all, func(im *implementation) bool { return im.name == name })
	if i < 0 {
		panic(fmt.Sprintf("kernel: Use: no implementation %q here", name))
	}
	previous := active.Swap(all[i])
	return func() { active.Store(previous) }
}
