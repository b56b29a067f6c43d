package kernel

// Products of a matrix with one vector, as often as one likes: the matrix stays as it is stored, and is not turned.

// Times sets dst[r] = Dot32(x, row r of w), for x of w.Cols and dst of w.Rows numbers. Codes of F8E4M3 are numbers: a NaN
// may be taken for one.
func Times(dst, x []float32, w Matrix) {
	w.check()
	dst, x = dst[:w.Rows], x[:w.Cols]
	dot := current().dotE4M3
	if dot == nil || !w.isE4M3() {
		MatMul(dst, x, w, nil, Float32, 1)
		return
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	for r := 0; r < w.Rows; {
		n, apart := 4, 1
		if r+n > w.Rows {
			n, apart = 1, 0 // the same row four times
		}
		src := s.four.at(&w, r, apart)
		dot(&x[0], &s.four.sums[0][0], src, apart*w.Cols, w.Cols, &s.four.scales[0], w.BlockCols)
		for i := range n {
			dst[r+i] = tree(&s.four.sums[i])
		}
		r += n
	}
}

// at sets the scales to those of the rows r, r + apart, r + 2·apart and r + 3·apart, and returns the address of row r.
func (f *fourRows) at(w *Matrix, r, apart int) *byte {
	for i := range f.scales {
		f.scales[i] = &w.Scales[(r+i*apart)/w.BlockRows*ceilDiv(w.Cols, w.BlockCols)]
	}
	return &w.Data[r*w.Cols]
}

// isE4M3 reports whether the kernels for rows of F8E4M3 can read the rows.
func (m *Matrix) isE4M3() bool {
	is := m.Data != nil && m.Format == F8E4M3 && m.Scales != nil && !m.Round && m.Cols > 0 && m.Cols <= chunk &&
		m.Cols%lanes == 0 && m.BlockCols%lanes == 0
	for i := 0; is && i < len(m.Scales); i++ {
		is = -128 < m.Scales[i] && m.Scales[i] < 128
	}
	return is
}

// TimesColumns sets dst[c] = Dot32(x, column c of w), for x of w.Rows and dst of w.Cols numbers. A row is added to the
// sums of its lane, of all columns. Codes of F8E4M3 are numbers: a NaN may be taken for one.
func TimesColumns(dst, x []float32, w Matrix) {
	w.check()
	dst, x = dst[:w.Cols], x[:w.Rows]
	s, im := scratches.Get().(*scratch), current()
	defer scratches.Put(s)
	if im.addProducts == nil {
		timesTurned(dst, x, w)
		return
	}
	s.rows = grow(s.rows, (lanes+1)*w.Cols)
	sums, row := s.rows[:lanes*w.Cols], s.rows[lanes*w.Cols:]
	clear(sums)
	lane := func(r int) []float32 { return sums[r%lanes*w.Cols:][:w.Cols] }
	fours := 0 // rows that come in fours of one lane
	if im.addE4M3 != nil && w.isE4M3() {
		fours = w.Rows &^ (4*lanes - 1)
	}
	for i := range lanes {
		for r := i; r < fours; r += 4 * lanes {
			for k := range s.four.factors {
				s.four.factors[k] = x[r+k*lanes]
			}
			src := s.four.at(&w, r, lanes)
			im.addE4M3(&lane(i)[0], src, lanes*w.Cols, w.Cols, &s.four.scales[0], w.BlockCols, &s.four.factors[0])
		}
	}
	for r := fours; r < w.Rows; r++ {
		addFused(im, lane(r), w.Row(row, r), x[r])
	}
	for n := lanes / 2; n > 0; n /= 2 { // the tree
		for i := range n {
			addScaled(im, lane(i), lane(i+n), 1)
		}
	}
	copy(dst, sums)
}

// addFused adds factor·src to dst, fused, with the kernels of im.
func addFused(im *implementation, dst, src []float32, factor float32) {
	dst = dst[:len(src)]
	done := inChunks(len(src), func(i, n int) { im.addProducts(&dst[i], &src[i], n, factor) })
	for i, v := range src[done:] {
		dst[done+i] = fma32(factor, v, dst[done+i])
	}
}

// turnedColumns is how many columns are turned to rows at once: a multiple of the block length of every block format.
const turnedColumns = 256

// timesTurned is TimesColumns by way of Transposed.
func timesTurned(dst, x []float32, w Matrix) {
	width := turnedColumns
	if w.Scales != nil {
		width = roundUp(width, w.BlockCols)
	}
	room := make([]float32, min(width, w.Cols)*w.Rows)
	for from := 0; from < w.Cols; from += width {
		to := min(from+width, w.Cols)
		rows := room[:(to-from)*w.Rows]
		Transposed(rows, w, from, to, 1)
		MatMul(dst[from:to], x, Matrix{Rows: to - from, Cols: w.Rows, Values: rows}, nil, Float32, 1)
	}
}
