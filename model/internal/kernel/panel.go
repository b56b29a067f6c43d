package kernel

import (
	"math/bits"
	"unsafe"
)

// Products of many tokens run on panels. A panel is a few rows, of weights or of
// tokens, widened and rearranged so that the numbers of one instruction lie side by side.
// Number k of a row belongs to lane k mod 16 and is step k / 16 of that lane. A panel holds
// lane after lane, a lane step after step, and a step the numbers of all rows:
//
//	panel[lane·distance + step·rows + row] = row[16·step + lane]
//
// Each lane is therefore a matrix product of its own, over every 16th number, and its
// sums are the lane's partial sums in the definition of Dot32 and Dot64. KERNELS.md has
// a drawing.

// panelKernels are the kernels that work on panels with sums of type F.
type panelKernels[F float32 | float64] struct {
	group int // rows that one call of a pack kernel rearranges, at most maxGroup
	rows  int // rows of weights in a panel, a multiple of group; 0 means no kernels

	// pack rearranges rows of F32, packPairs rows of BF16. Two neighbouring BF16 numbers of a
	// row stay together in one uint32, and so do their lanes: half the bytes of widened
	// numbers. An addPairs kernel widens them later.
	pack      packKernel[F]
	packPairs packKernel[uint32]

	// tiles multiply panels, narrowest first; the last is the widest.
	tiles []panelTile[F]
}

// panelTile holds the kernels for panels of width tokens.
type panelTile[F float32 | float64] struct {
	width int
	add   addKernel[F]
	pairs addPairsKernel[F]
}

// packKernel rearranges a group of rows:
//
//	dst[l*lane + s*stride + i] = src[i][lanes*s + l],  s < steps, l < lanes, i < group
//
// lanes is 16, or 8 if D is uint32 (src is then read as pairs of BF16). steps is even. A
// group wider than stride writes into the next steps, which the kernel then overwrites.
type packKernel[D any] func(dst *D, src *[maxGroup]*byte, steps, stride, lane int)

// addKernel multiplies one lane of a panel of weights, w, with the same lane of panels of
// tokens, the first at x and then one every next numbers:
//
//	sum[token][row] = acc[token][row], or 0 unless again
//	sum[token][row] += x[s][token] * w[s][row],        s < steps, fused, in this order
//	sum[token][row] += (pending - f*lane)[token][row], f < folds
//	out[token*stride + row] = sum[token][row]
//
// acc and pending have the layout [token][row of the panel]. Meanwhile the kernel prefetches
// into the second-level cache, from address ahead on, pace bytes further every 2 steps.
type addKernel[F any] func(acc, w, x *F, steps, panels, next int, again bool, pending *F, folds, lane int,
	out *F, stride int, ahead uintptr, pace int)

// addPairsKernel is addKernel for a single panel of tokens. It takes one lane of the
// weights from pairs, the upper half of each if odd, and leaves it widened in w, for the
// next calls of an addKernel.
type addPairsKernel[F any] func(acc *F, pairs *uint32, odd bool, w, x *F, steps int, again bool,
	pending *F, folds, lane int, out *F, stride int, ahead uintptr, pace int)

const (
	// maxGroup is the largest group of a pack kernel.
	maxGroup = 16

	// panelSteps is the number of steps of a lane that are multiplied at once. The weights and
	// a panel of tokens of panelSteps steps share the first-level cache; the weights of all
	// lanes fit the second-level cache.
	panelSteps = 128

	// laneGap is the distance in numbers between the end of a lane and the next lane. It
	// keeps the distance between lanes from being a power of two, where lanes compete for the
	// same lines of the cache. The last step of a group wider than its panel writes into it.
	laneGap = maxGroup

	// waitingSums is the largest number of partial sums that wait to be added: one on each
	// level of the tree.
	waitingSums = 4
)

// panelTokens is the least number of tokens at which packing saves more time than it takes:
// a full panel with float32 sums, half a panel with float64 sums, where a multiplication
// takes twice the time.
var panelTokens = [...]int{Float64: 6, Float32: 12}

// foldOrder is the order in which the lanes are multiplied: a walk through the tree of Dot32
// that keeps few sums waiting. The lane at place i takes as many waiting sums, the latest
// first, as i has ones at its end in binary: lane 8 takes the sum of lane 0; lane 12 the sum
// of lane 4, then the sum of lanes 0 and 8.
var foldOrder = [lanes]int{0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15}

// panelScratch is the memory of one worker for panels, and its present work.
type panelScratch[F float32 | float64] struct {
	j *job
	k *panelKernels[F]

	// A block of tokens, from token first on, as panels.
	first, tokens int
	runs          []tokenRun
	x             []F    // panels of the block
	packedFor     uint64 // serial of the job of x
	packedFrom    int    // first token in x

	// A panel of weights, or the part of its steps that is multiplied at once.
	w     []F       // all lanes; of pairs the present lane
	pairs []uint32  // all lanes, in pairs
	rows  []float32 // the decoded rows, where the kernels do not read their format

	// sums is slots of [token][row]: waitingSums slots for the sums that wait and, if the
	// steps are multiplied in several parts, one slot for each lane.
	sums []F

	ahead uintptr // address to prefetch next
	pace  int     // bytes to prefetch in 2 steps

	src  [maxGroup]*byte               // the rows that a pack kernel rearranges
	tail [maxGroup][2 * lanes * 4]byte // the ends of rows; no product uses the bytes behind an end
}

// tokenRun is a row of panels of equal width, next to each other.
type tokenRun struct {
	first  int // first token of the run, in the block
	width  int // tokens in each panel
	panels int
}

// end returns the token behind the run.
func (run tokenRun) end() int { return run.first + run.width*run.panels }

// available reports whether the implementation has panel kernels.
func (k *panelKernels[F]) available() bool { return k.rows > 0 }

// widest returns the tile for the most tokens.
func (k *panelKernels[F]) widest() *panelTile[F] { return &k.tiles[len(k.tiles)-1] }

// tile returns the narrowest tile that holds n tokens, or else the widest.
func (k *panelKernels[F]) tile(n int) *panelTile[F] {
	for i := range k.tiles {
		if k.tiles[i].width >= n {
			return &k.tiles[i]
		}
	}
	return k.widest()
}

// cut appends to runs a cut of tokens into panels: the first panel by itself, then the widest
// panels, then for the tokens left the narrowest panel that holds them. That panel repeats the
// last token where tokens are missing.
func (k *panelKernels[F]) cut(runs []tokenRun, tokens int) []tokenRun {
	for at := 0; at < tokens; {
		run := tokenRun{first: at, width: k.tile(tokens - at).width, panels: 1}
		if full := (tokens - at) / run.width; at > 0 && full > 1 {
			run.panels = full
		}
		runs, at = append(runs, run), run.end()
	}
	return runs
}

// panelRows returns the number of rows of weights in a panel.
func (im *implementation) panelRows(acc Accumulator) int {
	if acc == Float32 {
		return im.panels32.rows
	}
	return im.panels64.rows
}

// panelled computes the rows r … toR of the tokens t … toT on panels.
func panelled[F float32 | float64](j *job, k *panelKernels[F], s *panelScratch[F], r, toR, t, toT int) {
	s.j, s.k, s.first, s.tokens = j, k, t, toT-t
	s.runs = k.cut(s.runs[:0], s.tokens)
	s.packTokens()
	slots := waitingSums
	if j.steps() > panelSteps {
		slots += lanes
	}
	s.sums = grow(s.sums, slots*s.slotSize())
	for ; r < toR; r += k.rows {
		s.panel(r, min(k.rows, toR-r), toR)
	}
	s.j, s.k = nil, nil
}

// panel computes the rows r … r+rows, one panel of weights.
func (s *panelScratch[F]) panel(r, rows, toR int) {
	next := r + rows
	if next == toR { // where the next item of this worker probably begins
		next += (s.j.workers - 1) * s.j.rowBlock
	}
	s.prefetch(next)
	s.decode(r, rows)
	for step := 0; step < s.j.steps(); step += panelSteps {
		p := part{r, rows, step, min(panelSteps, s.j.steps()-step)}
		s.packWeights(p)
		for turn := range foldOrder {
			for i := range s.runs {
				s.multiply(p, turn, i)
			}
		}
	}
	s.finish(r, rows)
}

// part is the steps step … step+steps of the rows r … r+rows of one panel.
type part struct{ r, rows, step, steps int }

// steps returns the number of steps of the longest lane, rounded up to an even number: pack
// kernels take two steps at a time.
func (j *job) steps() int { return ceilDiv(j.w.Cols, 2*lanes) * 2 }

// slotSize returns the length of a slot of sums.
func (s *panelScratch[F]) slotSize() int { return s.padded()*s.k.rows + laneGap }

// slot returns the address of a token of the block in slot i of the sums.
func (s *panelScratch[F]) slot(i, token int) *F { return &s.sums[i*s.slotSize()+token*s.k.rows] }

// padded returns the number of tokens in the panels of the block, repeated ones included.
func (s *panelScratch[F]) padded() int { return s.runs[len(s.runs)-1].end() }

// tokenLane returns the distance between lanes of x.
func (s *panelScratch[F]) tokenLane() int { return s.j.steps()*s.padded() + laneGap }

// weightLane returns the distance between lanes of weights, in numbers or pairs.
func (s *panelScratch[F]) weightLane(steps int) int { return steps*s.k.rows + laneGap }

// prefetch sets ahead and pace so that the panel of weights at row r is in the cache
// when the present one has been multiplied.
func (s *panelScratch[F]) prefetch(r int) {
	s.ahead, s.pace = uintptr(unsafe.Pointer(&s.x[0])), 0 // any valid address
	rows := min(s.k.rows, s.j.w.Rows-r)
	if rows <= 0 {
		return
	}
	panels := 0
	for _, run := range s.runs {
		panels += run.panels
	}
	prefetches := lanes * panels * s.j.steps() / 2
	s.ahead, s.pace = uintptr(s.j.w.start(r)), rows*s.j.w.rowBytes()/prefetches+1
}

// multiply adds the products of one lane of a part of the weights, lane foldOrder[turn], with
// one run of the tokens. The last part completes the lane's sums and adds the sums that wait
// for them.
func (s *panelScratch[F]) multiply(p part, turn, i int) {
	j, k, run, lane := s.j, s.k, s.runs[i], foldOrder[turn]
	tile := k.tile(run.width)
	steps := min(p.steps, ceilDiv(j.w.Cols-lane, lanes)-p.step) // the last step may lack this lane
	last := p.step+p.steps == j.steps()
	waiting, folds := bits.OnesCount(uint(turn)), 0
	if last {
		folds = bits.TrailingZeros(uint(turn + 1))
	}
	pending := s.slot(max(waiting-1, 0), run.first)
	sum := s.slot(waiting-folds, run.first)
	acc := sum
	if j.steps() > panelSteps {
		acc = s.slot(waitingSums+turn, run.first)
	}
	out, stride := sum, k.rows
	switch {
	case !last:
		out = acc
	case turn == lanes-1 && s.direct(run, p.rows):
		out, stride = (*F)(unsafe.Pointer(&j.dst[(s.first+run.first)*j.w.Rows+p.r])), j.w.Rows
	}
	x := &s.x[lane*s.tokenLane()+run.first*j.steps()+p.step*run.width]
	switch {
	case j.packedFormat() != BF16:
		tile.add(acc, &s.w[lane*s.weightLane(p.steps)], x, steps, run.panels, run.width*j.steps(),
			p.step > 0, pending, folds, s.slotSize(), out, stride, s.ahead, s.pace)
	case i == 0:
		tile.pairs(acc, &s.pairs[lane/2*s.weightLane(p.steps)], lane%2 == 1, &s.w[0], x, steps,
			p.step > 0, pending, folds, s.slotSize(), out, stride, s.ahead, s.pace)
	default:
		tile.add(acc, &s.w[0], x, steps, run.panels, run.width*j.steps(),
			p.step > 0, pending, folds, s.slotSize(), out, stride, s.ahead, s.pace)
	}
	s.ahead += uintptr(steps / 2 * run.panels * s.pace)
}

// direct reports whether the kernels write the last sums of a run straight to dst: the sums are
// the results, and no row or token is repeated.
func (s *panelScratch[F]) direct(run tokenRun, rows int) bool {
	sameType := unsafe.Sizeof(s.sums[0]) == unsafe.Sizeof(s.j.dst[0])
	return sameType && s.j.bias == nil && rows == s.k.rows && run.end() <= s.tokens
}

// finish writes the results of the runs that were not written directly.
func (s *panelScratch[F]) finish(r, rows int) {
	for _, run := range s.runs {
		if s.direct(run, rows) {
			continue
		}
		for token := run.first; token < min(run.end(), s.tokens); token++ {
			finish(s.j.dst[(s.first+token)*s.j.w.Rows+r:][:rows], s.sums[token*s.k.rows:], s.j.bias, r)
		}
	}
}
