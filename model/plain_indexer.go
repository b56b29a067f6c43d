package model

import (
	"math"

	"dsmoe/model/internal/kernel"
)

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
		mask.add(y.Row(t), b, first+i)
	})
	return y
}
