package kernel

// portableRows computes the rows r … toR of the tokens t … toT in portable Go.
func (j *job) portableRows(s *scratch, r, toR, t, toT int) {
	cols := j.w.Cols
	s.rows = grow(s.rows, cols)
	for ; r < toR; r++ {
		row := j.w.Row(s.rows, r)
		if j.acc == Float64 {
			s.rowWide = grow(s.rowWide, cols)
			widenTo64(j.im, s.rowWide, row)
		}
		for i := range toT - t {
			out := j.dst[(t+i)*j.w.Rows+r:][:1]
			if j.acc == Float32 {
				sum := [1]float32{Dot32(s.x[i*cols:(i+1)*cols], row)}
				finish(out, sum[:], j.bias, r)
			} else {
				sum := [1]float64{dotWide(s.wide[i*cols:(i+1)*cols], s.rowWide)}
				finish(out, sum[:], j.bias, r)
			}
		}
	}
}

// dotWide is Dot64 of widened numbers. It makes one pass per half of the lanes, so that the
// compiler keeps the partial sums in registers.
func dotWide(x, w []float64) float64 {
	var lane [lanes]float64
	whole := len(x) - len(x)%lanes
	halfLanes((*[8]float64)(lane[:8]), x[:whole], w[:whole])
	if whole > 0 {
		halfLanes((*[8]float64)(lane[8:]), x[8:whole], w[8:whole])
	}
	for k := whole; k < len(x); k++ {
		lane[k-whole] += float64(x[k] * w[k])
	}
	return tree(&lane)
}

// halfLanes sets lane[i] to the sum of x[k+i]*w[k+i] for k = 0, 16, 32, ….
func halfLanes(lane *[8]float64, x, w []float64) {
	var s0, s1, s2, s3, s4, s5, s6, s7 float64
	for len(x) >= 8 && len(w) >= 8 {
		s0 += float64(x[0] * w[0])
		s1 += float64(x[1] * w[1])
		s2 += float64(x[2] * w[2])
		s3 += float64(x[3] * w[3])
		s4 += float64(x[4] * w[4])
		s5 += float64(x[5] * w[5])
		s6 += float64(x[6] * w[6])
		s7 += float64(x[7] * w[7])
		if len(x) < lanes || len(w) < lanes {
			break
		}
		x, w = x[lanes:], w[lanes:]
	}
	*lane = [8]float64{s0, s1, s2, s3, s4, s5, s6, s7}
}
