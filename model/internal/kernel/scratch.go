package kernel

import (
	"math"
	"sync"
)

// scratch is what one worker needs.
type scratch struct {
	w     [tileRows]*byte
	x32   [maxWidth]*float32
	x64   [maxWidth]*float64
	sum32 [256]float32
	sum64 [256]float64

	// The activations of a block of tokens, length apart: x in float32, wide in float64.
	x, padded []float32
	wide      []float64
	of        uint64 // the job that padded or wide belongs to
	from      int    // and its first token there

	rows     []float32 // weights widened
	rowsWide []float64

	panels32 panelScratch[float32]
	panels64 panelScratch[float64]

	exps   []float64
	stored [4096]byte // for RoundTo
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// activate sets x or wide to the tokens t … toT, unless the last item did so. Padding
// is -0: its product with a padding weight, 0, is -0, and adding that changes no lane,
// not even one that holds -0.
func (s *scratch) activate(j *job, t, toT int) {
	cols, length := j.w.Cols, j.length
	if j.acc == Float32 && cols == length {
		s.x = j.x[t*cols : toT*cols]
		return
	}
	n := (toT - t) * length
	if j.acc == Float32 {
		s.x = grow(s.padded, n)
		s.padded = s.x
	} else {
		s.wide = grow(s.wide, n)
	}
	if s.of == j.serial && s.from == t {
		return
	}
	s.of, s.from = j.serial, t
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

// grow returns a slice of n elements, in buf's memory if it is large enough.
func grow[T any](buf []T, n int) []T {
	if cap(buf) < n {
		return make([]T, n)
	}
	return buf[:n]
}

func fill[T any](x []T, v T) {
	for i := range x {
		x[i] = v
	}
}
