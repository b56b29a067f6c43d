package kernel

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// tokenBlock is how many rows of x are widened at a time, and rowBlock how many
// rows of w a worker takes at a time. Neither shows in the results.
const (
	tokenBlock = 16
	rowBlock   = 16
)

// MatMul computes dst = x·wᵀ + bias: dst[t, r] = dot(x[t], w[r]) + bias[r], with x
// of shape [tokens, w.Cols] and dst of shape [tokens, w.Rows]. bias may be nil. The
// dot product is Dot64 or Dot32 as acc says; the bias is added in the same
// precision before the one rounding to float32. workers is the number of
// goroutines, 0 meaning GOMAXPROCS; it does not change the result.
func MatMul(dst, x []float32, w Matrix, bias []float32, acc Accumulator, workers int) {
	tokens := len(x) / w.Cols
	if len(x) != tokens*w.Cols || len(dst) != tokens*w.Rows {
		panic("kernel: MatMul: lengths do not fit")
	}
	blocks := (w.Rows + rowBlock - 1) / rowBlock
	for t := 0; t < tokens; t += tokenBlock {
		n := min(tokenBlock, tokens-t)
		j := job{dst: dst[t*w.Rows:][:n*w.Rows], x: x[t*w.Cols:][:n*w.Cols], w: w, bias: bias}
		run := j.rows64
		if acc == Float32 {
			run = j.rows32
		} else {
			j.wide = widen64(j.x)
		}
		Parallel(blocks, workers, func(b int) {
			run(b*rowBlock, min((b+1)*rowBlock, w.Rows))
		})
	}
}

// job is one block of tokens against the whole of w.
type job struct {
	dst, x, bias []float32
	wide         []float64 // x in float64
	w            Matrix
}

func (j *job) rows64(from, to int) {
	scratch, wide := make([]float32, j.w.Cols), make([]float64, j.w.Cols)
	for r := from; r < to; r++ {
		for k, v := range j.w.row(scratch, r) {
			wide[k] = float64(v)
		}
		var b float64
		if j.bias != nil {
			b = float64(j.bias[r])
		}
		for t := 0; t*j.w.Cols < len(j.wide); t++ {
			j.dst[t*j.w.Rows+r] = float32(dotWide(j.wide[t*j.w.Cols:(t+1)*j.w.Cols], wide) + b)
		}
	}
}

func (j *job) rows32(from, to int) {
	scratch := make([]float32, j.w.Cols)
	for r := from; r < to; r++ {
		row := j.w.row(scratch, r)
		var b float32
		if j.bias != nil {
			b = j.bias[r]
		}
		for t := 0; t*j.w.Cols < len(j.x); t++ {
			j.dst[t*j.w.Rows+r] = Dot32(j.x[t*j.w.Cols:(t+1)*j.w.Cols], row) + b
		}
	}
}

func widen64(x []float32) []float64 {
	wide := make([]float64, len(x))
	for i, v := range x {
		wide[i] = float64(v)
	}
	return wide
}

// Parallel calls f(0) … f(n-1) on at most workers goroutines (0 means GOMAXPROCS)
// and waits for all of them. The calls must write to disjoint places.
func Parallel(n, workers int, f func(i int)) {
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	workers = min(workers, n)
	if workers <= 1 {
		for i := range n {
			f(i)
		}
		return
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}
