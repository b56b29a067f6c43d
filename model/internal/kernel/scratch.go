package kernel

import (
	"math"
	"sync"
)

// scratch is the memory of one worker. A worker takes a scratch from scratches for each item, so
// that buffers grow to the needs of the largest product and are allocated once.
type scratch struct {
	w      [tileRows]*byte // the rows of a tile
	tile32 tileScratch[float32]
	tile64 tileScratch[float64]

	// A block of tokens, each job.length numbers long: x, the caller's memory or padded, for
	// float32 sums; wide for float64 sums.
	x, padded   []float32
	wide        []float64
	blockSerial uint64 // serial of the job of padded or wide
	blockFirst  int    // first token in padded or wide

	rows    []float32 // weights decoded for a tile, or one row in portable Go
	rowWide []float64 // the row in portable Go as float64

	panels32 panelScratch[float32]
	panels64 panelScratch[float64]

	partial partialScratch

	exps   []float64  // exponents of Softmax and SiLU
	stored [4096]byte // numbers on their way through RoundTo
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// setTokens sets x or wide to the tokens t … toT, unless it holds them already. Tokens are
// padded with -0 to whole steps of lanes. The product of -0 with the padding of weights, 0, is
// -0, and adding -0 changes no sum, not even -0.
func (s *scratch) setTokens(j *job, t, toT int) {
	cols, length := j.w.Cols, j.length
	if j.acc == Float32 && cols == length {
		s.x = j.x[t*cols : toT*cols]
		return
	}
	n := (toT - t) * length
	if j.acc == Float32 {
		s.padded = grow(s.padded, n)
		s.x = s.padded
	} else {
		s.wide = grow(s.wide, n)
	}
	if s.blockSerial == j.serial && s.blockFirst == t {
		return
	}
	s.blockSerial, s.blockFirst = j.serial, t
	for i := range toT - t {
		src := j.x[(t+i)*cols:][:cols]
		if j.acc == Float32 {
			copy(s.x[i*length:], src)
			fill(s.x[i*length+cols:(i+1)*length], float32(math.Copysign(0, -1)))
		} else {
			widen64(j.im, s.wide[i*length:][:cols], src)
			fill(s.wide[i*length+cols:(i+1)*length], math.Copysign(0, -1))
		}
	}
}

// grow returns a slice of n elements, in buf's memory if it is large enough. The values of the
// elements are undefined.
func grow[T any](buf []T, n int) []T {
	if cap(buf) < n {
		return make([]T, n)
	}
	return buf[:n]
}

// fill sets all elements of x to v.
func fill[T any](x []T, v T) {
	for i := range x {
		x[i] = v
	}
}
