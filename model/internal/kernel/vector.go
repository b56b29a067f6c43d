package kernel

// Products of a matrix with one vector, as often as one likes: the matrix stays as it is stored, and is not turned.

// Times sets dst[r] = Dot32(x, row r of w), for x of w.Cols and dst of w.Rows numbers.
func Times(dst, x []float32, w Matrix) {
	w.check()
	dst, x = dst[:w.Rows], x[:w.Cols]
	dot := current().dotE4M3
	if dot == nil || !w.isE4M3() {
		MatMul(dst, x, w, nil, Float32, 1)
		return
	}
	for r := range dst {
		var lane [lanes]float32
		dot(&x[0], &lane[0], &w.Data[r*w.Cols], w.Cols, &w.scalesOf(r)[0], w.BlockCols)
		dst[r] = tree(&lane)
	}
}

// isE4M3 reports whether the kernels for rows of F8E4M3 can read the rows.
func (m *Matrix) isE4M3() bool {
	return m.Data != nil && m.Format == F8E4M3 && m.Scales != nil && !m.Round && m.Cols > 0 && m.Cols <= chunk &&
		m.Cols%lanes == 0 && m.BlockCols%lanes == 0
}

// scalesOf returns the scales from those of row r on.
func (m *Matrix) scalesOf(r int) []float32 {
	return m.Scales[r/m.BlockRows*ceilDiv(m.Cols, m.BlockCols):]
}

// TimesColumns sets dst[c] = Dot32(x, column c of w), for x of w.Rows and dst of w.Cols numbers. A row is added to the
// sums of its lane, of all columns.
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
	for r, factor := range x {
		sum := sums[r%lanes*w.Cols:][:w.Cols]
		if w.isE4M3() {
			im.addE4M3(&sum[0], &w.Data[r*w.Cols], w.Cols, &w.scalesOf(r)[0], w.BlockCols, factor)
		} else {
			addFused(im, sum, w.Row(row, r), factor)
		}
	}
	for n := lanes / 2; n > 0; n /= 2 { // the tree
		for i := range n {
			addScaled(im, sums[i*w.Cols:][:w.Cols], sums[(i+n)*w.Cols:][:w.Cols], 1)
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
