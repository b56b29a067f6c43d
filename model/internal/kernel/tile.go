package kernel

import (
	"math"
	"unsafe"
)

// Products of few tokens run on tiles. A tile is a kernel that multiplies tileRows rows of
// weights, as they lie in memory, with a few tokens, and holds one sum per lane in registers.

// tiled computes the rows r … toR of the tokens t … toT, which are the block of s, with tiles.
func (j *job) tiled(s *scratch, r, toR, t, toT int) {
	set := &j.im.tile[j.format]
	for ; r < toR; r += tileRows {
		rows := min(tileRows, toR-r)
		j.tileWeights(s, r, rows)
		for i := t; i < toT; {
			at, width := (i-t)*j.length, set.width(toT-i)
			n := min(width, toT-i)
			if j.acc == Float32 {
				s.tile32.run(set.float32[width-1], &s.w, s.x[at:], width, n, j.length)
				s.tile32.finish(j, i, n, r, rows)
			} else {
				s.tile64.run(set.float64[width-1], &s.w, s.wide[at:], width, n, j.length)
				s.tile64.finish(j, i, n, r, rows)
			}
			i += n
		}
	}
	s.w, s.tile32.x = [tileRows]*byte{}, [maxWidth]*float32{} // the caller's memory
}

// tileWeights points s.w to the rows r … r+rows, decoded if the tiles do not read them as
// stored. The last row is repeated where rows are missing.
func (j *job) tileWeights(s *scratch, r, rows int) {
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

// run runs the kernel of a width on n tokens of a length. The last token is repeated where
// tokens are missing.
func (s *tileScratch[F]) run(kernel tileKernel[F], w *[tileRows]*byte, tokens []F, width, n, length int) {
	for i := range width {
		s.x[i] = &tokens[min(i, n-1)*length]
	}
	kernel(w, &s.x, length, &s.sum)
}

// finish writes the results of n tokens from t on and rows from r on.
func (s *tileScratch[F]) finish(j *job, t, n, r, rows int) {
	for i := range n {
		finish(j.dst[(t+i)*j.w.Rows+r:][:rows], s.sum[tileRows*i:], j.bias, r)
	}
}

// setTokens sets x or wide to the tokens t … toT, unless it holds them already. Tokens are
// padded with -0 to whole steps of lanes. The product of -0 with the padding of weights, 0, is
// -0, and adding -0 changes no sum, not even -0.
func (s *scratch) setTokens(j *job, t, toT int) {
	cols, length := j.w.Cols, j.length
	if j.acc == Float32 && cols == length {
		s.x = j.x[t*cols : toT*cols]
		return
	}
	n := (toT - t) * length
	if j.acc == Float32 {
		s.padded = grow(s.padded, n)
		s.x = s.padded
	} else {
		s.wide = grow(s.wide, n)
	}
	if s.blockSerial == j.serial && s.blockFirst == t {
		return
	}
	s.blockSerial, s.blockFirst = j.serial, t
	for i := range toT - t {
		src := j.x[(t+i)*cols:][:cols]
		if j.acc == Float32 {
			copy(s.x[i*length:], src)
			fill(s.x[i*length+cols:(i+1)*length], float32(math.Copysign(0, -1)))
		} else {
			widenTo64(j.im, s.wide[i*length:][:cols], src)
			fill(s.wide[i*length+cols:(i+1)*length], math.Copysign(0, -1))
		}
	}
}
