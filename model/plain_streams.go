package model

import (
	"math"
	"slices"

	"dsmoe/model/internal/kernel"
	"dsmoe/model/tensor"
)

// Cast implements Arithmetic.
func (p *Plain) Cast(x *Activation, d tensor.DType) *Activation {
	y := p.Make(d, x.Shape...)
	copy(y.Values, x.Values)
	kernel.RoundTo(y.Values, y.format())
	return y
}

// Clamp implements Arithmetic.
func (p *Plain) Clamp(x *Activation, low, high float32) *Activation {
	y := p.Make(x.DType, x.Shape...)
	low, high = kernel.Rounded(low, x.format()), kernel.Rounded(high, x.format())
	for i, v := range x.Values {
		y.Values[i] = min(max(v, low), high)
	}
	return y
}

// UnitNorm implements Arithmetic. The mean is summed in float64.
func (p *Plain) UnitNorm(x *Activation, eps float64) *Activation {
	y := p.Make(x.DType, x.Shape...)
	p.Each(x.Rows(), 2*len(y.Values), func(t int) {
		factor := kernel.Rounded(float32(inverseRMS(x.Row(t), eps)), y.format())
		for i, v := range x.Row(t) {
			y.Row(t)[i] = v * factor
		}
		kernel.RoundTo(y.Row(t), y.format())
	})
	return y
}

// Of returns the function of a row z.
func (a *Affine) Of(z []float32) []float64 {
	scale, base := decoded(a.Scale.matrix()), decoded(a.Base.matrix())
	y := make([]float64, len(z))
	for i, v := range z {
		y[i] = float64(float32(v*scale[a.Part]) + base[a.From+i])
	}
	return y
}

// StreamGate implements Arithmetic. It is computed in float64 behind the affine function.
func (p *Plain) StreamGate(z *Activation, a *Affine, times, plus float32) *Activation {
	y := p.Make(tensor.F32, z.Shape...)
	for t := range z.Rows() {
		for i, v := range a.Of(z.Row(t)) {
			y.Row(t)[i] = float32(float64(times)/(1+kernel.Exp(-v)) + float64(plus))
		}
	}
	return y
}

// Sinkhorn implements Arithmetic. It is computed in float64 behind the affine function.
func (p *Plain) Sinkhorn(z *Activation, a *Affine, iters int, eps float32) *Activation {
	n := int(math.Sqrt(float64(z.Width())))
	y := p.Make(tensor.F32, slices.Concat(z.Shape[:len(z.Shape)-1], []int{n, n})...)
	p.Each(z.Rows(), 8*iters*len(z.Values), func(t int) {
		c := slices.Clone(a.Of(z.Row(t)))
		for row := range slices.Chunk(c, n) {
			top := slices.Max(row)
			for i, v := range row {
				row[i] = kernel.Exp(v - top)
			}
		}
		divideLines(c, n, 1, 0)
		for i := range c {
			c[i] += float64(eps)
		}
		divideLines(c, 1, n, float64(eps))
		for range iters - 1 {
			divideLines(c, n, 1, float64(eps))
			divideLines(c, 1, n, float64(eps))
		}
		for i, v := range c {
			y.Values[t*n*n+i] = float32(v)
		}
	})
	return y
}

// divideLines divides each row or column of c by its sum + eps: lines begin apart from one another, and their numbers
// are step apart.
func divideLines(c []float64, apart, step int, eps float64) {
	n := max(apart, step)
	for first := 0; first < n*apart; first += apart {
		sum := eps
		for i := range n {
			sum += c[first+i*step]
		}
		for i := range n {
			c[first+i*step] /= sum
		}
	}
}

// Collapse implements Arithmetic. The sum is taken in float64.
func (p *Plain) Collapse(pre, x *Activation) *Activation {
	hc, width := pre.Width(), x.Width()
	y := p.Make(x.DType, slices.Concat(x.Shape[:len(x.Shape)-2], []int{width})...)
	p.Each(y.Rows(), len(x.Values), func(t int) {
		sums := make([]float64, width)
		for j, w := range pre.Row(t) {
			for i, v := range x.Row(t*hc + j) {
				sums[i] += float64(float32(w * v))
			}
		}
		narrow(y.Row(t), sums)
		kernel.RoundTo(y.Row(t), y.format())
	})
	return y
}

// narrow sets dst to sums, rounded to float32.
func narrow(dst []float32, sums []float64) {
	for i, sum := range sums {
		dst[i] = float32(sum)
	}
}

// Expand implements Arithmetic. The sum over streams is taken in float64.
func (p *Plain) Expand(x, y, post, comb *Activation) *Activation {
	hc, z := post.Width(), p.Make(x.DType, x.Shape...)
	post, comb = p.Cast(post, x.DType), p.Cast(comb, x.DType)
	p.Each(z.Rows(), hc*len(x.Values), func(row int) {
		t, k, out, sums := row/hc, row%hc, z.Row(row), make([]float64, z.Width())
		for j := range hc {
			w := float64(comb.Row(t*hc + j)[k])
			for i, v := range x.Row(t*hc + j) {
				sums[i] += float64(w * float64(v))
			}
		}
		narrow(out, sums)
		kernel.RoundTo(out, z.format())
		w := post.Row(t)[k]
		for i, v := range y.Row(t) {
			out[i] += kernel.Rounded(float32(w*v), z.format())
		}
		kernel.RoundTo(out, z.format())
	})
	return z
}

// SinkSoftmax implements Arithmetic. It is computed in float64.
func (p *Plain) SinkSoftmax(scores *Activation, sinks *Weight) *Activation {
	y, sink := p.Make(scores.DType, scores.Shape...), p.Values(sinks)
	heads, n, keys := scores.Shape[1], scores.Shape[2], scores.Width()
	p.Each(scores.Shape[0]*heads, 8*len(y.Values), func(i int) {
		row := make([]float32, keys+1)
		for t := i * n; t < (i+1)*n; t++ {
			copy(row, scores.Row(t))
			row[keys] = sink[i%heads]
			kernel.Softmax(row)
			copy(y.Row(t), row)
			kernel.RoundTo(y.Row(t), y.format())
		}
	})
	return y
}

// Pool implements Arithmetic. Softmax and sum are computed in float64.
func (p *Plain) Pool(kv, gate *Activation, ape *Weight, g *Pooling) *Activation {
	batch, seq := kv.Shape[0], kv.Shape[1]
	y, bias := p.Make(kv.DType, batch, g.Entries(seq), g.Width), p.Values(ape)
	columns := kv.Width()
	p.Each(y.Rows(), 16*len(kv.Values), func(row int) {
		first, slots := row/y.Shape[1]*seq, g.Slots(row%y.Shape[1])
		probs := make([]float32, len(slots))
		for c := range g.Width {
			for i, s := range slots {
				probs[i] = gate.Row(first + s.Token)[s.Column+c] + bias[s.Row*columns+s.Column+c]
			}
			kernel.Softmax(probs)
			sum := 0.0
			for i, s := range slots {
				probability := kernel.Rounded(probs[i], y.format())
				sum += float64(kernel.Rounded(float32(probability*kv.Row(first + s.Token)[s.Column+c]), y.format()))
			}
			y.Row(row)[c] = kernel.Rounded(float32(sum), y.format())
		}
	})
	return y
}

// MaskKeys implements Arithmetic.
func (p *Plain) MaskKeys(scores *Activation, mask *Mask) *Activation {
	y, seq := p.Make(scores.DType, scores.Shape...), scores.Shape[1]
	copy(y.Values, scores.Values)
	for t := range y.Rows() {
		for key := range y.Width() {
			if mask.Masked(t/seq, t%seq, key) {
				y.Row(t)[key] = float32(math.Inf(-1))
			}
		}
	}
	return y
}
