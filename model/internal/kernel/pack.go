package kernel

import "unsafe"

// packTokens sets x to the panels of the block of tokens, unless it holds them already.
func (s *panelScratch[F]) packTokens() {
	if s.packedFor == s.j.serial && s.packedFrom == s.first {
		return
	}
	s.packedFor, s.packedFrom = s.j.serial, s.first
	s.x = grow(s.x, lanes*s.tokenLane())
	cols := s.j.w.Cols
	for _, run := range s.runs {
		for at := run.first; at < run.end(); at += run.width {
			for i := range s.k.group {
				token := s.first + min(at+min(i, run.width-1), s.tokens-1)
				s.src[i] = (*byte)(unsafe.Pointer(&s.j.x[token*cols]))
			}
			arrange(s, s.k.pack, s.x[at*s.j.steps():], F32, cols, run.width, s.tokenLane())
		}
	}
}

// packWeights packs a part of the weights. The last row is repeated where rows are missing.
func (s *panelScratch[F]) packWeights(p part) {
	m, first, lane := &s.j.w, p.step*lanes, s.weightLane(p.steps)
	format, n := m.packedFormat(), min(p.steps*lanes, m.Cols-first)
	if format == BF16 {
		s.w, s.pairs = grow(s.w, lane), grow(s.pairs, lanes/2*lane)
	} else {
		s.w = grow(s.w, lanes*lane)
	}
	for at := 0; at < s.k.rows; at += s.k.group {
		for i := range s.k.group {
			row := min(at+i, p.rows-1)
			if m.raw() {
				s.src[i] = (*byte)(unsafe.Add(m.start(p.r+row), first*m.format().Size()))
			} else {
				s.src[i] = (*byte)(unsafe.Pointer(&s.rows[row*m.Cols+first]))
			}
		}
		if format == BF16 {
			arrange(s, s.k.packPairs, s.pairs[at:], format, n, s.k.rows, lane)
		} else {
			arrange(s, s.k.pack, s.w[at:], format, n, s.k.rows, lane)
		}
	}
}

// arrange runs a pack kernel on n numbers of each row of s.src. The kernel takes pairs of
// steps; arrange copies the ends of rows first, so that the kernel reads nothing behind them.
// It clears s.src, which points to the caller's memory.
func arrange[F float32 | float64, D any](
	s *panelScratch[F], kernel packKernel[D], dst []D, format Format, n, stride, lane int,
) {
	src, size := &s.src, format.Size()
	steps := n / (2 * lanes) * 2
	kernel(&dst[0], src, steps, stride, lane)
	if left := (n - steps*lanes) * size; left > 0 {
		for i := range s.k.group {
			end := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(src[i]), steps*lanes*size)), left)
			copy(s.tail[i][:], end)
			src[i] = &s.tail[i][0]
		}
		kernel(&dst[steps*stride], src, 2, stride, lane)
	}
	clear(src[:])
}
