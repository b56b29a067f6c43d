package kernel

import (
	"math"
	"sync"
	"unsafe"
)

// MatMul computes dst = x·wᵀ + bias: dst[t, r] = dot(x[t], w[r]) + bias[r], with x
// of shape [tokens, w.Cols] and dst of shape [tokens, w.Rows]. bias may be nil. The
// dot product is Dot64 or Dot32 as acc says; the bias is added in the same
// precision before the one rounding to float32. workers is the number of
// goroutines, 0 meaning GOMAXPROCS; it does not change the result.
func MatMul(dst, x []float32, w Matrix, bias []float32, acc Accumulator, workers int) {
	j := jobs.Get().(*job)
	defer jobs.Put(j)
	j.prepare(dst, x, w, bias, acc, workers)
	if j.items() == 1 || j.workers == 1 {
		for i := range j.items() {
			j.item(i)
		}
	} else {
		Parallel(j.items(), j.workers, j.item)
	}
	j.release()
}

// job is one call of MatMul, cut into a grid of items: blocks of tokens against
// blocks of rows. No dot product is cut.
type job struct {
	im      *implementation
	dst     []float32
	w       Matrix
	bias    []float32
	acc     Accumulator
	workers int
	tokens  int

	// The activations, each stride apart: in float32 or float64 as acc says, padded
	// if the tiles want whole blocks of lanes.
	length int // of one dot product, padded
	x      []float32
	wide   []float64

	// How the tiles read the weights: in place, or widened into scratch.
	inPlace bool
	format  Format

	tokenBlock, rowBlock   int
	tokenBlocks, rowBlocks int

	padded  []float32 // buffers that x and wide lie in, kept between calls
	widened []float64
}

var jobs = sync.Pool{New: func() any { return new(job) }}

func (j *job) prepare(dst, x []float32, w Matrix, bias []float32, acc Accumulator, workers int) {
	tokens := 0
	if w.Cols > 0 {
		tokens = len(x) / w.Cols
	}
	if len(x) != tokens*w.Cols || len(dst) != tokens*w.Rows || bias != nil && len(bias) < w.Rows {
		panic("kernel: MatMul: lengths do not fit")
	}
	w.check()
	j.im, j.dst, j.w, j.bias, j.acc, j.tokens = current(), dst, w, bias, acc, tokens
	j.workers = Workers(workers)
	j.length = w.Cols
	if j.im.hasTiles() && !j.im.anyLength {
		j.length = (w.Cols + Lanes - 1) / Lanes * Lanes
	}
	j.inPlace, j.format = w.inPlace(j.im), w.Format
	if w.Data == nil || !j.inPlace {
		j.format = F32
	}
	j.activations(x)
	j.cut()
}

// release forgets the caller's memory.
func (j *job) release() {
	j.dst, j.bias, j.x, j.wide, j.w = nil, nil, nil, nil, Matrix{}
}

// activations sets x or wide. Padding is -0: its product with a padding weight, 0,
// is -0, and adding that changes no lane, not even one that holds -0.
func (j *job) activations(x []float32) {
	cols, pad := j.w.Cols, j.length-j.w.Cols
	j.x = x
	if j.acc == Float32 && pad == 0 {
		return
	}
	n := j.tokens * j.length
	if j.acc == Float32 {
		j.padded = grow(j.padded, n)
		j.x = j.padded
		for t := range j.tokens {
			row := j.x[t*j.length:][:j.length]
			copy(row, x[t*cols:][:cols])
			fill(row[cols:], float32(math.Copysign(0, -1)))
		}
		return
	}
	j.widened = grow(j.widened, n)
	j.wide = j.widened
	if pad == 0 {
		const chunk = 1 << 14 // elements
		if chunks := (n + chunk - 1) / chunk; chunks > 1 && j.workers > 1 {
			Parallel(chunks, j.workers, func(i int) {
				from, to := i*chunk, min((i+1)*chunk, n)
				widen64(j.im, j.wide[from:to], x[from:to])
			})
			return
		}
		widen64(j.im, j.wide, x)
		return
	}
	for t := range j.tokens {
		row := j.wide[t*j.length:][:j.length]
		widen64(j.im, row[:cols], x[t*cols:][:cols])
		fill(row[cols:], math.Copysign(0, -1))
	}
}

// cut chooses the blocks: a block of tokens stays in a core's cache while a block
// of rows passes by, and there are enough items to keep all workers busy.
func (j *job) cut() {
	const cache, itemsPerWorker, step = 512 << 10, 8, 12 // step is a multiple of all widths
	bytes := j.length * 4
	if j.acc == Float64 {
		bytes *= 2
	}
	j.tokenBlock = max(step, cache/max(bytes, 1)/step*step)
	j.rowBlock = max(tileRows, j.w.Rows)
	if j.workers > 1 {
		want := j.workers * itemsPerWorker
		blocks := (j.tokens + j.tokenBlock - 1) / j.tokenBlock
		j.rowBlock = max(4*tileRows, min(64, j.w.Rows*blocks/want/tileRows*tileRows))
		rowBlocks := (j.w.Rows + j.rowBlock - 1) / j.rowBlock
		if rowBlocks*blocks < want {
			j.tokenBlock = min(j.tokenBlock, max(step, j.tokens*rowBlocks/want/step*step))
		}
	}
	j.tokenBlocks = (j.tokens + j.tokenBlock - 1) / j.tokenBlock
	j.rowBlocks = (j.w.Rows + j.rowBlock - 1) / j.rowBlock
}

func (j *job) items() int { return j.tokenBlocks * j.rowBlocks }

// item computes one block of dst.
func (j *job) item(i int) {
	t, r := i/j.rowBlocks*j.tokenBlock, i%j.rowBlocks*j.rowBlock
	toT, toR := min(t+j.tokenBlock, j.tokens), min(r+j.rowBlock, j.w.Rows)
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	switch {
	case j.im.hasTiles():
		j.tiled(s, r, toR, t, toT)
	case j.acc == Float32:
		j.rows32(s, r, toR, t, toT)
	default:
		j.rows64(s, r, toR, t, toT)
	}
}

// scratch is what one worker needs.
type scratch struct {
	w     [tileRows]*byte
	x32   [maxWidth]*float32
	x64   [maxWidth]*float64
	sum32 [128]float32
	sum64 [128]float64
	rows  []float32 // weights widened
	wide  []float64

	stored [4096]byte // for RoundTo
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// tiled computes the rows r … toR of the tokens t … toT with the tiles.
func (j *job) tiled(s *scratch, r, toR, t, toT int) {
	for ; r < toR; r += tileRows {
		rows := min(tileRows, toR-r)
		j.weights(s, r, rows)
		for i := t; i < toT; {
			i += j.tile(s, r, rows, i, toT-i)
		}
	}
	s.w, s.x32 = [tileRows]*byte{}, [maxWidth]*float32{}
}

// weights points s.w to the rows r … r+rows; the missing ones are the last again.
func (j *job) weights(s *scratch, r, rows int) {
	if !j.inPlace {
		s.rows = grow(s.rows, tileRows*j.length)
	}
	for k := range tileRows {
		row := min(k, rows-1)
		switch {
		case j.inPlace && j.w.Data != nil:
			s.w[k] = &j.w.Data[(r+row)*j.w.Cols*j.w.Format.Size()]
		case j.inPlace:
			s.w[k] = (*byte)(unsafe.Pointer(&j.w.Values[(r+row)*j.w.Cols]))
		default:
			dst := s.rows[row*j.length:][:j.length]
			if k == row {
				copy(dst, j.w.Row(dst, r+row))
				fill(dst[j.w.Cols:], 0)
			}
			s.w[k] = (*byte)(unsafe.Pointer(&dst[0]))
		}
	}
}

// tile computes rows against the first of the tokens t … t+left and returns how
// many tokens that were. A token that the tile has too many of is the last again.
func (j *job) tile(s *scratch, r, rows, t, left int) int {
	set := &j.im.tile[j.format]
	width := set.width(left)
	n := min(width, left)
	if j.acc == Float32 {
		for i := range width {
			s.x32[i] = &j.x[(t+min(i, n-1))*j.length]
		}
		set.float32[width-1](&s.w, &s.x32, j.length, &s.sum32)
	} else {
		for i := range width {
			s.x64[i] = &j.wide[(t+min(i, n-1))*j.length]
		}
		set.float64[width-1](&s.w, &s.x64, j.length, &s.sum64)
	}
	for i := range n {
		out := j.dst[(t+i)*j.w.Rows+r:][:rows]
		if j.acc == Float32 {
			finish32(out, s.sum32[tileRows*i:], j.bias, r)
		} else {
			finish64(out, s.sum64[tileRows*i:], j.bias, r)
		}
	}
	return n
}

func finish32(out, sum, bias []float32, r int) {
	if bias == nil {
		copy(out, sum)
		return
	}
	for k := range out {
		out[k] = sum[k] + bias[r+k]
	}
}

func finish64(out []float32, sum []float64, bias []float32, r int) {
	sum = sum[:len(out)]
	for k := range out {
		v := sum[k]
		if bias != nil {
			v += float64(bias[r+k])
		}
		out[k] = float32(v)
	}
}

// rows64 and rows32 are tiled in portable Go.
func (j *job) rows64(s *scratch, r, toR, t, toT int) {
	cols := j.w.Cols
	s.rows, s.wide = grow(s.rows, cols), grow(s.wide, cols)
	for ; r < toR; r++ {
		for k, v := range j.w.Row(s.rows, r) {
			s.wide[k] = float64(v)
		}
		for i := t; i < toT; i++ {
			s.sum64[0] = dotWide(j.wide[i*cols:(i+1)*cols], s.wide)
			finish64(j.dst[i*j.w.Rows+r:][:1], s.sum64[:], j.bias, r)
		}
	}
}

func (j *job) rows32(s *scratch, r, toR, t, toT int) {
	cols := j.w.Cols
	s.rows = grow(s.rows, cols)
	for ; r < toR; r++ {
		row := j.w.Row(s.rows, r)
		for i := t; i < toT; i++ {
			s.sum32[0] = Dot32(j.x[i*cols:(i+1)*cols], row)
			finish32(j.dst[i*j.w.Rows+r:][:1], s.sum32[:], j.bias, r)
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
