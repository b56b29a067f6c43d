package kernel

import "unsafe"

// A panel holds rows of numbers, widened and transposed, in the order in which a tile
// reads them: one lane of the dot product after the other, and the number that is next
// in a lane, k = 16·step + lane, of all its rows side by side:
//
//	panel[lane·distance + step·rows + row]
//
// So each lane is a matrix product of its own, whose operands pass from the first-level
// cache through the tile's registers, and the lanes are folded at the end. Rows of
// weights make panels that fill two registers; tokens make panels as wide as a tile or
// less.

// panelKernels work on panels.
type panelKernels[F float32 | float64] struct {
	group int // rows that are packed at once, at most 16
	rows  int // of weights in a panel, a multiple of group
	width int // of the widest tile, in tokens

	// pack widens the rows of a group: for s < steps, l < 16 and i < group,
	// dst[l*lane + s*stride + i] = src[i][16*s + l]. The steps come one after the other.
	pack [F8E4M3]func(dst *F, src *[maxGroup]*byte, steps, stride, lane int)
	// add, indexed by tokens-1, adds steps of one lane of a panel of weights and one of
	// tokens to start, giving acc, both [token][row].
	add [maxPanelWidth]func(acc, start, w, x *F, steps int)
	// fold sums the lanes, lane apart, of the accumulators [token][row]; the sums of two
	// tokens are stride apart and may take the place of those of the first lane.
	fold func(sum, acc *F, tokens, lane, stride int)
}

const (
	maxGroup      = 16
	maxPanelWidth = 12
	maxPanelRows  = 32

	// panelSteps is how many steps of a lane a tile goes over at once: weights and
	// tokens of so many lie in the first-level cache together, and the weights of all
	// lanes in the second-level one.
	panelSteps = 128
	// panelTokens is the number of tokens from which on packing pays.
	panelTokens = 16
	// Tokens that are packed at once: their accumulators and a panel of weights fit the
	// second-level cache, and the weights are packed again for every so many.
	leastPanelTokens = 96
	mostPanelTokens  = 192
	tokenBytes       = 2 << 20
	// laneGap sets lanes apart, whose distance would be a power of two, and takes what
	// a group of rows spills over a narrower panel.
	laneGap = 16
)

// panelScratch is what one worker needs of panels.
type panelScratch[F float32 | float64] struct {
	w, x []F
	of   uint64 // the job whose tokens x holds
	from int    // and the first of them

	acc  []F // of one panel of weights, [lane][token][row]
	zero [maxPanelWidth * maxPanelRows]F
	src  [maxGroup]*byte // used by pack
	tail [maxGroup][Lanes]float32
	rows []float32 // of one panel of weights, decoded if need be
}

// has says whether there are any kernels.
func (k *panelKernels[F]) has() bool { return k.fold != nil }

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

// panelled computes the rows r … toR of the tokens t … toT on panels.
func panelled[F float32 | float64](j *job, k *panelKernels[F], s *panelScratch[F], r, toR, t, toT int) {
	tokens := k.cut(toT - t)
	s.acc = grow(s.acc, Lanes*k.accumulators(tokens))
	s.w = grow(s.w, Lanes*(min(panelSteps, j.steps())*k.rows+laneGap))
	s.packTokens(j, k, tokens, t)
	for ; r < toR; r += k.rows {
		rows := min(k.rows, toR-r)
		for step := 0; step < j.steps(); step += panelSteps {
			steps := min(panelSteps, j.steps()-step)
			if step == 0 {
				s.decode(&j.w, r, rows)
			}
			for g := 0; g < k.rows; g += k.group {
				first := min(g, rows-1)
				s.pack(k, &j.w, r, first, rows-first, s.w[g:], step, steps, k.rows, steps*k.rows+laneGap)
			}
			s.multiply(j, k, tokens, step, steps)
		}
		s.finish(j, k, tokens, t, r, rows)
	}
}

// steps is how many numbers the longest lane has.
func (j *job) steps() int { return (j.w.Cols + Lanes - 1) / Lanes }

// accumulators is how many numbers are between two lanes of a panel of weights times
// all tokens.
func (k *panelKernels[F]) accumulators(tokens tokenPanels) int { return tokens.tokens*k.rows + laneGap }

// multiply adds the products of the steps step … step+steps of a panel of weights with
// all tokens.
func (s *panelScratch[F]) multiply(j *job, k *panelKernels[F], tokens tokenPanels, step, steps int) {
	for lane := range Lanes {
		n := min(steps, (j.w.Cols-lane+Lanes-1)/Lanes-step)
		w, x := s.w[lane*(steps*k.rows+laneGap):], s.x[lane*j.distance(tokens):]
		for p := range tokens.panels {
			from, to := tokens.begin(p), tokens.begin(p+1)
			acc := &s.acc[lane*k.accumulators(tokens)+from*k.rows]
			start := acc
			if step == 0 {
				start = &s.zero[0]
			}
			k.add[to-from-1](acc, start, &w[0], &x[from*j.steps()+step*(to-from)], n)
		}
	}
}

// finish folds the lanes and writes the results: at once, if they are all there is to
// it.
func (s *panelScratch[F]) finish(j *job, k *panelKernels[F], tokens tokenPanels, t, r, rows int) {
	acc, lane := &s.acc[0], k.accumulators(tokens)
	if unsafe.Sizeof(*acc) == unsafe.Sizeof(j.dst[0]) && j.bias == nil && rows == k.rows {
		k.fold((*F)(unsafe.Pointer(&j.dst[t*j.w.Rows+r])), acc, tokens.tokens, lane, j.w.Rows)
		return
	}
	k.fold(acc, acc, tokens.tokens, lane, k.rows)
	for i := range tokens.tokens {
		finish(j.dst[(t+i)*j.w.Rows+r:][:rows], s.acc[i*k.rows:], j.bias, r)
	}
}

// distance is how far apart the lanes of tokens are.
func (j *job) distance(tokens tokenPanels) int { return j.steps()*tokens.tokens + laneGap }

// packTokens sets s.x to panels of the tokens from t on, unless the last item did so.
func (s *panelScratch[F]) packTokens(j *job, k *panelKernels[F], tokens tokenPanels, t int) {
	if s.of == j.serial && s.from == t {
		return
	}
	s.of, s.from = j.serial, t
	s.x = grow(s.x, Lanes*j.distance(tokens))
	x := Matrix{Rows: j.tokens, Cols: j.w.Cols, Values: j.x}
	for p := range tokens.panels {
		from, to := tokens.begin(p), tokens.begin(p+1)
		s.pack(k, &x, t+from, 0, to-from, s.x[from*j.steps():], 0, j.steps(), to-from, j.distance(tokens))
	}
}

// decode decodes the rows r … r+rows of m, unless they are packed as they are stored.
func (s *panelScratch[F]) decode(m *Matrix, r, rows int) {
	if m.Data == nil || m.raw() {
		return
	}
	s.rows = grow(s.rows, rows*m.Cols)
	for i := range rows {
		m.Row(s.rows[i*m.Cols:], r+i)
	}
}

// row returns where row r+i of m is, whose rows from r on were decoded, and its format.
func (s *panelScratch[F]) row(m *Matrix, r, i int) (unsafe.Pointer, Format) {
	switch {
	case m.Data == nil:
		return m.start(r + i), F32
	case m.raw():
		return m.start(r + i), m.Format
	}
	return unsafe.Pointer(&s.rows[i*m.Cols]), F32
}

// pack packs the steps step … step+steps of a group of the rows r+i, r+i+1, … of m, of
// which there are n; the missing ones are the last again.
func (s *panelScratch[F]) pack(k *panelKernels[F], m *Matrix, r, i, n int, dst []F, step, steps, stride, lane int) {
	src := &s.src
	defer clear(src[:]) // it is the caller's memory
	var format Format
	first, last := step*Lanes, min((step+steps)*Lanes, m.Cols)
	for g := range k.group {
		var row unsafe.Pointer
		row, format = s.row(m, r, i+min(g, n-1))
		src[g] = (*byte)(unsafe.Add(row, first*format.Size()))
	}
	whole := (last - first) / Lanes
	k.pack[format](&dst[0], src, whole, stride, lane)
	left := last - first - whole*Lanes
	if left == 0 {
		return
	}
	for g := range k.group {
		rest := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(src[g]), whole*Lanes*format.Size())), left*format.Size())
		Widen(s.tail[g][:left], rest, format)
		src[g] = (*byte)(unsafe.Pointer(&s.tail[g]))
	}
	k.pack[F32](&dst[whole*stride], src, 1, stride, lane)
}
