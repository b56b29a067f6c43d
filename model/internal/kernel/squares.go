package kernel

// squareAll sets dst to the squares of src, and returns it. dst may be src.
func squareAll(dst, src []float32) []float32 {
	dst, done := dst[:len(src)], 0
	if im := current(); im.square != nil {
		done = inChunks(len(src), func(i, n int) { im.square(&dst[i], &src[i], n) })
	}
	for i, v := range src[done:] {
		dst[done+i] = v * v
	}
	return dst
}

// addScaled adds factor·src, rounded before it is added, to dst, with the kernels of im.
func addScaled(im *implementation, dst, src []float32, factor float32) {
	dst, done := dst[:len(src)], 0
	if im.addMultiple != nil {
		done = inChunks(len(src), func(i, n int) { im.addMultiple(&dst[i], &src[i], n, factor) })
	}
	for i, v := range src[done:] {
		dst[done+i] += float32(factor * v)
	}
}

// columnBlock is the number of columns whose sums are made at once: the sums of a few tokens stay
// in the second-level cache.
const columnBlock = 1024

// Columns computes products = a·w and squares = b·(w∘w), for a and b of shape [tokens,
// w.Rows] and products and squares [tokens, w.Cols], in float32:
//
//	for r := range w.Rows {
//		products[t, c] += float32(a[t, r] * w[r, c])
//		squares[t, c] += float32(b[t, r] * float32(w[r, c] * w[r, c]))
//	}
//
// from +0. workers is the largest number of goroutines, 0 meaning GOMAXPROCS; it does not
// change the result. Columns panics if lengths do not fit.
func Columns(products, a, squares, b []float32, w Matrix, workers int) {
	w.check()
	if w.Rows == 0 || len(a)%w.Rows != 0 || len(b) != len(a) ||
		len(products) != len(a)/w.Rows*w.Cols || len(squares) != len(products) {
		panic("kernel: Columns: lengths do not fit")
	}
	block := roundUp(columnBlock, max(1, w.BlockCols))
	clear(products)
	clear(squares)
	im := current()
	Parallel(ceilDiv(w.Cols, block), workers, func(i int) {
		s := scratches.Get().(*scratch)
		defer scratches.Put(s)
		from, to := i*block, min((i+1)*block, w.Cols)
		n := to - from
		s.rows = grow(s.rows, 2*n)
		for r := range w.Rows {
			part := w.part(s.rows, r, from, to)
			squared := squareAll(s.rows[n:2*n], part)
			for t := range len(a) / w.Rows {
				at, x := t*w.Cols+from, t*w.Rows+r
				addScaled(im, products[at:at+n], part, a[x])
				addScaled(im, squares[at:at+n], squared, b[x])
			}
		}
	})
}
