package kernel

import "unsafe"

// Products of few tokens run on tiles. A tile is a kernel that multiplies tileRows rows of
// weights, as they lie in memory, with a few tokens, and holds one sum per lane in registers.

// tileRows is the number of rows of weights that a tile multiplies.
const tileRows = 4

// maxWidth is the largest width of a tile, in tokens.
const maxWidth = 4

// tileKernel multiplies tileRows rows of weights with a fixed number of tokens, the
// tile's width:
//
//	sum[tileRows*i+j] = Dot32(x[i][:n], w[j][:n])
//
// or Dot64 of widened tokens if F is float64. The rest of sum is scratch. The weights have the
// format of the tile, at any alignment.
type tileKernel[F float32 | float64] func(w *[tileRows]*byte, x *[maxWidth]*F, n int, sum *[256]F)

// tiles holds the tiles for one format of weights. The tile of width n is at index n-1, nil for
// widths without a tile; float32 and float64 have the same widths.
type tiles struct {
	float32 [maxWidth]tileKernel[float32]
	float64 [maxWidth]tileKernel[float64]
}

// width returns the smallest width of a tile for n tokens, or the largest width if all are
// smaller than n.
func (t *tiles) width(n int) int {
	best := 1
	for width := 2; width <= maxWidth && best < n; width++ {
		if t.float32[width-1] != nil {
			best = width
		}
	}
	return best
}

// tileScratch is the memory of one worker for tiles with sums of type F.
type tileScratch[F float32 | float64] struct {
	x   [maxWidth]*F // the tokens of one tile
	sum [256]F
}

// tiled computes the rows r … toR of the tokens t … toT with tiles.
func (j *job) tiled(s *scratch, r, toR, t, toT int) {
	for ; r < toR; r += tileRows {
		rows := min(tileRows, toR-r)
		j.tileWeights(s, r, rows)
		for i := t; i < toT; {
			i += j.tile(s, r, rows, t, i, toT-i)
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

// tile multiplies rows of weights with the first of the tokens t … t+left and returns the
// number of those tokens. The block of tokens in s begins at token first.
func (j *job) tile(s *scratch, r, rows, first, t, left int) int {
	set, at := &j.im.tile[j.format], (t-first)*j.length
	width := set.width(left)
	n := min(width, left)
	if j.acc == Float32 {
		s.tile32.run(set.float32[width-1], &s.w, s.x[at:], width, n, j.length)
		s.tile32.finish(j, t, n, r, rows)
	} else {
		s.tile64.run(set.float64[width-1], &s.w, s.wide[at:], width, n, j.length)
		s.tile64.finish(j, t, n, r, rows)
	}
	return n
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
