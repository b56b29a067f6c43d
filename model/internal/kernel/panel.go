package kernel

import (
	"math/bits"
	"unsafe"
)

// A panel holds rows of numbers, widened and transposed, in the order in which a tile
// reads them: one lane of the dot product after the other, and the number that is next
// in a lane, k = 16·step + lane, of all its rows side by side:
//
//	panel[lane·distance + step·rows + row]
//
// So each lane is a matrix product of its own, whose operands pass from the first-level
// cache through the tile's registers. The lanes take turns so that each one's sums are
// folded with others while they are in registers. Rows of weights make panels that fill
// two registers; tokens make panels as wide as a tile or less.

// panelKernels work on panels.
type panelKernels[F float32 | float64] struct {
	group int // rows that are packed at once, at most 16
	rows  int // of weights in a panel, a multiple of group
	width int // of the widest tile, in tokens

	// pack arranges a group of rows as they are stored, or in pairs if that is BF16:
	// widening takes less than storing twice the bytes and is left to addPairs.
	pack      [BF16]pack[F]
	packPairs pack[uint32]
	// add and addPairs are indexed by the width of the panels less 1.
	add      [maxPanelWidth]addPanels[F]
	addPairs [maxPanelWidth]addPairs[F]
}

// pack arranges a group of rows: for s < steps, an even number, l < 16 and i < group,
// dst[l*lane + s*stride + i] = src[i][16*s + l]; pairs make 8 lanes. The steps come one
// after the other.
type pack[D any] func(dst *D, src *[maxGroup]*byte, steps, stride, lane int)

// addPanels adds the products of some steps of one lane of a panel of weights and panels
// of tokens, next apart, to acc, [token][row], or to 0 unless again. Then it adds pending
// sums, the last of which is given and the ones before lane apart, folds of them, and
// writes the sums to out, those of two tokens stride apart. Meanwhile it fills the
// second-level cache with the memory from ahead on, pace bytes every 2 steps.
type addPanels[F any] func(acc, w, x *F, steps, panels, next int, again bool, pending *F, folds, lane int, out *F, stride int, ahead uintptr, pace int)

// addPairs is addPanels with one panel of tokens; it sets w to one lane of the pairs,
// the even or the odd one.
type addPairs[F any] func(acc *F, pairs *uint32, odd bool, w, x *F, steps int, again bool, pending *F, folds, lane int, out *F, stride int, ahead uintptr, pace int)

const (
	maxGroup      = 16
	maxPanelWidth = 12

	// panelSteps is how many steps of a lane a tile goes over at once: weights and
	// tokens of so many lie in the first-level cache together, and the weights of all
	// lanes in the second-level one.
	panelSteps = 128
	// Tokens that are packed at once; the weights are packed again for every so many.
	// They stream through the tiles from the third-level cache.
	leastPanelTokens = 96
	mostPanelTokens  = 516
	tokenBytes       = 5 << 20
	// waitingSums is how many sums wait at most for those that they are folded with.
	waitingSums = 4
	// laneGap sets lanes apart, whose distance would be a power of two, and takes what
	// a group of rows spills over a narrower panel.
	laneGap = 16
)

// panelTokens is the number of tokens from which on packing pays.
var panelTokens = [...]int{Float64: 5, Float32: 8}

// foldOrder is the order of lanes in which each sum of the tree in Dot32 follows what it
// sums: after lane i of it, as many sums are due as i has ones at its end.
var foldOrder = [Lanes]int{0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15}

// panelScratch is what one worker needs of panels.
type panelScratch[F float32 | float64] struct {
	// What is being computed: tokens from t on.
	j      *job
	k      *panelKernels[F]
	tokens tokenPanels
	t      int

	x    []F    // panels of the tokens
	of   uint64 // of this job
	from int    // the first of them

	w     []F       // a panel of weights, or one lane of it
	pairs []uint32  // a panel of weights of BF16
	rows  []float32 // of one panel of weights, decoded if need be
	// Sums, slots of [token][row]: those that wait, then those of all lanes if a panel
	// of weights comes in several parts.
	sums []F

	ahead uintptr // memory to ask for
	pace  int     // bytes of it in 2 steps

	src  [maxGroup]*byte // used by arrange
	tail [maxGroup][2 * Lanes * 4]byte
}

// has says whether there are any kernels.
func (k *panelKernels[F]) has() bool { return k.rows > 0 }

// panelRows is how many rows of weights a panel has.
func (im *implementation) panelRows(acc Accumulator) int {
	if acc == Float32 {
		return im.panels32.rows
	}
	return im.panels64.rows
}

// tokenPanels is a cut of tokens into panels that are as even as can be.
type tokenPanels struct {
	tokens, panels int
	width, wider   int // tokens of a panel; so many of the first have one more
}

func (k *panelKernels[F]) cut(tokens int) tokenPanels {
	panels := (tokens + k.width - 1) / k.width
	return tokenPanels{tokens, panels, tokens / panels, tokens % panels}
}

// begin returns the first token of panel p.
func (c tokenPanels) begin(p int) int { return p*c.width + min(p, c.wider) }

// even returns the panel after p that is not as wide any more.
func (c tokenPanels) even(p int) int {
	if p < c.wider {
		return c.wider
	}
	return c.panels
}

// panelled computes the rows r … toR of the tokens t … toT on panels.
func panelled[F float32 | float64](j *job, k *panelKernels[F], s *panelScratch[F], r, toR, t, toT int) {
	s.j, s.k, s.tokens, s.t = j, k, k.cut(toT-t), t
	s.packTokens()
	slots := waitingSums
	if j.steps() > panelSteps {
		slots += Lanes
	}
	s.sums = grow(s.sums, slots*s.slotSize())
	for ; r < toR; r += k.rows {
		rows := min(k.rows, toR-r)
		if next := r + rows; next < toR {
			s.look(next)
		} else {
			s.look(next + (j.workers-1)*j.rowBlock) // likely to be this worker's next
		}
		s.decode(r, rows)
		for step := 0; step < j.steps(); step += panelSteps {
			steps := min(panelSteps, j.steps()-step)
			s.packWeights(r, rows, step, steps)
			s.multiply(r, rows, step, steps)
		}
		s.finish(r, rows)
	}
	s.j, s.k = nil, nil
}

// steps is how many numbers the longest lane has, and one more if that is odd: packing
// takes two at a time.
func (j *job) steps() int { return (j.w.Cols + 2*Lanes - 1) / (2 * Lanes) * 2 }

// packed returns the format in which rows are packed, that of memory if possible.
func (j *job) packed() Format {
	if j.w.raw() {
		return j.w.format()
	}
	return F32
}

// slotSize is how many numbers are between two slots of sums, and slot is the place of a
// token in one.
func (s *panelScratch[F]) slotSize() int        { return s.tokens.tokens*s.k.rows + laneGap }
func (s *panelScratch[F]) slot(i, token int) *F { return &s.sums[i*s.slotSize()+token*s.k.rows] }

// laneSize is how many numbers, or pairs, are between two lanes of a panel of weights.
func (s *panelScratch[F]) laneSize(steps int) int { return steps*s.k.rows + laneGap }

// distance is how far apart the lanes of tokens are.
func (s *panelScratch[F]) distance() int { return s.j.steps()*s.tokens.tokens + laneGap }

// look sets out to ask for the panel of weights at row r while another is multiplied.
func (s *panelScratch[F]) look(r int) {
	s.ahead, s.pace = uintptr(unsafe.Pointer(&s.x[0])), 0
	if n := min(s.k.rows, s.j.w.Rows-r); n > 0 {
		turns := Lanes * s.tokens.panels * s.j.steps() / 2
		s.ahead, s.pace = uintptr(s.j.w.start(r)), n*s.j.w.rowBytes()/turns+1
	}
}

// multiply adds the products of the steps step … step+steps of a panel of weights with
// the tokens. At the last steps the sums of lanes are folded, too.
func (s *panelScratch[F]) multiply(r, rows, step, steps int) {
	j, k := s.j, s.k
	last, pairs := step+steps == j.steps(), j.packed() == BF16
	for i, lane := range foldOrder {
		n := min(steps, (j.w.Cols-lane+Lanes-1)/Lanes-step)
		waiting, folds := bits.OnesCount(uint(i)), 0
		if last {
			folds = bits.TrailingZeros(uint(i + 1))
		}
		w := s.w
		if !pairs {
			w = w[lane*s.laneSize(steps):]
		}
		for p := 0; p < s.tokens.panels; {
			from, next := s.tokens.begin(p), s.tokens.even(p)
			width := s.tokens.begin(p+1) - from
			x := &s.x[lane*s.distance()+from*j.steps()+step*width]
			out, stride := s.slot(waiting-folds, from), k.rows
			acc := out
			if j.steps() > panelSteps {
				acc = s.slot(waitingSums+i, from)
			}
			switch {
			case !last:
				out = acc
			case i == Lanes-1 && s.direct(rows):
				out, stride = (*F)(unsafe.Pointer(&j.dst[(s.t+from)*j.w.Rows+r])), j.w.Rows
			}
			pending := s.slot(max(waiting-1, 0), from)
			if pairs && p == 0 {
				next = 1
				k.addPairs[width-1](acc, &s.pairs[lane/2*s.laneSize(steps)], lane%2 == 1, &w[0], x, n,
					step > 0, pending, folds, s.slotSize(), out, stride, s.ahead, s.pace)
			} else {
				k.add[width-1](acc, &w[0], x, n, next-p, width*j.steps(),
					step > 0, pending, folds, s.slotSize(), out, stride, s.ahead, s.pace)
			}
			s.ahead += uintptr(n / 2 * (next - p) * s.pace)
			p = next
		}
	}
}

// direct says whether the sums of a panel with so many rows are what is to be written.
func (s *panelScratch[F]) direct(rows int) bool {
	return unsafe.Sizeof(s.sums[0]) == unsafe.Sizeof(s.j.dst[0]) && s.j.bias == nil && rows == s.k.rows
}

// finish writes the results, unless that was done.
func (s *panelScratch[F]) finish(r, rows int) {
	if s.direct(rows) {
		return
	}
	for i := range s.tokens.tokens {
		finish(s.j.dst[(s.t+i)*s.j.w.Rows+r:][:rows], s.sums[i*s.k.rows:], s.j.bias, r)
	}
}

// packTokens sets s.x to panels of the tokens, unless the last item did so.
func (s *panelScratch[F]) packTokens() {
	if s.of == s.j.serial && s.from == s.t {
		return
	}
	s.of, s.from = s.j.serial, s.t
	s.x = grow(s.x, Lanes*s.distance())
	cols, steps := s.j.w.Cols, s.j.steps()
	for p := range s.tokens.panels {
		from, to := s.tokens.begin(p), s.tokens.begin(p+1)
		for i := range s.k.group {
			s.src[i] = (*byte)(unsafe.Pointer(&s.j.x[(s.t+min(from+i, to-1))*cols]))
		}
		arrange(s, s.k.pack[F32], s.x[from*steps:], F32, cols, to-from, s.distance())
	}
}

// decode decodes rows of weights, unless they are packed as they are stored.
func (s *panelScratch[F]) decode(r, rows int) {
	m := &s.j.w
	if m.raw() {
		return
	}
	s.rows = grow(s.rows, rows*m.Cols)
	for i := range rows {
		m.Row(s.rows[i*m.Cols:], r+i)
	}
}

// packWeights packs the steps step … step+steps of the rows from r on, which were
// decoded; the missing ones are the last again.
func (s *panelScratch[F]) packWeights(r, rows, step, steps int) {
	j, k, format := s.j, s.k, s.j.packed()
	lane, first := s.laneSize(steps), step*Lanes
	n := min(steps*Lanes, j.w.Cols-first)
	if format == BF16 {
		s.w, s.pairs = grow(s.w, lane), grow(s.pairs, Lanes/2*lane)
	} else {
		s.w = grow(s.w, Lanes*lane)
	}
	for g := 0; g < k.rows; g += k.group {
		for i := range k.group {
			row := min(g+i, rows-1)
			if j.w.raw() {
				s.src[i] = (*byte)(unsafe.Add(j.w.start(r+row), first*format.Size()))
			} else {
				s.src[i] = (*byte)(unsafe.Pointer(&s.rows[row*j.w.Cols+first]))
			}
		}
		if format == BF16 {
			arrange(s, k.packPairs, s.pairs[g:], format, n, k.rows, lane)
		} else {
			arrange(s, k.pack[format], s.w[g:], format, n, k.rows, lane)
		}
	}
}

// arrange packs n numbers of each row of s.src, which it clears: it is the caller's
// memory.
func arrange[F float32 | float64, D any](s *panelScratch[F], kernel pack[D], dst []D, format Format, n, stride, lane int) {
	src, size := &s.src, format.Size()
	whole := n / (2 * Lanes) * 2
	kernel(&dst[0], src, whole, stride, lane)
	if left := (n - whole*Lanes) * size; left > 0 {
		for g := range s.k.group {
			rest := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(src[g]), whole*Lanes*size)), left)
			copy(s.tail[g][:], rest)
			src[g] = &s.tail[g][0]
		}
		kernel(&dst[whole*stride], src, 2, stride, lane)
	}
	clear(src[:])
}
