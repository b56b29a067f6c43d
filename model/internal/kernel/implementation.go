package kernel

import (
	"fmt"
	"slices"
	"sync/atomic"
)

// implementation is a set of kernels for one kind of processor. Portable Go takes the place of
// kernels that are nil or empty, and gives the same bits.
type implementation struct {
	name string

	// tile is indexed by the format of the weights. An implementation without tiles for F32 has
	// no tiles; the tiles for F32 include width 1.
	tile [F8E4M3]tiles
	// anyLength is true if the tiles take rows of any length n. Otherwise n is a multiple of
	// lanes, and shorter rows are padded.
	anyLength bool

	panels32 panelKernels[float32] // float32 sums
	panels64 panelKernels[float64] // float64 sums

	partial partialKernels // partialSums

	// The kernels below convert n numbers, a multiple of lanes.
	element elementKernels
	// stream holds the kernels whose stores go around the caches; dst is aligned to
	// cacheLine.
	stream elementKernels
	// widenE4M3 multiplies each block of F8E4M3 with its scale; block is a multiple of lanes.
	widenE4M3 func(dst *float32, src *byte, n int, scales *float32, block int)
	// narrowE4M3 does so in BF16, and sets the three sums of the portable narrowE4M3.
	narrowE4M3 func(dst, src *byte, n int, scales *float32, block int, sums *uint32)
	// dotE4M3 sets sums to the lanes of Dot32 of x and each of four rows of F8E4M3, which lie stride bytes apart and have
	// scales of their own. addE4M3 adds each row times its factor to dst, fused, in the order of the rows; addProducts adds
	// factor times src. Codes are numbers, and scales below 2⁷; n is a positive multiple of lanes.
	dotE4M3     func(x, sums *float32, src *byte, stride, n int, scales **float32, block int)
	addE4M3     func(dst *float32, src *byte, stride, n int, scales **float32, block int, factors *float32)
	addProducts func(dst, src *float32, n int, factor float32)

	widen64 func(dst *float64, src *float32, n int)
	exp     func(dst, src *float64, n int) // dst[i] = Exp(src[i])

	square      func(dst, src *float32, n int)                 // dst[i] = src[i] * src[i]
	addMultiple func(dst, src *float32, n int, factor float32) // dst[i] += float32(factor * src[i])

	// Of Q8_0; n is a multiple of 32.
	encodeQ8 func(dst *byte, src *float32, n int)
	widenQ8  func(dst *float32, src *byte, n int)
	// blockErrors sets the BlockSums from sums on of blocks of n numbers, a positive multiple of 8.
	blockErrors func(sums *float64, y, x *float32, blocks, n int)
	// compareQ8 does so of a positive number of blocks of Q8_0, and sets Half.
	compareQ8 func(sums *float64, y *byte, x *float32, blocks int)

	// Fit.Minimums with squared and absolute errors of numbers, 16 or 32, Fit.Symmetric and
	// Fit.Stepwise; fit is the start of a Fit, and n, the number of tries, at least 1.
	fitMinimums  func(fit *float32, numbers, most int, tries *float32, n int)
	fitAbsolute  func(fit *float32, numbers, most int, tries *float32, n int)
	fitSymmetric func(fit *float32, numbers, most int, tries *float32, n int)
	fitStepwise  func(fit *float32)
	// fitGroups is setGroups of numbers, 16 or 32, of each group. fitWeights is Fit.Weigh, with rms if share, 1/numbers, is
	// not 0.
	fitGroups  func(dst, src *float32, numbers int)
	fitWeights func(fit *float32, numbers int, share float32)

	// encodeLines and decodeLines are Lines.Encode and Lines.Decode; lines is the start of a Lines.
	encodeLines func(lines, x *float32, least, most int)
	decodeLines func(y, lines *float32, zero int)
	// spans sets the Spans from spans on of parts of n numbers, a positive multiple of 8.
	spans func(spans, y, x *float32, parts, n int)

	// losses is indexed by the format that numbers were rounded to.
	losses [F8E4M3]lossesKernel

	// plain is indexed by the format of the numbers, then by the format that they were rounded to.
	plain [F8E4M3][F8E4M3]plainKernel

	// extremes sets the fields of Extremes, which start at least; n is a positive multiple of lanes.
	extremes func(least, x *float32, n int)
	// runSums and runSquares are the sums of Moments; n, the length of a run, is a positive multiple of 4.
	runSums    func(sums *float64, x *float32, n int)
	runSquares func(squares, means *float64, x *float32, n int)

	// patterns returns 0 if all codes have their pattern in out, as SamePatterns does; n and block are positive multiples of
	// patternsBlock.
	patterns func(patterns *uint16, codes, out *byte, n, block int) uint32

	// largest16 returns the largest of n 16-bit patterns without their signs; n is a positive
	// multiple of largestBlock.
	largest16 func(src *byte, n int) uint16
}

// elementKernels holds conversions between float32 and the format of their index.
type elementKernels struct {
	widen  [F8E4M3]func(dst *float32, src *byte, n int)
	narrow [F8E4M3]func(dst *byte, src *float32, n int)
	round  [F8E4M3]func(dst, src *float32, n int) // float32 to float32
}

// hasTiles reports whether im has kernels that multiply matrices.
func (im *implementation) hasTiles() bool { return im.tile[F32].float32[0] != nil }

// panelRows returns the number of rows of weights in a panel.
func (im *implementation) panelRows(acc Accumulator) int {
	if acc == Float32 {
		return im.panels32.rows
	}
	return im.panels64.rows
}

// portable is the definition of all results: it has no assembly.
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

// Implementations names the implementations that this machine runs, best first: "avx512bf16",
// "avx512", "avx2", "neon", "portable". The environment variable GODEBUG=cpu.avx512f=off (and the like) hides a
// feature of the processor.
func Implementations() []string {
	var names []string
	for _, im := range supported() {
		names = append(names, im.name)
	}
	return names
}

// Use puts the named implementation in use, for tests and benchmarks, and returns a function
// that restores the previous one. No result depends on it. Use panics if the machine does not
// run that implementation.
func Use(name string) (restore func()) {
	all := supported()
	i := slices.IndexFunc(all, func(im *implementation) bool { return im.name == name })
	if i < 0 {
		panic(fmt.Sprintf("kernel: Use: no implementation %q here", name))
	}
	previous := active.Swap(all[i])
	return func() { active.Store(previous) }
}
