package model

import (
	"math"

	"dsmoe/model/internal/kernel"
)

// headOf returns the index of the matrix of shared [batch, groups, …] that belongs to matrix i
// of x [batch, heads, …]: heads/groups consecutive heads share a matrix.
func headOf(i int, x, shared *Activation) int { return i / (x.Shape[1] / shared.Shape[1]) }

// Tables implements Arithmetic.
func (p *Plain) Tables(r *Rotary) (cos, sin *Activation) {
	cos, sin = p.Make(r.DType, len(r.Cos)/r.Half, r.Half), p.Make(r.DType, len(r.Sin)/r.Half, r.Half)
	copy(cos.Values, r.Cos)
	copy(sin.Values, r.Sin)
	return cos, sin
}

// RoPE implements Arithmetic.
func (p *Plain) RoPE(x, cos, sin *Activation, r *Rotary) *Activation {
	y := p.Make(x.DType, x.Shape...)
	from, to := r.Part(x.Width())
	p.Each(x.Shape[0]*x.Shape[1], len(y.Values), func(i int) {
		copy(y.Matrix(i), x.Matrix(i))
		for t := range x.Shape[2] {
			r.rotate(y.Row(i*x.Shape[2] + t)[from:to], cos.Row(t), sin.Row(t), y.format())
		}
	})
	return y
}

// Scores implements Arithmetic.
func (p *Plain) Scores(q, k *Activation, first, n int, s *Scoring) *Activation {
	heads, seq, dim := q.Shape[1], k.Shape[2], q.Width()
	y := p.Make(q.DType, q.Shape[0], heads, n, seq)
	p.Each(q.Shape[0]*heads, len(y.Values)*dim, func(i int) {
		scores, format := y.Matrix(i), y.format()
		w := kernel.Matrix{Rows: seq, Cols: dim, Values: k.Matrix(headOf(i, q, k))}
		kernel.MatMul(scores, q.Matrix(i)[first*dim:(first+n)*dim], w, nil, p.o.Accumulate, 1)
		kernel.RoundTo(scores, format)
		s.scale(scores)
		kernel.RoundTo(scores, format)
		if s.Mask == nil {
			return
		}
		for t := range n {
			s.Mask.add(scores[t*seq:(t+1)*seq], i/heads, first+t)
		}
		kernel.RoundTo(scores, format)
	})
	return y
}

// scale multiplies or divides x by the scale.
func (s *Scoring) scale(x []float32) {
	if s.Divides {
		for i := range x {
			x[i] /= s.By
		}
		return
	}
	for i := range x {
		x[i] *= s.By
	}
}

// Context implements Arithmetic.
func (p *Plain) Context(probs, vT *Activation) *Activation {
	n, seq, width := probs.Shape[2], probs.Width(), vT.Shape[2]
	y := p.Make(probs.DType, probs.Shape[0], probs.Shape[1], n, width)
	p.Each(probs.Shape[0]*probs.Shape[1], len(y.Values)*seq, func(i int) {
		w := kernel.Matrix{Rows: width, Cols: seq, Values: vT.Matrix(headOf(i, probs, vT))}
		kernel.MatMul(y.Matrix(i), probs.Matrix(i), w, nil, p.o.Accumulate, 1)
		kernel.RoundTo(y.Matrix(i), y.format())
	})
	return y
}

// LayerNorm implements Arithmetic. Mean and variance are summed in float64.
func (p *Plain) LayerNorm(x *Activation, n *LayerNorm, eps float64) *Activation {
	w, b := p.Values(&n.Weight), p.Values(&n.Bias)
	y := p.Make(x.DType, x.Shape...)
	p.Each(x.Rows(), 8*len(y.Values), func(t int) {
		mean, scale := Moments(x.Row(t), eps)
		for i, v := range x.Row(t) {
			y.Row(t)[i] = float32(float64((float64(v)-mean)*scale*float64(w[i])) + float64(b[i]))
		}
		kernel.RoundTo(y.Row(t), y.format())
	})
	return y
}

// Moments returns the mean of x, and 1/sqrt(var + eps).
func Moments(x []float32, eps float64) (mean, scale float64) {
	for _, v := range x {
		mean += float64(v)
	}
	mean /= float64(len(x))
	squares := 0.0
	for _, v := range x {
		squares += float64((float64(v) - mean) * (float64(v) - mean))
	}
	return mean, 1 / math.Sqrt(squares/float64(len(x))+eps)
}

// ReLU implements Arithmetic.
func (p *Plain) ReLU(x *Activation) *Activation {
	y := p.Make(x.DType, x.Shape...)
	for i, v := range x.Values {
		y.Values[i] = max(v, 0)
	}
	return y
}

// IndexScores implements Arithmetic. The sum is taken in float64.
func (p *Plain) IndexScores(weights, s *Activation, first int, mask *Mask) *Activation {
	batch, heads, n, seq := s.Shape[0], s.Shape[1], s.Shape[2], s.Shape[3]
	y := p.Make(s.DType, batch, 1, n, seq)
	p.Each(batch*n, len(s.Values), func(t int) {
		b, i := t/n, t%n
		w, sums := weights.Row(b*weights.Rows()/batch+first+i), make([]float64, seq)
		for h, by := range w {
			for u, v := range s.Row((b*heads+h)*n + i) {
				sums[u] += float64(float64(by) * float64(v))
			}
		}
		for u, sum := range sums {
			y.Row(t)[u] = float32(sum)
		}
		if mask != nil {
			mask.add(y.Row(t), b, first+i)
		}
	})
	return y
}
