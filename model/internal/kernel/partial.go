package kernel

import (
	"math"
	"slices"
	"sync"
	"unsafe"
)

// A float32 sum rounds each of its partial sums. The variance of that error is proportional to the
// square of the spacing of float32 numbers there, and this to the power of two below the partial
// sum. GEMM kernels add in the natural order of k, in chains of some hundred terms, and add the
// chains. A plan is a length of chains; libraries differ in it.
//
// Numbers of 8 bits are exact enough for an estimate of that variance: a product of two is off by at most 2^-7 of itself.
// Some processors multiply two pairs of such numbers, in BF16, in the time of one float32 product. That instruction takes
// denormal numbers for 0; the limits below keep sums from being denormal.

const (
	// fewTerms is the number of terms up to which sampleStep is smaller.
	fewTerms = 384
	// chainStep divides the length of a chain that is shorter than the sum.
	chainStep = 4
	// MostPlans is the largest number of plans.
	MostPlans = 3

	// Numbers and weights that are less are taken for 0. Products of others, and so partial sums, are multiples of
	// 2^-126.
	leastNumber, leastWeight = 0x1p-49, 0x1p-63
	// Terms are multiplied with termScale, and taken for 0 if they are then less than leastTerm. Their sums begin with
	// squaresStart, to which a denormal product would add nothing.
	termScale, leastTerm, squaresStart = 0x1p24, 0x1p-126, 0x1p-102
	// leastStart is the least start of a sum, which is a multiple of 2^-126, too. 2^startBits is more than the largest start
	// beside scaled weights: weights that vanish beside a larger one would change no bit of the sum.
	leastStart, startBits = 0x1p-112, 60
	// leastSquares is the least Σ terms·w² of ordinary weights: what is taken for 0 of 2^15 terms is less than 2^-20 of it.
	leastSquares = 0x1p-90
)

// partialSums returns the sum Σ terms·w², and the largest of the plans' sums of squares of powers
// of two below the partial sums of start + Σ x·w. All sums are float32 and in the order of k:
//
//	s = short(start, leastStart), squares = squaresStart, each plan's start = s
//	for k := range w {
//		weight := short(w[k], leastWeight)
//		s = fma32(short(x[k], leastNumber), weight, s)
//		squares = fma32(shortTerm(terms[k]), short(weight*weight, 0), squares)
//		n++
//		end := plan by plan, whether k+1 is a multiple of its chain's length, or k is the last
//		if n == sampleStep(len(w)) || any end || k%512 == 511 {
//			for each plan { r = power(s-start); sum = fma32(n*r, r, sum) }
//			n = 0
//		}
//		for each plan that ends { r = power(s); sum = fma32(r, r, sum); start = s }
//	}
//	return the largest sum, (squares - squaresStart) / termScale
//
// A plan's start is the running total of its chains, s-start the partial sum of its present chain: the totals begin with
// start, and the chains with 0. A partial sum that is squared represents n of them. x and terms are at most 1, and at
// least as long as w. There are at most MostPlans plans; a length less than len(w) is a multiple of 4.
//
// Where these results are not ordinary, weights are too large or too small for them. They are computed again with the
// weights, and start, times a power of two by which the largest weight is at least 1/2 and less than 1, or start is less
// than 2^60.
func partialSums(x, terms, w []float32, start float64, plans []int) (partial, squares float64) {
	numbers, of := make([]float32, len(w)), make([]float32, len(w))
	for k := range w {
		numbers[k], of[k] = short(x[k], leastNumber), shortTerm(terms[k])
	}
	partial32, squares32 := shortSums(numbers, of, shortWeights(nil, w, 1), float32(start), plans)
	if squares32 = sumOfTerms(squares32); ordinary(partial32, squares32) {
		return float64(partial32), float64(squares32)
	}
	return scaledSums(numbers, of, w, start, plans)
}

// ordinary reports whether float32 sums are large enough for what was taken for 0, and finite.
func ordinary(partial, squares float32) bool {
	return squares >= leastSquares && squares <= math.MaxFloat32 && partial <= math.MaxFloat32
}

// scaledSums is partialSums, of short numbers and terms, where results are not ordinary.
func scaledSums(x, terms, w []float32, start float64, plans []int) (partial, squares float64) {
	if start == 0 && (allZero(w) || allZero(x) && allZero(terms)) {
		return 0, 0
	}
	scale := 1 / scaleOf(w)
	if _, e := math.Frexp(start * scale); e > startBits {
		scale = math.Ldexp(scale, startBits-e)
	}
	p, sq := shortSums(x, terms, shortWeights(nil, w, scale), float32(start*scale), plans)
	return float64(p) / (scale * scale), float64(sumOfTerms(sq)) / (scale * scale)
}

// allZero reports whether no number is other than 0.
func allZero(numbers []float32) bool {
	return !slices.ContainsFunc(numbers, func(v float32) bool { return v != 0 })
}

// scaleOf returns the power of two that is more than the largest magnitude of numbers, and at most twice that: 1 of zeros,
// and of numbers that are not finite.
func scaleOf(numbers []float32) float64 {
	largest := ExtremesOf(numbers).Largest
	if largest == 0 || !(largest <= math.MaxFloat32) {
		return 1
	}
	_, e := math.Frexp(float64(largest))
	return math.Ldexp(1, e)
}

// shortWeights appends to dst what partialSums takes of the weights times scale.
func shortWeights(dst, w []float32, scale float64) []float32 {
	for _, v := range w {
		dst = append(dst, short(float32(float64(v)*scale), leastWeight))
	}
	return dst
}

// shortSums returns the largest sum and squares of the definition of partialSums, of numbers that are short already.
func shortSums(x, terms, w []float32, begin float32, plans []int) (partial, squares float32) {
	x, terms = x[:len(w)], terms[:len(w)]
	s, squares := short(begin, leastStart), float32(squaresStart)
	start, sum := [MostPlans]float32{s, s, s}, [MostPlans]float32{}
	for k := 0; k < len(w); {
		from, to := k, nextCut(plans, k, len(w))
		to = min(to, k+sampleStep(len(w)))
		for ; k < to; k++ {
			s = fma32(x[k], w[k], s)
			squares = fma32(terms[k], short(w[k]*w[k], 0), squares)
		}
		end := chainEnds(plans, k, len(w))
		for p := range plans {
			r := power(s - start[p])
			sum[p] = fma32(float32(k-from)*r, r, sum[p])
			if end>>p&1 == 1 {
				r = power(s)
				sum[p] = fma32(r, r, sum[p])
				start[p] = s
			}
		}
	}
	for _, v := range sum {
		partial = max(partial, v)
	}
	return partial, squares
}

// sumOfTerms returns Σ terms·w² from squares in the definition of partialSums.
func sumOfTerms(squares float32) float32 { return (squares - squaresStart) / termScale }

// short returns v rounded to 8 bits, ties away from 0; 0 if |v| < least.
func short(v, least float32) float32 {
	b := math.Float32bits(v)
	if b&math.MaxInt32 < math.Float32bits(least) {
		return 0
	}
	return math.Float32frombits((b + 1<<15) >> 16 << 16)
}

// shortTerm is what partialSums takes of a term.
func shortTerm(v float32) float32 { return short(v*termScale, leastTerm) }

// sampleStep returns the number of terms from one squared partial sum to the next, in a sum of n terms. Few terms of one
// sign and nearly one size may double their sum within 16 terms.
func sampleStep(n int) int {
	if n <= fewTerms {
		return chainStep
	}
	return lanes
}

// power returns the largest power of two that is at most |x|·(1 + 2^-7), as products of short numbers may be so much
// less: 0 of 0, +Inf of NaN.
func power(x float32) float32 {
	return math.Float32frombits(math.Float32bits(x*(1+0x1p-7)) & 0x7f800000)
}

// nextCut returns the first place behind k, in a sum of n terms, where a chain or a panel ends.
func nextCut(plans []int, k, n int) int {
	cut := min(n, (k/panelTerms+1)*panelTerms)
	for _, length := range plans {
		cut = min(cut, (k/length+1)*length)
	}
	return cut
}

// chainEnds returns, as bits, the plans that have a chain which ends before term k of n.
func chainEnds(plans []int, k, n int) (ends int) {
	for p, length := range plans {
		if k == n || k%length == 0 {
			ends |= 1 << p
		}
	}
	return ends
}

// Partial requests sums of rows of X and V with the rows of a matrix w. Each receives the sums of
// a token with the rows of w from row on:
//
//	partial, squares = partialSums(x, x∘x, w, start, Plans), x the token's row of X
//	carried          = Σ v·w², v the token's row of V: the squares of partialSums
//
// x and start are multiplied with a power of two, so that the largest number of x is at least 1/2 and less than 1, and
// the sums are divided by its square.
//
// Several goroutines call Each at once, each for a part of the results. The slices have one number
// per row and are valid during the call.
type Partial struct {
	X     []float32 // [tokens, w.Cols]; nil leaves partial and squares nil
	Start []float32 // start of the sums of each row of w, as of a bias; nil means 0
	V     []float32 // [tokens, w.Cols], at most 1; nil leaves carried nil

	Plans []int // lengths of chains
	Each  func(token, row int, partial, squares, carried []float64)
}

// MatMulPartial computes dst = x·wᵀ + bias as MatMul does, and the sums that p requests. dst holds
// the results of a row when p.Each receives the sums of that row. Few tokens read the weights once
// for both. workers is the largest number of goroutines, 0 meaning GOMAXPROCS; it does not change
// the result. MatMulPartial panics if lengths do not fit.
func MatMulPartial(dst, x []float32, w Matrix, bias []float32, acc Accumulator, p *Partial, workers int) {
	j := jobs.Get().(*job)
	defer jobs.Put(j)
	j.prepare(dst, x, w, bias, acc, workers)
	defer func() { *j = job{} }() // the pool keeps none of the caller's memory
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
	plans  []int // Plans; none without X
	kinds  int   // 2 with both X and V: for each token a row of X, then a row of V
	tokens int   // rows of X and V together
	block  int   // tokens that are packed at once, an even number

	// The present block: its first token, its panels, and their numbers.
	first  int
	panels []tokenRun
	scales []float64 // power of two that each token's numbers were divided by
	x      []float32
	pooled *[]float32 // memory of x, from packedTokens
	row    []float32  // short numbers of the token that is packed, then its terms
}

// partialBytes bounds the tokens of a block, which pass from the third-level cache through the kernels, once for each
// partialPanels panels of weights; partialTokens bounds them for the states of their sums.
const (
	partialBytes  = 8 << 20
	partialTokens = 512
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
	if p.X != nil && p.V != nil && len(p.X) != len(p.V) || p.Start != nil && len(p.Start) != w.Rows {
		panic("kernel: Partial: lengths do not fit")
	}
	if p.X != nil {
		q.plans = p.Plans
		fits := len(p.Plans) > 0 && len(p.Plans) <= MostPlans
		for _, length := range p.Plans {
			fits = fits && (length > 0 && length%chainStep == 0 || length >= w.Cols)
		}
		if !fits {
			panic("kernel: Partial: plans do not fit")
		}
	}
	q.tokens *= q.kinds
	q.block = min(partialTokens, max(maxWidth, partialBytes/max(1, 4*q.words(w.Cols))/maxWidth*maxWidth))
	return q
}

// blocks returns the number of blocks of tokens.
func (q *partialJob) blocks() int { return ceilDiv(q.tokens, q.block) }

// states returns the number of sums in a partialKernel's state, for each token and row.
func (q *partialJob) states() int { return 2 + 2*len(q.plans) }

// stateSize returns the length of the state of all tokens of the block, for a panel.
func (q *partialJob) stateSize() int {
	return q.states() * q.panelRows() * q.panels[len(q.panels)-1].end()
}

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

// setTokens packs a block of tokens for the kernels: for each panel and each k, or pair of them, the numbers of its
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
	q.scales = make([]float64, n)
	q.pooled = packedTokens.Get().(*[]float32)
	q.x = grow(*q.pooled, q.words(length)*q.panels[len(q.panels)-1].end())
	for _, run := range q.panels {
		for i := range run.width {
			q.pack(q.x[q.words(length)*run.first+i:], min(run.first+i, n-1), run.width)
		}
	}
}

// words returns the number of 32-bit words that k numbers of a token and their terms take, k being even with pairs.
func (q *partialJob) words(k int) int {
	if q.im.partial.pairs {
		return k
	}
	return 2 * k
}

// blockTokens returns the number of tokens in the present block.
func (q *partialJob) blockTokens() int { return min(q.block, q.tokens-q.first) }

// pack writes the numbers, and terms, of a token of the block to a panel of width tokens.
func (q *partialJob) pack(panel []float32, token, width int) {
	length := q.length()
	q.row = grow(q.row, 2*length)
	clear(q.row)
	numbers, terms := q.row[:length], q.row[length:]
	q.scales[token] = q.short(numbers, terms, token)
	if q.im.partial.pairs {
		for c := 1; c < len(numbers); c += 2 {
			panel[(c-1)*width], panel[c*width] = pairOf(numbers[c-1], numbers[c]), pairOf(terms[c-1], terms[c])
		}
		return
	}
	for c, v := range numbers {
		panel[2*c*width], panel[(2*c+1)*width] = v, terms[c]
	}
}

// short sets the numbers and terms that partialSums takes of a token of the block. It returns what they were divided by.
func (q *partialJob) short(numbers, terms []float32, token int) (scale float64) {
	all := token + q.first
	from, to := all/q.kinds*q.w.Cols, (all/q.kinds+1)*q.w.Cols
	if q.carries(all) {
		for c, v := range q.V[from:to] {
			terms[c] = shortTerm(v)
		}
		return 1
	}
	x := q.X[from:to]
	scale = scaleOf(x)
	numbers, terms, inverse := numbers[:len(x)], terms[:len(x)], 1/scale
	for c, v := range x {
		v = float32(float64(v) * inverse)
		numbers[c], terms[c] = short(v, leastNumber), shortTerm(v*v)
	}
	return scale
}

// start returns the start of the sums of a token of the block with a row.
func (q *partialJob) start(token, row int) float64 {
	if q.Start == nil || q.carries(q.first+token) {
		return 0
	}
	return float64(q.Start[row]) / q.scales[token]
}

// pairOf returns two short numbers in one word, the first in the upper half.
func pairOf(first, second float32) float32 {
	return math.Float32frombits(math.Float32bits(first) | math.Float32bits(second)>>16)
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
	if q.im.partial.group == 0 { // the implementation has no such kernels
		q.portable(s, r, toR)
		return
	}
	for ; r < toR; r += partialPanels * q.panelRows() {
		q.computePanels(s, r, min(partialPanels*q.panelRows(), toR-r))
	}
}

// portable is rows in portable Go.
func (q *partialJob) portable(s *scratch, r, toR int) {
	p, cols, length := &s.partial, q.w.Cols, q.length()
	p.rows, p.w = grow(p.rows, cols), grow(p.w, 2*cols)
	p.state = grow(p.state, q.states()*len(q.panels))
	for ; r < toR; r++ {
		p.short = shortWeights(p.short[:0], q.w.Row(p.rows, r), 1)
		for i := range q.panels {
			for c := range cols {
				p.w[c], p.w[cols+c] = q.x[2*(length*i+c)], q.x[2*(length*i+c)+1]
			}
			state := p.state[q.states()*i:]
			partial, squares := shortSums(p.w[:cols], p.w[cols:], p.short, float32(q.start(i, r)), q.plans)
			state[1] = squares
			for s := range q.plans {
				state[2*s+3] = partial
			}
		}
		q.give(p, p.state, r, 1)
	}
}

// computePanels computes the rows r … r+rows, at most partialPanels panels of weights.
func (q *partialJob) computePanels(s *scratch, r, rows int) {
	span := panelTerms // columns decoded at once
	if q.w.Scales != nil && span%q.w.BlockCols != 0 {
		span = max(span, roundUp(q.w.Cols, panelTerms))
	}
	p := &s.partial
	p.rows = grow(p.rows, rows*span)
	panels := ceilDiv(rows, q.panelRows())
	p.w = grow(p.w, panels*q.panelRows()*panelTerms)
	p.state = grow(p.state, panels*q.stateSize())
	q.begin(p.state, r, rows)
	for from := 0; from < q.w.Cols; from += span {
		to := min(from+span, q.w.Cols)
		format := F32 // of the rows that are packed
		if q.im.partial.pairs && (to-from)%(2*lanes) == 0 {
			format = q.w.packedFormat()
		}
		for i := range rows {
			if format == BF16 {
				p.start[i] = (*byte)(unsafe.Add(q.w.start(r+i), BF16.Bytes(from)))
			} else {
				p.start[i] = (*byte)(unsafe.Pointer(&q.decode(p.rows[i*span:(i+1)*span], r+i, from, to)[0]))
			}
		}
		for at := 0; at < to-from; at += panelTerms {
			n := min(panelTerms, to-from-at)
			q.packWeights(p, rows, at, n, format)
			q.part(p, rows, from+at, n)
		}
	}
	clear(p.start[:])
	for i := range panels {
		at := i * q.panelRows()
		q.give(p, p.state[i*q.stateSize():], r+at, min(q.panelRows(), rows-at))
	}
}

// begin sets the states of the panels of some rows to what they are before the first term.
func (q *partialJob) begin(states []float32, r, rows int) {
	clear(states)
	for at := 0; at < rows; at += q.panelRows() {
		for _, run := range q.panels {
			size := q.panelRows() * run.width
			state := states[q.states()*q.panelRows()*run.first:]
			fill(state[size:][:size], squaresStart)
			if q.Start == nil {
				continue
			}
			for i := range size {
				token, row := run.first+i/q.panelRows(), at+i%q.panelRows()
				if token >= q.blockTokens() || row >= rows {
					continue
				}
				state[i] = short(float32(q.start(token, r+row)), leastStart)
				for p := range q.plans {
					state[(2*p+2)*size+i] = state[i]
				}
			}
		}
		states = states[q.stateSize():]
	}
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

// packWeights makes panels of n ≤ panelTerms terms of the rows. Term 0 is the number at index at of each row; the rows have
// this format, F32 or BF16.
func (q *partialJob) packWeights(p *partialScratch, rows, at, n int, format Format) {
	kernels, group, terms := &q.im.partial, q.im.partial.group, roundUp(n, 2*lanes)
	for g := range 2 * ceilDiv(rows, q.panelRows()) {
		for i := range group {
			p.src[i] = (*byte)(unsafe.Add(unsafe.Pointer(p.start[min(g*group+i, rows-1)]), format.Bytes(at)))
		}
		panel, numbers := &p.w[g*group*panelTerms], &p.group[0]
		if format == BF16 {
			kernels.packPairs((*uint32)(unsafe.Pointer(numbers)), &p.src, terms/lanes, lanes/2*group, group)
			kernels.shortStored(panel, numbers, terms*group)
		} else {
			kernels.pack(numbers, &p.src, terms/lanes, lanes*group, group)
			kernels.short(panel, numbers, terms*group)
		}
	}
	clear(p.src[:])
}

// part continues the sums of the rows by the n terms of their panels, which begin with column k.
func (q *partialJob) part(p *partialScratch, rows, k, n int) {
	kernels, group := &q.im.partial, q.im.partial.group
	panels, step := ceilDiv(rows, q.panelRows()), sampleStep(q.w.Cols)
	p.cuts = p.cuts[:0]
	for cut, to := k, k+n; cut < to; {
		from := cut
		cut = min(to, nextCut(q.plans, cut, q.w.Cols))
		p.cuts = append(p.cuts, termRun{from - k, cut - from, chainEnds(q.plans, cut, q.w.Cols)})
	}
	for _, run := range q.panels {
		kernel, x := kernels.sums[run.width-1], q.x[q.words(q.length()*run.first+k*run.width):]
		for i := range panels {
			state := &p.state[i*q.stateSize()+q.states()*q.panelRows()*run.first]
			w := p.w[i*q.panelRows()*panelTerms:]
			from := func(at int) (_, _ *float32) { return &w[q.words(at)*group/2], &x[q.words(at)*run.width] }
			for _, c := range p.cuts {
				ends, left := c.ends, c.n%step
				if c.n > left {
					if left > 0 {
						ends = 0
					}
					w, x := from(c.at)
					kernel(state, w, x, c.n/step, step/chainStep, float32(step), len(q.plans), ends)
				}
				if left > 0 {
					w, x := from(c.at + c.n - left)
					kernel(state, w, x, 1, ceilDiv(left, chainStep), float32(left), len(q.plans), c.ends)
				}
			}
		}
	}
}

// give passes the results of the rows r … r+rows, one panel with this state, to Each.
func (q *partialJob) give(p *partialScratch, states []float32, r, rows int) {
	p.sums = grow(p.sums, 3*rows)
	var sums [3][]float64 // partial, squares, carried
	i, n := 0, q.blockTokens()
	for _, run := range q.panels {
		size := q.panelRows() * run.width // length of one sum of the state
		state := states[q.states()*q.panelRows()*run.first:]
		for at := 0; at < size && i < n; at, i = at+q.panelRows(), i+1 {
			token := q.first + i
			if q.carries(token) {
				sums[2] = p.sums[2*rows:]
				q.results(p, state[at:], size, i, r, sums[2], sums[2])
			} else {
				sums[0], sums[1] = p.sums[:rows], p.sums[rows:2*rows]
				q.results(p, state[at:], size, i, r, sums[0], sums[1])
			}
			if token%q.kinds == q.kinds-1 {
				q.Each(token/q.kinds, r, sums[0], sums[1], sums[2])
			}
		}
	}
}

// results sets partial and squares of a token of the block and of rows from r on. Sums of the state are size apart.
func (q *partialJob) results(p *partialScratch, state []float32, size, token, r int, partial, squares []float64) {
	unit := q.scales[token] * q.scales[token]
	squared, all := state[size:][:len(partial)], [MostPlans][]float32{}
	plans := all[:len(q.plans)]
	for plan := range plans {
		plans[plan] = state[(2*plan+3)*size:][:len(partial)]
	}
	var x, terms []float32 // the token's short numbers, if one of its sums is computed again
	for i, sum := range squared {
		sum, most := sumOfTerms(sum), uint32(0) // bits of sums, which are not negative; those of NaN are more than all
		for _, s := range plans {
			most = max(most, math.Float32bits(s[i]))
		}
		partial64, squares64 := float64(math.Float32frombits(most)), float64(sum)
		if !ordinary(math.Float32frombits(most), sum) {
			if x == nil {
				p.again = grow(p.again, 2*q.w.Cols)
				x, terms = p.again[:q.w.Cols], p.again[q.w.Cols:]
				clear(x) // short leaves it alone where the token carries errors
				q.short(x, terms, token)
			}
			p.row = grow(p.row, q.w.Cols)
			partial64, squares64 = scaledSums(x, terms, q.w.Row(p.row, r+i), q.start(token, r+i), q.plans)
		}
		partial[i] = float64(partial64 * unit)
		squares[i] = float64(squares64 * unit)
	}
}
