package bounds

import (
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// LayerNorm implements model.Arithmetic, with m = mean(x), r = 1/sqrt(var(x) + eps), n = (x - m)·r, of D
// columns:
//
//	m:  v = Σ v_x/D² + sums.variance/D²
//	n:  v = r²·(v_x + v_m + (x² + m²)/3) + n²·(v_r + Σ((x - m)²·v_x)/(Σ(x - m)²)²), v_r as RMSNorm, of a serial sum + n²·D/24
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
	var sum addition
	var squares lanes
	var moved float64
	for i, xi := range x.Row(t) {
		v, d := x.Variance(t*x.Width()+i), Sq(float64(xi)-mean)
		sum = sum.add(float64(xi), v)
		squares.add(i, d)
		moved += float64(d * v)
	}
	spread, v := squares.total()
	if common = ofRoot(spread, v); spread > 0 {
		common += moved / Sq(spread)
	}
	if a.serial {
		common += float64(x.Width()) / 24
	}
	return sum.variance(a.sums(x.Width())) / Sq(float64(x.Width())), common
}

// ReLU implements model.Arithmetic. What Lambda standard deviations leave below 0 is exactly 0.
func (a *Analysis) ReLU(x *Value) *Value {
	x = a.settle(x)
	y := a.result(x.DType, x.Shape...)
	y.copyDeviations(x, 0, len(x.Values))
	for i, v := range x.Values {
		if y.Values[i] = max(v, 0); float64(v) <= -Lambda*Unit*float64(y.sigma.Values[i]) {
			y.sigma.Values[i] = 0
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
			var sum addition
			for h := range heads {
				w, score := weights.element((b*rows+first+i)*heads+h), s.element(((b*heads+h)*n+i)*seq+u)
				sum = sum.add(float64(w.y*score.y), float64(w.v*Sq(score.y))+float64(score.v*Sq(w.y))+float64(w.v*score.v*(Unit*Unit)))
			}
			v := sum.variance(sums)
			if v > 0 {
				v = roughly(sum.y, v)
			}
			y.Set(t*seq+u, sum.y, v)
		}
	})
	return y.inherit(weights, s)
}

// MaskKeys implements model.Arithmetic. What is hidden is exact.
func (a *Analysis) MaskKeys(scores *Value, mask *model.Mask) *Value {
	scores = a.settle(scores)
	y := &Value{Activation: a.plain.MaskKeys(scores.Activation, mask)}
	if scores.sigma != nil {
		y.sigma = a.errors.Make(tensor.F32, scores.Shape...)
		y.copyDeviations(scores, 0, len(y.Values))
		for i, v := range y.Values {
			if Hidden(v) {
				y.sigma.Values[i] = 0
			}
		}
	}
	return y.inherit(scores)
}

// Pool implements model.Arithmetic:
//
//	gate + ape, exact;  p as Softmax has it, whose denominator is added up slot by slot;  a rounding point
//	p·kv, exact, a rounding point;  y = Σ p·kv:  v = Σ (v_p·kv² + p²·v_kv) + y²·c + that of a sum
func (a *Analysis) Pool(kv, gate *Value, ape *model.Weight, g *model.Pooling) *Value {
	kv, gate = a.settle(kv), a.settle(gate)
	seq := kv.Shape[1]
	y := a.result(kv.DType, kv.Shape[0], g.Entries(seq), g.Width)
	probs := a.slotProbabilities(gate, ape, g, kv.DType)
	n := probs.Width()
	a.plain.Each(y.Rows(), 16*len(probs.Values), func(row int) {
		products := &Value{Activation: &model.Activation{Values: make([]float32, n)},
			sigma: &model.Activation{Values: make([]float32, n)}}
		for c := range g.Width {
			r := row*g.Width + c
			for i, s := range g.Slots(row % y.Shape[1]) {
				p, x := probs.element(r*n+i), kv.element((row/y.Shape[1]*seq+s.Token)*kv.Width()+s.Column+c)
				product, v := times(p.y, p.v, x.y, x.v)
				product, v = point(PrecisionOf(kv.DType), product, v)
				products.Set(i, product, v)
			}
			sum, v := a.total(products.Values, products.deviations())
			if probs.shared != nil {
				v += float64(Sq(sum) * probs.shared[r])
			}
			y.Set(r, sum, v)
		}
	})
	return y.inherit(kv, gate)
}

// slotProbabilities returns the probabilities of the slots of each element of the entries, [batch, entries, width,
// slots], in dtype d. Entries with fewer slots end with zeros.
func (a *Analysis) slotProbabilities(gate *Value, ape *model.Weight, g *model.Pooling, d tensor.DType) *Value {
	seq, columns := gate.Shape[1], gate.Width()
	entries, n := g.Entries(seq), len(g.Slots(1))
	bias, deltas := a.plain.Values(ape), a.deltas(ape)
	logits := a.result(tensor.F32, gate.Shape[0], entries, g.Width, n)
	a.plain.Each(gate.Shape[0]*entries, 4*len(logits.Values), func(row int) {
		for i := range logits.Values[row*g.Width*n : (row+1)*g.Width*n] {
			logits.Set(row*g.Width*n+i, math.Inf(-1), 0)
		}
		for i, s := range g.Slots(row % entries) {
			for c := range g.Width {
				x, b := gate.element((row/entries*seq+s.Token)*columns+s.Column+c), s.Row*columns+s.Column+c
				sum := float64(float32(x.y + float64(bias[b])))
				logits.Set((row*g.Width+c)*n+i, sum, exactly(sum, x.v+delta(deltas, b)))
			}
		}
	})
	probs := a.Softmax(logits)
	a.plain.Each(probs.Rows(), 8*len(probs.Values), func(r int) {
		_, v := a.total(probs.Row(r), nil)
		probs.shared[r] += v
	})
	if probs.DType = d; d != tensor.F32 {
		a.settle(probs)
	}
	return probs
}

// total is the sum of numbers with these deviations, added up one by one.
func (a *Analysis) total(numbers, deviations []float32) (y, v float64) {
	n := len(numbers)
	ones := slices.Repeat([]float32{1}, n)
	return sumOf(matrix{1, n, numbers, deviations}, matrix{1, n, ones, nil}, a.sums(n))
}
