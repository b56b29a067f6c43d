package kernel

// MatMul computes dst = x·wᵀ + bias: dst[t, r] = dot(x[t], w[r]) + bias[r], with x
// of shape [tokens, w.Cols] and dst of shape [tokens, w.Rows], both row-major. bias, of
// w.Rows numbers, may be nil. acc selects Dot64 or Dot32; the bias is added in the same
// precision before the one rounding to float32. workers is the largest number of goroutines,
// 0 meaning GOMAXPROCS; it does not change the result. dst does not
// overlap the operands.
func MatMul(dst, x []float32, w Matrix, bias []float32, acc Accumulator, workers int) {
	j := jobs.Get().(*job)
	defer jobs.Put(j)
	j.prepare(dst, x, w, bias, acc, workers)
	j.run()
	*j = job{} // the pool keeps none of the caller's memory
}

// run computes all items.
func (j *job) run() {
	if j.items() == 1 || j.workers == 1 {
		for i := range j.items() {
			j.item(i)
		}
	} else {
		Parallel(j.items(), j.workers, j.item)
	}
}

// item computes one block of dst.
func (j *job) item(i int) {
	t, r := i/j.rowBlocks*j.tokenBlock, i%j.rowBlocks*j.rowBlock
	toT, toR := min(t+j.tokenBlock, j.tokens), min(r+j.rowBlock, j.w.Rows)
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	switch {
	case j.panels && j.acc == Float32:
		panelled(j, &j.im.panels32, &s.panels32, r, toR, t, toT)
	case j.panels:
		panelled(j, &j.im.panels64, &s.panels64, r, toR, t, toT)
	default:
		s.setTokens(j, t, toT)
		if j.im.hasTiles() {
			j.tiled(s, r, toR, t, toT)
		} else {
			j.portableRows(s, r, toR, t, toT)
		}
		s.x = nil
	}
}
