package kernel

import (
	"sync"
	"unsafe"
)

// A float32 sum rounds each of its partial sums; the variance of that error is proportional to
// the square of the partial sum. These kernels add up the squares, for sums in their natural
// order. GEMM kernels follow that order in chains of some hundred terms and add the chains.

const (
	// ChainTerms is the number of terms of a chain, in sums of several chains.
	ChainTerms = 512
	// sampled is the number of terms between two partial sums that are squared.
	sampled = lanes
)

// PartialSums returns the sum of the squares of the partial sums of Σ x·w, and the sum
// Σ terms·w², all in float32 and in the order of k:
//
//	for k := range w {
//		s = fma32(x[k], w[k], s)
//		squares = fma32(terms[k], w[k]*w[k], squares)
//		if n := k%16 + 1; n == 16 || k is the last { partial = fma32(n*s, s, partial) }
//		if k%512 == 511 && !oneChain || k is the last { t += s; partial = fma32(t, t, partial); s = 0 }
//	}
//
// One partial sum in 16 represents n of them; t is the running total of the chains. x and terms
// are at least as long as w.
func PartialSums(x, terms, w []float32, oneChain bool) (partial, squares float32) {
	x, terms = x[:len(w)], terms[:len(w)]
	var s, t float32
	for k, v := range w {
		s = fma32(x[k], v, s)
		squares = fma32(terms[k], v*v, squares)
		n, last := k%sampled+1, k == len(w)-1
		if n == sampled || last {
			partial = fma32(float32(n)*s, s, partial)
		}
		if last || !oneChain && (k+1)%ChainTerms == 0 {
			t += s
			partial = fma32(t, t, partial)
			s = 0
		}
	}
	return partial, squares
}

// Partial requests sums of rows of X and V with the rows of a matrix w. Each receives the sums of
// a token with the rows of w from row on:
//
//	partial, squares = PartialSums(x, x∘x, w, OneChain), x the token's row of X times its scale
//	carried          = Σ v·w², v the token's row of V: the squares of PartialSums
//
// Several goroutines call Each at once, each for a part of the results. The slices have one number
// per row and are valid during the call.
type Partial struct {
	X     []float32 // [tokens, w.Cols]; nil leaves partial and squares nil
	Scale []float32 // factor of each token of X, a power of two; nil means 1
	V     []float32 // [tokens, w.Cols]; nil leaves carried nil

	OneChain bool
	Each     func(token, row int, partial, squares, carried []float32)
}

// states is the number of sums in a partialKernel's state, for each token and row.
const states = 4

// MatMulPartial computes dst = x·wᵀ + bias as MatMul does, and the sums that p requests. dst holds
// the results of a row when p.Each receives the sums of that row. Few tokens read the weights once
// for both. workers is the largest number of goroutines, 0 meaning GOMAXPROCS; it does not change
// the result. MatMulPartial panics if lengths do not fit.
func MatMulPartial(dst, x []float32, w Matrix, bias []float32, acc Accumulator, p *Partial, workers int) {
	j := jobs.Get().(*job)
	defer jobs.Put(j)
	j.prepare(dst, x, w, bias, acc, workers)
	defer j.release()
	q := p.prepare(w)
	if j.tokenBlocks != 1 || q.blocks() != 1 {
		j.run()
		q.run(workers)
		return
	}
	shared := min(sharedBytes/max(1, j.w.rowBytes()), j.rowBlock) / q.panelRows() * q.panelRows()
	j.cutRows(max(tileRows, j.im.panelRows(acc), q.panelRows(), shared))
	q.setTokens(0)
	defer q.release()
	Parallel(j.rowBlocks, j.workers, func(i int) {
		j.item(i)
		q.rows(i*j.rowBlock, min((i+1)*j.rowBlock, w.Rows))
	})
}

// MatPartial computes the sums that p requests. workers means the same as for MatMulPartial.
func MatPartial(w Matrix, p *Partial, workers int) { p.prepare(w).run(workers) }

// sharedBytes is the size in bytes of the weights that two computations read in turn: it fits the
// second-level cache.
const sharedBytes = 256 << 10

// partialJob is one call of MatMulPartial or MatPartial.
type partialJob struct {
	*Partial
	im     *implementation
	w      Matrix
	kinds  int // 2 with both X and V: for each token a row of X, then a row of V
	tokens int // rows of X and V together
	block  int // tokens that are packed at once, an even number

	// The present block: its first token, its panels, and their numbers.
	first  int
	panels []tokenRun
	x      []float32
	pooled *[]float32 // memory of x, from packedTokens
}

// partialBytes bounds the tokens of a block, which pass from the third-level cache through the
// kernels; partialTokens bounds them for the states of their sums, in the second-level cache.
const (
	partialBytes  = 5 << 20
	partialTokens = 256
)

// prepare sets up a job; it panics if lengths do not fit.
func (p *Partial) prepare(w Matrix) *partialJob {
	w.check()
	q := &partialJob{Partial: p, im: current(), w: w}
	for _, operand := range [][]float32{p.X, p.V} {
		if operand == nil {
			continue
		}
		q.kinds++
		if w.Cols > 0 {
			q.tokens = len(operand) / w.Cols
		}
		if len(operand) != q.tokens*w.Cols {
			panic("kernel: Partial: lengths do not fit")
		}
	}
	if p.X != nil && p.V != nil && len(p.X) != len(p.V) || p.Scale != nil && len(p.Scale) != q.tokens {
		panic("kernel: Partial: lengths do not fit")
	}
	q.tokens *= q.kinds
	q.block = min(partialTokens, max(maxWidth, partialBytes/max(1, 8*w.Cols)/maxWidth*maxWidth))
	return q
}

// blocks returns the number of blocks of tokens.
func (q *partialJob) blocks() int { return ceilDiv(q.tokens, q.block) }

// panelRows returns the number of rows of weights in a panel.
func (q *partialJob) panelRows() int { return max(1, 2*q.im.partial.group) }

// run computes all blocks of tokens.
func (q *partialJob) run(workers int) {
	workers = min(workerCount(workers), 1+q.tokens*q.w.Rows*q.w.Cols/wakeProducts)
	rows := max(1, q.w.Rows/(workers*itemsPerWorker)/q.panelRows()) * q.panelRows()
	for b := range q.blocks() {
		q.setTokens(b)
		Parallel(ceilDiv(q.w.Rows, rows), workers, func(i int) {
			q.rows(i*rows, min((i+1)*rows, q.w.Rows))
		})
		q.release()
	}
}

// packedTokens holds the memory of blocks of tokens.
var packedTokens = sync.Pool{New: func() any { return new([]float32) }}

// setTokens packs a block of tokens for the kernels: for each panel and each k the numbers of its
// tokens, then their terms. The last token is repeated where tokens are missing; each row is
// padded with 0 to whole steps.
func (q *partialJob) setTokens(block int) {
	q.first = block * q.block
	n, k, length := q.blockTokens(), &q.im.partial, q.length()
	q.panels = q.panels[:0]
	for at := 0; at < n; {
		run := tokenRun{at, max(1, k.width(n-at)), 1}
		q.panels, at = append(q.panels, run), run.end()
	}
	q.pooled = packedTokens.Get().(*[]float32)
	q.x = grow(*q.pooled, 2*length*q.panels[len(q.panels)-1].end())
	for _, run := range q.panels {
		for i := range run.width {
			q.pack(q.x[2*length*run.first+i:], q.first+min(run.first+i, n-1), run.width)
		}
	}
}

// blockTokens returns the number of tokens in the present block.
func (q *partialJob) blockTokens() int { return min(q.block, q.tokens-q.first) }

// pack writes a token's numbers, and terms, to a panel of width tokens.
func (q *partialJob) pack(panel []float32, token, width int) {
	cols := q.w.Cols
	from := token / q.kinds * cols
	if q.carries(token) {
		for c, v := range q.V[from : from+cols] {
			panel[2*c*width], panel[(2*c+1)*width] = 0, v
		}
	} else {
		scale := float32(1)
		if q.Scale != nil {
			scale = q.Scale[token/q.kinds]
		}
		for c, v := range q.X[from : from+cols] {
			v *= scale
			panel[2*c*width], panel[(2*c+1)*width] = v, v*v
		}
	}
	for c := cols; c < q.length(); c++ {
		panel[2*c*width], panel[(2*c+1)*width] = 0, 0
	}
}

// carries reports whether a token is a row of V.
func (q *partialJob) carries(token int) bool { return q.X == nil || token%q.kinds == 1 }

// release gives the memory of a block back.
func (q *partialJob) release() {
	if q.pooled != nil {
		*q.pooled = q.x
		packedTokens.Put(q.pooled)
		q.pooled, q.x = nil, nil
	}
}

// length returns the length of a row, padded to whole steps: pack kernels take two at a time.
func (q *partialJob) length() int { return roundUp(q.w.Cols, 2*lanes) }

// rows computes the rows r … toR of the present block of tokens.
func (q *partialJob) rows(r, toR int) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	if !q.im.partial.available() {
		q.portable(s, r, toR)
		return
	}
	for ; r < toR; r += q.panelRows() {
		q.panel(s, r, min(q.panelRows(), toR-r))
	}
}

// portable is rows in portable Go.
func (q *partialJob) portable(s *scratch, r, toR int) {
	p, cols, length := &s.partial, q.w.Cols, q.length()
	p.rows, p.w = grow(p.rows, cols), grow(p.w, 2*cols)
	p.state = grow(p.state, states*len(q.panels))
	for ; r < toR; r++ {
		row := q.w.Row(p.rows, r)
		for i := range q.panels {
			for c := range cols {
				p.w[c], p.w[cols+c] = q.x[2*(length*i+c)], q.x[2*(length*i+c)+1]
			}
			p.state[states*i+2], p.state[states*i+3] = PartialSums(p.w[:cols], p.w[cols:], row, q.OneChain)
		}
		q.give(p, r, 1)
	}
}

// panel computes the rows r … r+rows, one panel of weights.
func (q *partialJob) panel(s *scratch, r, rows int) {
	span := ChainTerms // columns decoded at once
	if q.w.Scales != nil && span%q.w.BlockCols != 0 {
		span = max(span, roundUp(q.w.Cols, ChainTerms))
	}
	p := &s.partial
	p.rows = grow(p.rows, rows*span)
	p.w = grow(p.w, q.panelRows()*ChainTerms)
	last := q.panels[len(q.panels)-1]
	p.state = grow(p.state, states*q.panelRows()*last.end())
	clear(p.state)
	for from := 0; from < q.w.Cols; from += span {
		to := min(from+span, q.w.Cols)
		for i := range rows {
			p.decoded[i] = q.decode(p.rows[i*span:(i+1)*span], r+i, from, to)
		}
		for at := 0; at < to-from; at += ChainTerms {
			q.part(p, rows, at, from+at, min(ChainTerms, to-from-at))
		}
	}
	clear(p.decoded[:])
	q.give(p, r, rows)
}

// decode returns the numbers from … to-1 of a row, padded with 0 to whole steps: in dst, or in
// the matrix if it holds float32 and no padding is needed.
func (q *partialJob) decode(dst []float32, row, from, to int) []float32 {
	n, whole := to-from, roundUp(to-from, 2*lanes)
	values := q.w.part(dst, row, from, to)
	if n == whole {
		return values
	}
	copy(dst, values)
	clear(dst[n:whole])
	return dst[:whole]
}

// part continues the sums by n ≤ ChainTerms terms, from column k on, which is decoded at place at.
func (q *partialJob) part(p *partialScratch, rows, at, k, n int) {
	kernels, group := &q.im.partial, q.im.partial.group
	for g := range 2 {
		for i := range group {
			p.src[i] = (*byte)(unsafe.Pointer(&p.decoded[min(g*group+i, rows-1)][at]))
		}
		kernels.pack(&p.w[g*group*ChainTerms], &p.src, roundUp(n, 2*lanes)/lanes, lanes*group, group)
	}
	clear(p.src[:])
	steps, left, last := n/sampled, n%sampled, k+n == q.w.Cols
	end := last || !q.OneChain
	for _, run := range q.panels {
		kernel := kernels.sums[run.width-1]
		state := &p.state[states*q.panelRows()*run.first]
		x := q.x[2*(q.length()*run.first+k*run.width):]
		if steps > 0 {
			kernel(state, &p.w[0], &x[0], steps, sampled, end && left == 0)
		}
		if left > 0 {
			kernel(state, &p.w[steps*sampled*group], &x[2*steps*sampled*run.width], 1, float32(left), end)
		}
	}
}

// give passes the results of the rows r … r+rows to Each.
func (q *partialJob) give(p *partialScratch, r, rows int) {
	var sums [3][]float32 // partial, squares, carried
	i, n := 0, q.blockTokens()
	for _, run := range q.panels {
		size := q.panelRows() * run.width // length of one sum of the state
		state := p.state[states*q.panelRows()*run.first:]
		for at := 0; at < size && i < n; at, i = at+q.panelRows(), i+1 {
			token := q.first + i
			partial, squares := state[2*size+at:][:rows], state[3*size+at:][:rows]
			if q.carries(token) {
				sums[2] = squares
			} else {
				sums[0], sums[1] = partial, squares
			}
			if token%q.kinds == q.kinds-1 {
				q.Each(token/q.kinds, r, sums[0], sums[1], sums[2])
			}
		}
	}
}
