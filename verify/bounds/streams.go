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
		s.mix(iters, float64(eps))
		for i := range s.c {
			c := float64(y.Values[t*n*n+i])
			y.Set(t*n*n+i, c, roughly(c, max(0, s.cov[i*n*n+i])))
		}
	})
	return y.inherit(z)
}

// sinkhorn is a matrix c [n, n] on its way through Sinkhorn's iterations, with the covariance of its errors, in units
// of u². Each step is carried out on both, to first order: what rows and columns take away again is no error.
type sinkhorn struct {
	n   int
	c   []float64 // row by row
	cov []float64 // [n·n, n·n]
}

// newSinkhorn begins with e = e^(x - max) of each row of logits x with variances v and, together, the
// deviations shared:
//
//	v_e = e²·(v + 1 + (x - max)²/3)
func newSinkhorn(n int, x, v, shared []float64) *sinkhorn {
	s := &sinkhorn{n, make([]float64, n*n), make([]float64, n*n*n*n)}
	for i := range x {
		z := 0.0
		for _, other := range x[i/n*n : i/n*n+n] {
			z = min(z, x[i]-other)
		}
		s.c[i] = math.Exp(z)
		s.round(i, v[i]+1+Sq(z)/3)
	}
	for i := range x {
		for j := range x {
			s.cov[i*n*n+j] += float64(float64(s.c[i]*shared[i]) * float64(s.c[j]*shared[j]))
		}
	}
	return s
}

// round adds an error of number i alone, of relative variance v.
func (s *sinkhorn) round(i int, v float64) { s.cov[i*len(s.c)+i] += float64(Sq(s.c[i]) * v) }

// mix carries out the iterations, from the softmax of rows on.
func (s *sinkhorn) mix(iters int, eps float64) {
	const rows, columns = true, false
	s.divide(rows, 0)
	for i := range s.c {
		s.c[i] += eps
		s.round(i, 1.0/3)
	}
	s.divide(columns, eps)
	for range iters - 1 {
		s.divide(rows, eps)
		s.divide(columns, eps)
	}
}

// divide divides each number of a row, or a column, by S, the sum of its n numbers + eps:
//
//	d(c/S) = (dc - c/S·Σ dc)/S;  n/3 of relative variance that the n numbers share, for S, and 1/3 of each
func (s *sinkhorn) divide(rows bool, eps float64) {
	next, step, all := 1, s.n, len(s.c)
	if rows {
		next, step = s.n, 1
	}
	for first := 0; first < s.n*next; first += next {
		end := first + s.n*step
		sum := eps
		for i := first; i < end; i += step {
			sum += s.c[i]
		}
		for i := first; i < end; i += step {
			s.c[i] /= sum
		}
		for i := range all {
			s.project(s.cov[i:], all, first, step, sum)
		}
		for i := range all {
			s.project(s.cov[i*all:], 1, first, step, sum)
		}
		for i := first; i < end; i += step {
			for j := first; j < end; j += step {
				s.cov[i*all+j] += float64(s.c[i] * s.c[j] * float64(s.n) / 3)
			}
			s.round(i, 1.0/3)
		}
	}
}

// project carries out a division on the covariances of the numbers with one number: cov has those apart by stride.
func (s *sinkhorn) project(cov []float64, stride, first, step int, sum float64) {
	total := 0.0
	for k := range s.n {
		total += cov[(first+k*step)*stride]
	}
	for k := range s.n {
		i := first + k*step
		cov[i*stride] = (cov[i*stride] - float64(s.c[i]*total)) / sum
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
				sum.add(times(w.y, w.v, xj.y, xj.v))
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
	hc, width, d := post.Width(), x.Width(), x.DType
	z, sums := a.result(d, x.Shape...), a.sums(hc)
	cast := func(x *Value, i int) uncertain {
		r, v := point(d, float64(x.Values[i]), x.Variance(i))
		return uncertain{r, v}
	}
	a.plain.Each(z.Rows(), 16*hc*len(x.Values), func(row int) {
		t, k := row/hc, row%hc
		p, m := cast(post, row), make([]uncertain, hc)
		for j := range m {
			m[j] = cast(comb, (t*hc+j)*hc+k)
		}
		for c := range width {
			out := y.element(t*width + c)
			own, vOwn := times(p.y, p.v, out.y, out.v)
			own, vOwn = point(d, own, vOwn)
			var sum addition
			for j, w := range m {
				xj := x.element((t*hc+j)*width + c)
				sum.add(w.y*xj.y, float64(w.v*Sq(xj.y))+float64(xj.v*Sq(w.y))+float64(w.v*xj.v*(Unit*Unit)))
			}
			mixed := float64(float32(sum.y))
			mixed, vMixed := point(d, mixed, roughly(mixed, sum.variance(sums)))
			total := float64(float32(own + mixed))
			z.Set(row*width+c, total, exactly(total, vOwn+vMixed))
		}
	})
	return z.inherit(x, y, post, comb)
}
