package kernel

import (
	"math/bits"
	"unsafe"
)

// Products of many tokens run on panels. A panel is a few rows, of weights or of
// tokens, widened and rearranged so that the numbers that meet in one instruction lie
// side by side. Number k of a row belongs to lane k mod 16 and is step k / 16 of that
// lane. A panel holds one lane after the other, in a lane one step after the other, and
// in a step the numbers of all its rows:
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
	// row stay together in one uint32, and so do their lanes. That writes half the bytes that
	// widened numbers take; an addPairs kernel widens them later.
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
// group wider than stride overwrites the steps that follow, which are written later.
type packKernel[D any] func(dst *D, src *[maxGroup]*byte, steps, stride, lane int)

// addKernel multiplies one lane of a panel of weights, w, with the same lane of panels
// of tokens, the first at x and each next numbers after the one before:
//
//	sum[token][row] = acc[token][row], or 0 unless again
//	sum[token][row] += x[s][token] * w[s][row],        s < steps, fused, in this order
//	sum[token][row] += (pending - f*lane)[token][row], f < folds
//	out[token*stride + row] = sum[token][row]
//
// acc and pending have the layout [token][row of the panel]. While it multiplies, the
// kernel prefetches into the second-level cache what lies from ahead on, pace bytes
// further every 2 steps.
type addKernel[F any] func(acc, w, x *F, steps, panels, next int, again bool, pending *F, folds, lane int, out *F, stride int, ahead uintptr, pace int)

// addPairsKernel is addKernel for a single panel of tokens. It takes one lane of the
// weights from pairs, the upper half of each if odd, and leaves it widened in w, for the
// calls of an addKernel that follow.
type addPairsKernel[F any] func(acc *F, pairs *uint32, odd bool, w, x *F, steps int, again bool, pending *F, folds, lane int, out *F, stride int, ahead uintptr, pace int)

const (
	// maxGroup is the largest group of a pack kernel.
	maxGroup = 16

	// panelSteps is how many steps of a lane are multiplied at once. The weights and a
	// panel of tokens of so many steps share the first-level cache, and the weights of
	// all lanes fit the second-level cache.
	panelSteps = 128

	// laneGap is the distance in numbers between the end of a lane and the next lane. It
	// keeps that of lanes from being a power of two, which would make them compete for
	// the same lines of the cache, and takes what the last step of a group that is wider
	// than its panel writes too much.
	laneGap = maxGroup

	// waitingSums is how many partial sums wait at most until they can be added: one on
	// each level of the tree.
	waitingSums = 4
)

// panelTokens is the number of tokens from which on packing takes less time than it
// saves: a full panel with float32 sums, half of one with float64 sums, where a multiply
// takes twice the time.
var panelTokens = [...]int{Float64: 6, Float32: 12}

// foldOrder is the order in which the lanes are multiplied: a walk through the tree of
// Dot32 in which a sum follows closely on the one that it is added to, so that few have
// to wait. To the lane at place i as many waiting sums are added, the latest first, as i
// has ones at its end in binary: to lane 8 that of lane 0; to lane 12 that of lane 4,
// then that of lanes 0 and 8.
var foldOrder = [lanes]int{0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15}

// panelScratch is the memory of one worker for panels, and what it computes at present.
type panelScratch[F float32 | float64] struct {
	j *job
	k *panelKernels[F]

	// A block of tokens, from token first on, as panels.
	first, tokens int
	runs          []tokenRun
	x             []F    // its panels
	packedFor     uint64 // the serial of the job that x belongs to
	packedFrom    int    // and the first token in x

	// A panel of weights, or the part of its steps that is multiplied at once.
	w     []F       // all lanes, or if they come in pairs the present one
	pairs []uint32  // all lanes, in pairs
	rows  []float32 // the rows, decoded, where the kernels do not read their format

	// sums is slots of [token][row]: waitingSums for the sums that wait, and if the steps
	// are multiplied in several parts one for each lane.
	sums []F

	ahead uintptr // what to prefetch next
	pace  int     // bytes of it in 2 steps

	src  [maxGroup]*byte               // the rows that a pack kernel rearranges
	tail [maxGroup][2 * lanes * 4]byte // the ends of rows; no product takes what is behind them
}

// tokenRun is a row of panels of equal width, next to each other.
type tokenRun struct {
	first  int // token of the block
	width  int // tokens in each panel
	panels int
}

// end is the token after those of the run.
func (run tokenRun) end() int { return run.first + run.width*run.panels }

// available says whether there are any kernels.
func (k *panelKernels[F]) available() bool { return k.rows > 0 }

// widest is the tile for most tokens.
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

// cut appends to runs a cut of tokens into panels: the first panel by itself, the others
// of the widest kind, and for what is left the narrowest panel that holds it. In that
// one, the last token is repeated in the place of those that are missing.
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

// panelRows is how many rows of weights a panel has.
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
	if next == toR { // the next item of this worker is likely to begin so far on
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

// part is the steps step … step+steps of the rows r … r+rows, which make one panel.
type part struct{ r, rows, step, steps int }

// steps is the number of steps of the longest lane, rounded up to an even number: pack
// kernels take two at a time.
func (j *job) steps() int { return ceilDiv(j.w.Cols, 2*lanes) * 2 }

// slotSize is how many numbers a slot of sums takes.
func (s *panelScratch[F]) slotSize() int { return s.padded()*s.k.rows + laneGap }

// slot is the place of a token of the block in slot i of the sums.
func (s *panelScratch[F]) slot(i, token int) *F { return &s.sums[i*s.slotSize()+token*s.k.rows] }

// padded is how many tokens the panels of the block hold, repeated ones included.
func (s *panelScratch[F]) padded() int { return s.runs[len(s.runs)-1].end() }

// tokenLane is how many numbers of x a lane takes.
func (s *panelScratch[F]) tokenLane() int { return s.j.steps()*s.padded() + laneGap }

// weightLane is how many numbers, or pairs, of so many steps a lane of weights takes.
func (s *panelScratch[F]) weightLane(steps int) int { return steps*s.k.rows + laneGap }

// prefetch sets ahead and pace so that the panel of weights at row r is in the cache
// when the present one has been multiplied.
func (s *panelScratch[F]) prefetch(r int) {
	s.ahead, s.pace = uintptr(unsafe.Pointer(&s.x[0])), 0 // any memory there is
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

// multiply adds the products of one lane of a part of the weights, the one whose turn it
// is in foldOrder, and one run of the tokens. With the last part the lane's sums are
// complete, and those that wait for them are added.
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

// direct says whether the kernels write the last sums of a run straight to dst: they are
// results as they are, and none is of a repeated row or token.
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
