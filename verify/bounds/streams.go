package bounds

import (
	"math"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// affine returns g of row t of z, and the variances of its two exact operations. What z's scale is off by is not
// among them, as all elements share it.
func (a *Analysis) affine(z *Value, g *model.Affine, t int) (y, v []float64) {
	scale, deltas := float64(a.plain.Values(g.Scale)[g.Part]), a.deltas(g.Base)
	y, v = g.Of(z.Row(t)), make([]float64, z.Width())
	for i, zi := range z.Row(t) {
		product := exactly(float64(zi)*scale, z.Variance(t*z.Width()+i)*Sq(scale))
		v[i] = exactly(y[i], product+delta(deltas, g.From+i))
	}
	return y, v
}

// StreamGate implements model.Arithmetic, with p = sigmoid(a(z)) and a(z) = z·scale + base:
//
//	a:  v = v_z·scale² + z²·v_scale + v_base;  p:  v = (p·(1-p))²·v_a + (1.5p)²;  times·p + plus
func (a *Analysis) StreamGate(z *Value, g *model.Affine, times, plus float32) *Value {
	z = a.settle(z)
	y := a.computed(a.plain.StreamGate(z.wide(), g, times, plus), tensor.F32)
	scale := delta(a.deltas(g.Scale), g.Part)
	for t := range z.Rows() {
		_, v := a.affine(z, g, t)
		for i, zi := range z.Row(t) {
			gate := y.Row(t)[i]
			p := (float64(gate) - float64(plus)) / float64(times)
			own := float64(Sq(p*(1-p))*(v[i]+Sq(float64(zi))*scale)) + float64(2.25*Sq(p))
			y.Set(t*z.Width()+i, float64(gate), roughly(float64(gate), own*Sq(float64(times))))
		}
	}
	return y.inherit(z)
}

// Sinkhorn implements model.Arithmetic: see sinkhorn.
func (a *Analysis) Sinkhorn(z *Value, g *model.Affine, iters int, eps float32) *Value {
	z = a.settle(z)
	y := a.computed(a.plain.Sinkhorn(z.wide(), g, iters, eps), tensor.F32)
	n, scale := y.Width(), math.Sqrt(delta(a.deltas(g.Scale), g.Part))
	a.plain.Each(z.Rows(), 16*iters*n*n*len(z.Values), func(t int) {
		logits, v := a.affine(z, g, t)
		shared := make([]float64, n*n)
		for i, zi := range z.Row(t) {
			shared[i] = float64(zi) * scale
		}
		s := newSinkhorn(n, logits, v, shared)
		rows, columns := n*n, 2*n*n // where the errors of their divisions stand
		s.divideLines(n, 1, rows, 0)
		for i := range s.c {
			s.c[i] += float64(eps)
			s.add(i, i, Sq(s.c[i])/3)
		}
		s.divideLines(1, n, columns, float64(eps))
		for range iters - 1 {
			s.divideLines(n, 1, rows, float64(eps))
			s.divideLines(1, n, columns, float64(eps))
		}
		for i := range s.c {
			c := float64(y.Values[t*n*n+i])
			y.Set(t*n*n+i, c, roughly(c, max(0, s.cov[i*s.all+i])))
		}
	})
	return y.inherit(z)
}

// sinkhorn is a matrix c [n, n] on its way through Sinkhorn's iterations, with the covariance of its errors, in units
// of u². Each step is carried out on both, to first order: what rows and columns take away again is no error. The
// iterations end where nothing changes any more, and each of them is rounded as the last one: the errors of divisions
// are the same in all of them, and add up.
type sinkhorn struct {
	n   int
	c   []float64 // row by row
	all int       // 3·n·n: errors of c's numbers, and relative errors of dividing each in its row and its column
	cov []float64 // [all, all]; the covariance of an error of c with one of a division stands only in the row of c's error
}

// newSinkhorn begins with e = e^(x - max) of each row of logits x with variances v and, together, the
// deviations shared:
//
//	v_e = e²·(v + 1 + (x - max)²/3)
//
// The quotient c/S, S being the sum of n numbers and eps, has a relative error of variance 1/3, and one of n/3 that
// all quotients with this S share.
func newSinkhorn(n int, x, v, shared []float64) *sinkhorn {
	size := n * n
	s := &sinkhorn{n, make([]float64, size), 3 * size, make([]float64, 9*size*size)}
	for i := range x {
		z := 0.0
		for _, other := range x[i/n*n : i/n*n+n] {
			z = min(z, x[i]-other)
		}
		s.c[i] = math.Exp(z)
		s.add(i, i, float64(Sq(s.c[i])*(v[i]+1+Sq(z)/3)))
	}
	for i := range size {
		for j := range size {
			s.add(i, j, float64(float64(s.c[i]*shared[i])*float64(s.c[j]*shared[j])))
		}
		s.add(size+i, size+i, 1.0/3)
		s.add(2*size+i, 2*size+i, 1.0/3)
		for k := range n {
			s.add(size+i, size+i/n*n+k, float64(n)/3)
			s.add(2*size+i, 2*size+k*n+i%n, float64(n)/3)
		}
	}
	return s
}

// add adds to a covariance.
func (s *sinkhorn) add(i, j int, v float64) { s.cov[i*s.all+j] += v }

// divideLines divides each number by the sum of its row or column: lines begin apart from one another.
func (s *sinkhorn) divideLines(apart, step, rounding int, eps float64) {
	for i := range s.n {
		s.divide(i*apart, step, rounding, eps)
	}
}

// divide divides the n numbers from first on, which are apart by step, by S, their sum + eps; their divisions' errors
// stand at rounding:
//
//	d(c/S) = (dc - c/S·Σ dc)/S + c/S·ε
func (s *sinkhorn) divide(first, step, rounding int, eps float64) {
	sum, end := eps, first+s.n*step
	for i := first; i < end; i += step {
		sum += s.c[i]
	}
	for i := first; i < end; i += step {
		s.c[i] /= sum
	}
	for other := range s.all {
		s.project(s.cov[other:], s.all, s.cov[other*s.all+rounding:], first, step, sum)
	}
	for other := range s.n * s.n {
		s.project(s.cov[other*s.all:], 1, s.cov[other*s.all+rounding:], first, step, sum)
	}
}

// project carries out a division on the covariances of c's errors with one other error, which are apart by stride.
// errors has the covariances of the divisions' errors with that other error.
func (s *sinkhorn) project(cov []float64, stride int, errors []float64, first, step int, sum float64) {
	total, end := 0.0, first+s.n*step
	for i := first; i < end; i += step {
		total += cov[i*stride]
	}
	for i := first; i < end; i += step {
		cov[i*stride] = (cov[i*stride]-float64(s.c[i]*total))/sum + float64(s.c[i]*errors[i])
	}
}

// Collapse implements model.Arithmetic: products p = pre·x, exact, and their sum:
//
//	v = Σ (v_pre·x² + pre²·v_x) + sums.variance
//
// An error of pre is common to all elements of a row.
func (a *Analysis) Collapse(pre, x *Value) *Value {
	pre, x = a.settle(pre), a.settle(x)
	hc, width := pre.Width(), x.Width()
	y := a.result(x.DType, x.Shape[0], x.Shape[1], width)
	sums := a.sums(hc)
	a.plain.Each(y.Rows(), 16*len(x.Values), func(t int) {
		for c := range width {
			var sum addition
			for j := range hc {
				w, xj := pre.element(t*hc+j), x.element((t*hc+j)*width+c)
				sum = sum.add(times(w.y, w.v, xj.y, xj.v))
			}
			y.Set(t*width+c, sum.y, roughly(sum.y, sum.variance(sums)))
		}
	})
	return y.inherit(pre, x)
}

// Expand implements model.Arithmetic, with p = post and m = comb as rounding points:
//
//	p·y:     v = v_p·y² + p²·v_y, exact, a rounding point
//	Σ m·x:   v = Σ (v_m·x² + m²·v_x) + sums.variance, a rounding point;  their sum, exact
//
// Errors of post and comb are common to all elements of a row.
func (a *Analysis) Expand(x, y, post, comb *Value) *Value {
	x, y, post, comb = a.settle(x), a.settle(y), a.settle(post), a.settle(comb)
	hc, width, p := post.Width(), x.Width(), PrecisionOf(x.DType)
	z, sums := a.result(x.DType, x.Shape...), a.sums(hc)
	cast := func(x *Value, i int) uncertain {
		r, v := point(p, float64(x.Values[i]), x.Variance(i))
		return uncertain{r, v}
	}
	a.plain.Each(z.Rows(), 16*hc*len(x.Values), func(row int) {
		t, k := row/hc, row%hc
		post, m := cast(post, row), make([]uncertain, hc)
		for j := range m {
			m[j] = cast(comb, (t*hc+j)*hc+k)
		}
		for c := range width {
			out := y.element(t*width + c)
			own, vOwn := times(post.y, post.v, out.y, out.v)
			own, vOwn = point(p, own, vOwn)
			var sum addition
			for j, w := range m {
				xj := x.element((t*hc+j)*width + c)
				sum = sum.add(w.y*xj.y, float64(w.v*Sq(xj.y))+float64(xj.v*Sq(w.y))+float64(w.v*xj.v*(Unit*Unit)))
			}
			mixed := float64(float32(sum.y))
			mixed, vMixed := point(p, mixed, roughly(mixed, sum.variance(sums)))
			total := float64(float32(own + mixed))
			z.Set(row*width+c, total, exactly(total, vOwn+vMixed))
		}
	})
	return z.inherit(x, y, post, comb)
}
