package kernel

// transposeRows is the number of rows that are transposed at once: their numbers fill a line of
// the cache, so that each line of the result is written once.
const transposeRows = 16

// Transposed sets dst to the columns from … to-1 of w, decoded:
// dst[c-from, r] = w[r, c], of shape [to-from, w.Rows]. With scales, from is a multiple of
// BlockCols; in a block format, the columns are whole blocks. workers is the largest number of
// goroutines, 0 meaning GOMAXPROCS. Transposed panics if lengths do not fit.
func Transposed(dst []float32, w Matrix, from, to, workers int) {
	w.check()
	n := to - from
	if len(dst) != n*w.Rows {
		panic("kernel: Transposed: lengths do not fit")
	}
	Parallel(ceilDiv(w.Rows, transposeRows), workers, func(i int) {
		s := scratches.Get().(*scratch)
		defer scratches.Put(s)
		s.rows = grow(s.rows, transposeRows*n)
		first := i * transposeRows
		var rows [transposeRows][]float32
		count := min(transposeRows, w.Rows-first)
		for r := range count {
			rows[r] = w.part(s.rows[r*n:], first+r, from, to)
		}
		for c := range n {
			line := dst[c*w.Rows+first : c*w.Rows+first+count]
			for r := range line {
				line[r] = rows[r][c]
			}
		}
	})
}
