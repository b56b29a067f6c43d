package kernel

import (
	"sync"
	"sync/atomic"
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
	serial  uint64 // unlike any other job's
	im      *implementation
	dst, x  []float32
	w       Matrix
	bias    []float32
	acc     Accumulator
	workers int
	tokens  int
	length  int // of one dot product, padded if the tiles want whole blocks of lanes

	// How the tiles read the weights: in place, or widened into scratch.
	inPlace bool
	format  Format
	// panels says that weights and tokens are packed instead.
	panels bool

	tokenBlock, rowBlock   int
	tokenBlocks, rowBlocks int
}

var (
	jobs    = sync.Pool{New: func() any { return new(job) }}
	serials atomic.Uint64
)

func (j *job) prepare(dst, x []float32, w Matrix, bias []float32, acc Accumulator, workers int) {
	tokens := 0
	if w.Cols > 0 {
		tokens = len(x) / w.Cols
	}
	if len(x) != tokens*w.Cols || len(dst) != tokens*w.Rows || bias != nil && len(bias) < w.Rows {
		panic("kernel: MatMul: lengths do not fit")
	}
	w.check()
	*j = job{
		serial: serials.Add(1), im: current(), dst: dst, x: x, w: w, bias: bias, acc: acc,
		workers: Workers(workers), tokens: tokens, length: w.Cols, format: w.format(),
	}
	if j.im.hasTiles() && !j.im.anyLength {
		j.length = (w.Cols + Lanes - 1) / Lanes * Lanes
	}
	j.panels = j.im.panels32.has() && tokens >= panelTokens[acc] && w.Cols > 0
	j.inPlace = w.inPlace(j.im)
	if !j.inPlace {
		j.format = F32
	}
	j.cut()
}

// release forgets the caller's memory.
func (j *job) release() { *j = job{} }

// cut chooses the blocks: a block of tokens stays in a core's cache while a block
// of rows passes by, and there are enough items to keep all workers busy.
func (j *job) cut() {
	const itemsPerWorker, step = 8, 12 // step is a multiple of all widths
	least, most, cache, rows := step, j.tokens, 512<<10, tileRows
	if j.panels {
		least, most, cache, rows = leastPanelTokens, mostPanelTokens, tokenBytes, j.im.panelRows(j.acc)
	}
	bytes := j.length * 4
	if j.acc == Float64 {
		bytes *= 2
	}
	even := func(block int) int { // the smallest block that makes no more of them
		blocks := max(1, (j.tokens+block-1)/block)
		return max(step, (j.tokens+blocks*step-1)/(blocks*step)*step)
	}
	j.tokenBlock = even(max(least, min(cache/max(bytes, 1), most)/step*step))
	j.rowBlock = max(rows, j.w.Rows)
	// Waking a worker takes as long as this many products.
	const alone = 1 << 19
	j.workers = min(j.workers, 1+j.tokens*j.w.Rows*j.w.Cols/alone)
	j.tokenBlocks = (j.tokens + j.tokenBlock - 1) / j.tokenBlock
	if want := j.workers * itemsPerWorker; j.workers > 1 && j.tokenBlocks < want {
		j.rowBlock = max(4*tileRows, rows, j.w.Rows*j.tokenBlocks/want/rows*rows)
		if rowBlocks := (j.w.Rows + j.rowBlock - 1) / j.rowBlock; rowBlocks*j.tokenBlocks < want {
			j.tokenBlock = even(min(j.tokenBlock, max(least, j.tokens*rowBlocks/want/step*step)))
		}
		j.tokenBlocks = (j.tokens + j.tokenBlock - 1) / j.tokenBlock
	}
	j.rowBlocks = (j.w.Rows + j.rowBlock - 1) / j.rowBlock
}

func (j *job) items() int { return j.tokenBlocks * j.rowBlocks }

// item computes one block of dst.
func (j *job) item(i int) {
	t, r := i/j.rowBlocks*j.tokenBlock, i%j.rowBlocks*j.rowBlock
	toT, toR := min(t+j.tokenBlock, j.tokens), min(r+j.rowBlock, j.w.Rows)
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	if j.panels {
		if j.acc == Float32 {
			panelled(j, &j.im.panels32, &s.panels32, r, toR, t, toT)
		} else {
			panelled(j, &j.im.panels64, &s.panels64, r, toR, t, toT)
		}
		return
	}
	s.activate(j, t, toT)
	switch {
	case j.im.hasTiles():
		j.tiled(s, r, toR, t, toT)
	case j.acc == Float32:
		j.rows32(s, r, toR, t, toT)
	default:
		j.rows64(s, r, toR, t, toT)
	}
	s.x = nil
}

// tiled computes the rows r … toR of the tokens t … toT with the tiles.
func (j *job) tiled(s *scratch, r, toR, t, toT int) {
	for ; r < toR; r += tileRows {
		rows := min(tileRows, toR-r)
		j.weights(s, r, rows)
		for i := t; i < toT; {
			i += j.tile(s, r, rows, t, i, toT-i)
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
		if j.inPlace {
			s.w[k] = (*byte)(j.w.start(r + row))
			continue
		}
		dst := s.rows[row*j.length:][:j.length]
		if k == row {
			copy(dst, j.w.Row(dst, r+row))
			fill(dst[j.w.Cols:], 0)
		}
		s.w[k] = (*byte)(unsafe.Pointer(&dst[0]))
	}
}

// tile computes rows against the first of the tokens t … t+left, in the block that
// begins at first, and returns how many tokens that were. A token that the tile has
// too many of is the last again.
func (j *job) tile(s *scratch, r, rows, first, t, left int) int {
	set := &j.im.tile[j.format]
	width := set.width(left)
	n := min(width, left)
	at := (t - first) * j.length
	if j.acc == Float32 {
		for i := range width {
			s.x32[i] = &s.x[at+min(i, n-1)*j.length]
		}
		set.float32[width-1](&s.w, &s.x32, j.length, &s.sum32)
	} else {
		for i := range width {
			s.x64[i] = &s.wide[at+min(i, n-1)*j.length]
		}
		set.float64[width-1](&s.w, &s.x64, j.length, &s.sum64)
	}
	for i := range n {
		out := j.dst[(t+i)*j.w.Rows+r:][:rows]
		if j.acc == Float32 {
			finish(out, s.sum32[tileRows*i:], j.bias, r)
		} else {
			finish(out, s.sum64[tileRows*i:], j.bias, r)
		}
	}
	return n
}

// finish writes sums of rows r, r+1, … plus bias to out.
func finish[F float32 | float64](out []float32, sum []F, bias []float32, r int) {
	sum = sum[:len(out)]
	if bias == nil {
		for k, v := range sum {
			out[k] = float32(v)
		}
		return
	}
	for k, v := range sum {
		out[k] = float32(v + F(bias[r+k]))
	}
}

// rows64 and rows32 are tiled in portable Go.
func (j *job) rows64(s *scratch, r, toR, t, toT int) {
	cols := j.w.Cols
	s.rows, s.rowsWide = grow(s.rows, cols), grow(s.rowsWide, cols)
	for ; r < toR; r++ {
		for k, v := range j.w.Row(s.rows, r) {
			s.rowsWide[k] = float64(v)
		}
		for i := range toT - t {
			s.sum64[0] = dotWide(s.wide[i*cols:(i+1)*cols], s.rowsWide)
			finish(j.dst[(t+i)*j.w.Rows+r:][:1], s.sum64[:], j.bias, r)
		}
	}
}

func (j *job) rows32(s *scratch, r, toR, t, toT int) {
	cols := j.w.Cols
	s.rows = grow(s.rows, cols)
	for ; r < toR; r++ {
		row := j.w.Row(s.rows, r)
		for i := range toT - t {
			s.sum32[0] = Dot32(s.x[i*cols:(i+1)*cols], row)
			finish(j.dst[(t+i)*j.w.Rows+r:][:1], s.sum32[:], j.bias, r)
		}
	}
}
