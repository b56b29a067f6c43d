package kernel

import (
	"math"
	"unsafe"
)

// A panel holds m rows of numbers, widened, in the order in which a tile reads them.
// With rows of 16·B numbers (padded) and registers of l lanes it has the shape
//
//	[16/l][B][m][l]
//
// that is, group of lanes, block of K, row, lane. Rows of weights make panels of
// tileRows, tokens make panels as wide as the widest tile, the last one less.

// panelKernels work on panels; they need no padding other than to whole blocks.
type panelKernels[F float32 | float64] struct {
	lanes int // of a register
	width int // of the widest tile, in tokens

	// pack widens a row of n numbers, a multiple of 16, into its places:
	// dst[k%16/lanes*group + k/16*stride + k%lanes] = src[k].
	pack [F8E4M3]func(dst *F, src *byte, n, stride, group int)
	// add, indexed by tokens-1, adds n > 0 blocks of one group of lanes of a panel of
	// weights and one of tokens to start, giving acc, both [4*token+row][lane], and asks
	// the caches for the n lines from ahead on.
	add [maxPanelWidth]func(acc, start, w, x *F, n int, ahead uintptr)
	// fold sums the lanes of the accumulators [16/lanes][4*token+row][lane]. It reads
	// and writes as for an even number of tokens, and writes 16 numbers at least.
	fold func(sum, acc *F, tokens int)
}

// The shape of the work on panels.
const (
	maxPanelWidth = 6
	// panelBlocks is how many blocks of K a tile goes over at once: weights and tokens
	// of so many lie in the first-level cache together.
	panelBlocks = 32
	// panelBytes is how much of weights is packed at once: it stays in the second-level
	// cache while all tokens pass by.
	panelBytes = 256 << 10
	// tokenBytes is how much of tokens is packed at once.
	tokenBytes = 4 << 20
	// panelTokens is the number of tokens from which on packing pays.
	panelTokens = 12
)

// panelScratch is what one worker needs of panels.
type panelScratch[F float32 | float64] struct {
	w, x []F
	of   uint64 // the job whose tokens x holds
	from int    // and the first of them

	acc  []F // of each panel of weights, for one of tokens
	sum  []F // their lanes folded
	zero [maxPanelWidth * tileRows * Lanes]F
	tail [Lanes]float32
}

// has says whether there are any kernels.
func (k *panelKernels[F]) has() bool { return k.fold != nil }

// panelled computes the rows r … toR of the tokens t … toT on panels.
func panelled[F float32 | float64](j *job, k *panelKernels[F], s *panelScratch[F], row []float32, r, toR, t, toT int) {
	blocks := (j.w.Cols + Lanes - 1) / Lanes
	length := blocks * Lanes
	size := int(unsafe.Sizeof(F(0)))
	most := max(1, panelBytes/(tileRows*length*size)) // panels of weights at once
	s.w = grow(s.w, most*tileRows*length)
	s.acc = grow(s.acc, (most+1)*k.accumulators())
	s.sum = grow(s.sum, (most+1)*k.sums())
	packTokens(j, k, s, blocks, t, toT)
	for ; r < toR; r += most * tileRows {
		rows := min(most*tileRows, toR-r)
		panels := (rows + tileRows - 1) / tileRows
		for i := range panels * tileRows {
			k.packRow(s.w[i/tileRows*tileRows*length:], &j.w, r+min(i, rows-1), i%tileRows, tileRows, 0, row, &s.tail)
		}
		next := j.upcoming(r, rows, toR)
		for from := t; from < toT; from += k.width {
			width := min(k.width, toT-from)
			multiply(k, s, width, blocks, panels, (from-t)*length, &next)
			for i := range width {
				for p := range panels {
					row := p * tileRows
					out := j.dst[(from+i)*j.w.Rows+r+row:][:min(tileRows, rows-row)]
					finish(out, s.sum[p*k.sums()+tileRows*i:], j.bias, r+row)
				}
			}
		}
	}
}

// upcoming returns the rows that this worker is likely to pack after r … r+rows: those
// of the same item or, after its last, of the item that is next once the other workers
// have taken one each.
func (j *job) upcoming(r, rows, toR int) lines {
	from, to := r+rows, toR
	if from == toR {
		from += (j.workers - 1) * j.rowBlock
		to = min(from+j.rowBlock, j.w.Rows)
	}
	return j.w.lines(from, min(from+rows, to))
}

// accumulators is the number of lanes of one panel of weights times one of tokens.
func (k *panelKernels[F]) accumulators() int { return tileRows * k.width * Lanes }

// sums is how far apart the sums of two panels of weights are.
func (k *panelKernels[F]) sums() int { return tileRows * (k.width + 1) }

// multiply sets s.sum to the products of all panels of weights with the tokens at x.
func multiply[F float32 | float64](k *panelKernels[F], s *panelScratch[F], width, blocks, panels, x int, next *lines) {
	for b := 0; b < blocks; b += panelBlocks {
		n := min(panelBlocks, blocks-b)
		for g := range Lanes / k.lanes {
			at := (g*blocks + b) * k.lanes
			for p := range panels {
				acc := &s.acc[p*k.accumulators()+g*tileRows*width*k.lanes]
				start := acc
				if b == 0 {
					start = &s.zero[0]
				}
				k.add[width-1](acc, start, &s.w[(p*blocks*Lanes+at)*tileRows], &s.x[x+at*width], n, next.take(n))
			}
		}
	}
	for p := range panels {
		k.fold(&s.sum[p*k.sums()], &s.acc[p*k.accumulators()], width)
	}
}

// packTokens sets s.x to panels of the tokens t … toT, unless the last item did so.
// Padding is -0: its product with a padding weight, 0, is -0, and adding that changes no
// lane, not even one that holds -0.
func packTokens[F float32 | float64](j *job, k *panelKernels[F], s *panelScratch[F], blocks, t, toT int) {
	if s.of == j.serial && s.from == t {
		return
	}
	s.of, s.from = j.serial, t
	length := blocks * Lanes
	s.x = grow(s.x, (toT-t)*length)
	x := Matrix{Rows: j.tokens, Cols: j.w.Cols, Values: j.x}
	for i := range toT - t {
		first := i / k.width * k.width
		k.packRow(s.x[first*length:], &x, t+i, i-first, min(k.width, toT-t-first), float32(math.Copysign(0, -1)), nil, &s.tail)
	}
}

// packRow packs row r of m as row i of a panel of rows, filled up with pad. It decodes
// into row and tail.
func (k *panelKernels[F]) packRow(panel []F, m *Matrix, r, i, rows int, pad float32, row []float32, tail *[Lanes]float32) {
	src, format := m.stored(row, r)
	blocks, whole := (m.Cols+Lanes-1)/Lanes, m.Cols/Lanes*Lanes
	stride, group := rows*k.lanes, blocks*rows*k.lanes
	dst := panel[i*k.lanes:]
	if whole > 0 {
		k.pack[format](&dst[0], src, whole, stride, group)
	}
	if left := m.Cols - whole; left > 0 {
		rest := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(src), whole*format.Size())), left*format.Size())
		Widen(tail[:left], rest, format)
		fill(tail[left:], pad)
		k.pack[F32](&dst[whole/Lanes*stride], (*byte)(unsafe.Pointer(tail)), Lanes, stride, group)
	}
}

// lines is memory that will be read soon, asked for line by line.
type lines struct{ from, to uintptr }

// take returns where the next n lines begin. Once there are no more, it returns the
// last again.
func (l *lines) take(n int) uintptr {
	from := l.from
	if l.to-from > uintptr(n)*64 {
		l.from += uintptr(n) * 64
	}
	return from
}
