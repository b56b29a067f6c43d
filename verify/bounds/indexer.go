package bounds

import (
	"math"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// LayerNorm implements model.Arithmetic, with m = mean(x), r = 1/sqrt(var(x) + eps), n = (x - m)·r, of D
// columns:
//
//	m:  v = Σ v_x/D² + sums.variance/D²
//	n:  v = r²·(v_x + v_m + (x² + m²)/3) + n²·(1.5² + Σ((x - m)²·v_x)/(Σ(x - m)²)²)
//	y = n·weight + bias:  v = v_n·weight² + (n·weight)²/3
func (a *Analysis) LayerNorm(x *Value, norm *model.LayerNorm, eps float64) *Value {
	x = a.settle(x)
	w, b := a.plain.Values(&norm.Weight), a.plain.Values(&norm.Bias)
	deltaW, deltaB := a.deltas(&norm.Weight), a.deltas(&norm.Bias)
	y := a.result(x.DType, x.Shape...)
	a.plain.Each(x.Rows(), 16*len(y.Values), func(t int) {
		from := t * x.Width()
		mean, r := model.Moments(x.Row(t), eps)
		vMean, common := a.momentErrors(x, t, mean)
		for i, xi := range x.Row(t) {
			n := float64((float64(xi) - mean) * r)
			v := float64(Sq(r)*(x.Variance(from+i)+vMean+(Sq(float64(xi))+Sq(mean))/3)) + float64(Sq(n)*common)
			scaled := float64(n * float64(w[i]))
			v = float64(v*Sq(float64(w[i]))) + Sq(scaled)/3 + float64(Sq(n)*delta(deltaW, i)) + delta(deltaB, i)
			out := scaled + float64(b[i])
			y.Set(from+i, out, roughly(out, v))
		}
	})
	return y.inherit(x)
}

// momentErrors returns the variance of the mean of row t, and the relative variance of 1/sqrt(var + eps).
func (a *Analysis) momentErrors(x *Value, t int, mean float64) (vMean, common float64) {
	var sum, partial, squares, carried, spread, moved float64
	for i, xi := range x.Row(t) {
		v, d := x.Variance(t*x.Width()+i), Sq(float64(xi)-mean)
		sum += float64(xi)
		partial += Sq(sum)
		squares += Sq(float64(xi))
		carried += v
		spread += d
		moved += float64(d * v)
	}
	if common = 2.25; spread > 0 {
		common += moved / Sq(spread)
	}
	return (carried + a.sums(x.Width()).variance(sum, partial+Sq(sum), squares)) / Sq(float64(x.Width())), common
}

// ReLU implements model.Arithmetic. What Lambda standard deviations leave below 0 is exactly 0.
func (a *Analysis) ReLU(x *Value) *Value {
	x = a.settle(x)
	y := a.result(x.DType, x.Shape...)
	for i, v := range x.Values {
		if variance := x.Variance(i); float64(v) > -Lambda*Unit*math.Sqrt(variance) {
			y.Set(i, float64(max(v, 0)), variance)
		} else {
			y.Set(i, 0, 0)
		}
	}
	return y.inherit(x)
}

// IndexScores implements model.Arithmetic, of H heads:
//
//	y = Σ w·s:  v = Σ (v_w·s² + w²·v_s + v_w·v_s) + sums.variance
//
// A sum of zeros is exact, and so is what the mask hides.
func (a *Analysis) IndexScores(weights, s *Value, first int, mask *model.Mask) *Value {
	weights, s = a.settle(weights), a.settle(s)
	batch, heads, n, seq := s.Shape[0], s.Shape[1], s.Shape[2], s.Shape[3]
	y := a.result(tensor.F32, batch, 1, n, seq)
	sums, rows := a.sums(heads), weights.Rows()/batch
	a.plain.Each(batch*n, 16*len(s.Values), func(t int) {
		b, i := t/n, t%n
		for u := range seq {
			if mask.Masked(b, first+i, u) {
				y.Set(t*seq+u, float64(mask.Lowest), 0)
				continue
			}
			var sum, v, partial, squares float64
			for h := range heads {
				w, score := weights.element((b*rows+first+i)*heads+h), s.element(((b*heads+h)*n+i)*seq+u)
				term := float64(w.y * score.y)
				sum += term
				partial += Sq(sum)
				squares += Sq(term)
				v += float64(w.v*Sq(score.y)) + float64(score.v*Sq(w.y)) + float64(w.v*score.v*(Unit*Unit))
			}
			if v += sums.variance(sum, partial+Sq(sum), squares); v > 0 {
				v = roughly(sum, v)
			}
			y.Set(t*seq+u, sum, v)
		}
	})
	return y.inherit(weights, s)
}
