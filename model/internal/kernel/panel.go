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

const (
	// panelSteps is the number of steps of a lane that are multiplied at once. The weights and
	// a panel of tokens of panelSteps steps share the first-level cache; the weights of all
	// lanes fit the second-level cache.
	panelSteps = 128

	// waitingSums is the largest number of partial sums that wait to be added: one on each
	// level of the tree.
	waitingSums = 4
)

// foldOrder is the order in which the lanes are multiplied: a walk through the tree of Dot32
// that keeps few sums waiting. The lane at place i takes as many waiting sums, the latest
// first, as i has ones at its end in binary: lane 8 takes the sum of lane 0; lane 12 the sum
// of lane 4, then the sum of lanes 0 and 8.
var foldOrder = [lanes]int{0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15}

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
	if m := &s.j.w; !m.raw() {
		s.rows = grow(s.rows, rows*m.Cols)
		for i := range rows {
			m.Row(s.rows[i*m.Cols:], r+i)
		}
	}
	for step := 0; step < s.j.steps(); step += panelSteps {
		p := part{r, rows, step, min(panelSteps, s.j.steps()-step)}
		s.packWeights(p)
		for turn := range foldOrder {
			for i := range s.runs {
				s.multiply(p, turn, i)
			}
		}
	}
	for _, run := range s.runs {
		if s.direct(run, rows) {
			continue
		}
		for token := run.first; token < min(run.end(), s.tokens); token++ {
			finish(s.j.dst[(s.first+token)*s.j.w.Rows+r:][:rows], s.sums[token*s.k.rows:], s.j.bias, r)
		}
	}
}

// slotSize returns the length of a slot of sums.
func (s *panelScratch[F]) slotSize() int { return s.padded()*s.k.rows + laneGap }

// slot returns the address of a token of the block in slot i of the sums.
func (s *panelScratch[F]) slot(i, token int) *F { return &s.sums[i*s.slotSize()+token*s.k.rows] }

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
	case j.w.packedFormat() != BF16:
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
