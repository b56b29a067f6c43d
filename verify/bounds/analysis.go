// Package bounds derives how far a correct reference may be from what is computed: values that carry a
// variance, and what each operation of a model, forward and backward, does to them.
//
// NewAnalysis and NewGradients are arithmetics of model.Network. Measure tells how many standard deviations
// a golden tensor is from a value, Analysis.Neurons on which neuron of an MLP a residual lies. The package
// knows no packs: goldens and rows are numbers that it is given.
package bounds

import (
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// Embed implements model.Arithmetic. Casting a weight to the compute dtype is exact.
func (a *Analysis) Embed(w *model.Weight, ids []int) *Value {
	return a.embedded(a.plain.Embed(w, ids), w, ids)
}

// Linear implements model.Arithmetic:
//
//	v = Σ w²·v_x + sums.variance;  with a bias + y²/3 for the sum without it
//	with a weight that was rounded + Σ h²/3·(x² + v_x), h half a unit of w
//
// carried says what the first sum is where columns of x are equal. A common error c of x adds (Σ w·c)².
func (a *Analysis) Linear(x *Value, l *model.Linear) *Value {
	x, common := a.splitCommon(x, l)
	x = a.settle(x)
	y := a.result(x.DType, slices.Concat(x.Shape[:len(x.Shape)-1], l.Weight.Shape[:1])...)
	sums := a.sumsOf(x)
	moved := a.linearDeltas(y.sigma.Values, x, l)
	var bias []float32
	if l.Bias.Name != "" {
		bias = a.plain.Values(&l.Bias)
	}
	deltas, width := a.deltas(&l.Bias), y.Width()
	var equal *classes
	a.scratch(func() *model.Activation {
		p := &model.Partial{X: x.Values, Scale: scales(x), Plans: sums.plans}
		var units []float64
		var ofClasses *model.Activation
		if x.sigma != nil {
			p.V, units = a.perRow(x, 0)
			if equal = classesOf(x); equal != nil {
				ofClasses = a.classSquares(&model.Activation{Shape: x.Shape, Values: p.V}, &l.Weight, equal)
			}
		}
		p.Each = func(t, r int, partial, squares, carried []float32) {
			unscale, at := Sq(1/float64(p.Scale[t])), t*width+r
			values, sigma := y.Values[at:at+len(partial)], y.sigma.Values[at:at+len(partial)]
			for c, out := range values {
				out, v := float64(out), 0.0
				sum := out
				if bias != nil {
					sum -= float64(bias[r+c])
					v += Sq(sum)/3 + delta(deltas, r+c)
				}
				if carried != nil {
					squares := carried[c]
					if ofClasses != nil {
						squares = max(squares, ofClasses.Values[at+c])
					}
					v += float64(float64(squares) * units[t])
				}
				if moved != nil {
					v += float64(float64(sigma[c]) * moved[t])
				}
				if common != nil {
					v += Sq(float64(common[at+c]))
				}
				v += sums.variance(sum, float64(unscale*float64(partial[c])), float64(unscale*float64(squares[c])))
				sigma[c] = float32(math.Sqrt(roughly(out, v)))
			}
		}
		a.plain.LinearPartial(y.Activation, x.Activation, l, p)
		return y.sigma
	})
	if x.sigma != nil {
		l.Weight.Keep() // Neurons multiplies with it
		y.Products = []product{{expert: -1, hidden: x.deviations(), equal: equal, common: common, down: l}}
	}
	return y.inherit(x)
}

// RMSNorm implements model.Arithmetic, with r = 1/sqrt(mean(x²) + eps):
//
//	n = x·r:  v = r²·v_x + n²·(1.5² + Σ(x²·v_x)/(Σx²)²), a rounding point;  · weight, exact
//
// A serial sum of exact squares is reproduced; of others it adds n²·K/24, as one chain has K/6 of y² and r half of that
// error.
func (a *Analysis) RMSNorm(x *Value, weight *model.Weight, eps float64) *Value {
	x = a.settle(x)
	w, deltas, p := a.plain.Values(weight), a.deltas(weight), PrecisionOf(x.DType)
	y := a.result(x.DType, x.Shape...)
	a.plain.Each(x.Rows(), 8*len(y.Values), func(t int) {
		row, from := x.Row(t), t*x.Width()
		r2, common := x.inverseRMS(t, eps, a.serial)
		r := math.Sqrt(r2)
		for i, xi := range row {
			n := float64(float32(float64(xi) * r))
			n, v := point(p, n, roughly(n, float64(r2*x.Variance(from+i))+float64(Sq(n)*common)))
			wi := float64(w[i])
			out := float64(float32(n * wi))
			y.Set(from+i, out, exactly(out, float64(v*Sq(wi))+float64(Sq(n)*delta(deltas, i))))
		}
	})
	return y.inherit(x)
}

// inverseRMS returns the square of 1/sqrt(mean(x²) + eps) of row t, and its relative variance.
func (x *Value) inverseRMS(t int, eps float64, serial bool) (r2, relative float64) {
	row, from := x.Row(t), t*x.Width()
	sum, moved := 0.0, 0.0
	for i, v := range row {
		square := Sq(float64(v))
		if serial {
			square = float64(float32(square))
		}
		if sum += square; serial {
			sum = float64(float32(sum))
		}
		moved += float64(square * x.Variance(from+i))
	}
	r2, relative = 1/(sum/float64(len(row))+eps), 2.25
	if sum > 0 {
		relative += moved / Sq(sum)
	}
	if serial && moved > 0 {
		relative += float64(len(row)) / 24
	}
	return r2, relative
}

// UnitNorm implements model.Arithmetic, with r = 1/sqrt(mean(x²) + eps):
//
//	r:    v = r²·(1.5² + Σ(x²·v_x)/(Σx²)²), a rounding point
//	x·r:  v = r²·v_x + x²·v_r, exact
//
// The elements of a row share r's error. A product with the row has, of rounding its own sum, κ·y² and more, which
// covers that error, too: κ(K) is at least 2.25 for 14 terms or more.
func (a *Analysis) UnitNorm(x *Value, eps float64) *Value {
	x = a.settle(x)
	y := a.result(x.DType, x.Shape...)
	a.plain.Each(x.Rows(), 8*len(y.Values), func(t int) {
		r2, common := x.inverseRMS(t, eps, a.serial)
		r := float64(float32(math.Sqrt(r2)))
		r, vr := point(PrecisionOf(x.DType), r, roughly(r, float64(r2*common)))
		for i, xi := range x.Row(t) {
			i += t * x.Width()
			n, v := times(float64(xi), x.Variance(i), r, vr)
			y.Set(i, n, v)
		}
	})
	return y.inherit(x)
}

// Add implements model.Arithmetic: v = v_a + v_b.
func (a *Analysis) Add(x, z *Value) *Value {
	x, z = a.settle(x), a.settle(z)
	sum := a.plain.Add(x.wide(), z.wide())
	if x.sigma == nil && z.sigma == nil {
		sum.DType = x.DType
		return &Value{Activation: sum, roundLater: true}
	}
	y := a.computed(sum, x.DType)
	for i, s := range y.Values {
		y.Set(i, float64(s), exactly(float64(s), x.Variance(i)+z.Variance(i)))
	}
	return y.inherit(x, z)
}

// SwiGLU implements model.Arithmetic, with σ the logistic function and silu' = σ + silu·(1-σ):
//
//	silu(g):  v = silu'²·v_g + 0.3·v_g² + (1.5·silu)²·(1 + 0.1·min(g, 0)²), a rounding point
//	· up, exact
//
// A limit makes gates exactly equal. Their silu(g) has one error, which is common to them.
func (a *Analysis) SwiGLU(gate, up *Value) *Value {
	gate, up = a.settle(gate), a.settle(up)
	y, p := a.computed(a.plain.SiLU(gate.wide()), gate.DType), PrecisionOf(gate.DType)
	limit := highest(gate.Values)
	if gate.DType == tensor.F32 && gate.limited(limit) {
		y.common, y.ColumnsShare = a.errors.Make(tensor.F32, y.Shape...), true
		clear(y.common.Values)
	}
	a.plain.Each(y.Rows(), 8*len(y.Values), func(t int) {
		for i := t * y.Width(); i < (t+1)*y.Width(); i++ {
			g, s, vg := float64(gate.Values[i]), float64(y.Values[i]), gate.Variance(i)
			logistic := 0.5
			if g != 0 {
				logistic = s / g
			}
			slope := logistic + float64(s*(1-logistic))
			own := float64(2.25 * Sq(s) * (1 + float64(0.1*Sq(min(g, 0)))))
			if y.common != nil && vg == 0 && gate.Values[i] == limit {
				y.common.Values[i], own = float32(math.Sqrt(own)*float64(up.Values[i])), 0
			}
			v := float64(Sq(slope)*vg) + float64(0.3*Unit*Unit*Sq(vg)) + own
			s, v = point(p, s, roughly(s, v))
			s, v = times(s, v, float64(up.Values[i]), up.Variance(i))
			y.Set(i, s, v)
		}
	})
	return y.inherit(gate, up)
}

// limited reports whether a limit cut elements of x: at least two are exactly limit.
func (x *Value) limited(limit float32) bool {
	n := 0
	for i, y := range x.Values {
		if y == limit && x.Variance(i) == 0 {
			n++
		}
	}
	return n > 1
}

// Softmax implements model.Arithmetic, with z = x - max:
//
//	a = v_x + 1 + z²/3     what each element does on its own
//	c = Σ p²·a + 1         what acts on the whole row, the denominator: shared
//	v = p²·(a + c)
func (a *Analysis) Softmax(x *Value) *Value {
	x = a.settle(x)
	y := a.softmax(x, a.plain.Softmax(x.wide()), nil)
	if x.Float32Scores != nil {
		y.Float32Scores = a.Softmax(x.Float32Scores)
	}
	return y
}

// SinkSoftmax implements model.Arithmetic: a Softmax in which each row has one more element, its head's sink.
func (a *Analysis) SinkSoftmax(scores *Value, sinks *model.Weight) *Value {
	scores = a.settle(scores)
	values, deltas := a.plain.Values(sinks), a.deltas(sinks)
	return a.softmax(scores, a.plain.SinkSoftmax(scores.wide(), sinks), func(t int) uncertain {
		head := t / scores.Shape[2] % scores.Shape[1]
		return uncertain{float64(values[head]), delta(deltas, head)}
	})
}

// softmax gives the probabilities p of x their variances; sink, which may be nil, returns one more element of a row.
func (a *Analysis) softmax(x *Value, p *model.Activation, sink func(t int) uncertain) *Value {
	y := a.computed(p, x.DType)
	y.shared = make([]float64, y.Rows())
	a.plain.Each(y.Rows(), 8*len(y.Values), func(t int) {
		row, from := x.Row(t), t*x.Width()
		top, none := math.Inf(-1), uncertain{math.Inf(-1), 0}
		if sink != nil {
			none = sink(t)
			top = none.y
		}
		top = max(top, float64(highest(row)))
		c, total := 1.0, 0.0
		own := func(p float64, x uncertain) float64 { return float64(Sq(p) * (x.v + 1 + Sq(x.y-top)/3)) }
		for i := range row {
			p := float64(y.Values[from+i])
			if p == 0 { // z² may be infinite
				y.sigma.Values[from+i] = denormalSigma
				continue
			}
			v := own(p, x.element(from+i))
			c += v
			total += p
			y.Set(from+i, p, roughly(p, v))
		}
		if rest := 1 - total; sink != nil && rest > 0 {
			c += own(rest, none)
		}
		y.shared[t] = c
	})
	return y.inherit(x)
}

// highest returns the largest number; -Inf if there is none. It skips NaNs: they make a whole softmax NaN anyway.
func highest(numbers []float32) float32 {
	top := float32(math.Inf(-1))
	for _, v := range numbers {
		if v > top {
			top = v
		}
	}
	return top
}

// Clamp implements model.Arithmetic. What Lambda standard deviations leave beyond a limit is exactly the limit.
func (a *Analysis) Clamp(x *Value, low, high float32) *Value {
	x = a.settle(x)
	y := &Value{Activation: a.plain.Clamp(x.Activation, low, high)}
	if x.sigma == nil {
		return y.inherit(x)
	}
	y.sigma = a.errors.Make(tensor.F32, x.Shape...)
	y.copyDeviations(x, 0, len(x.Values))
	for i, c := range y.Values {
		if off := math.Abs(float64(x.Values[i]) - float64(c)); off > Lambda*Unit*float64(y.sigma.Values[i]) {
			y.sigma.Values[i] = 0
		}
	}
	return y.inherit(x)
}

// Cast implements model.Arithmetic.
func (a *Analysis) Cast(x *Value, d tensor.DType) *Value {
	x = a.settle(x)
	y := a.result(d, x.Shape...)
	copy(y.Values, x.Values)
	y.copyDeviations(x, 0, len(x.Values))
	return y.inherit(x)
}

// Float32 implements model.Arithmetic.
func (a *Analysis) Float32(x *Value) *Value {
	x = a.settle(x)
	y := &Value{Activation: a.plain.Float32(x.Activation), sigma: x.sigma}
	return y.inherit(x)
}

// Reshape implements model.Arithmetic.
func (a *Analysis) Reshape(x *Value, shape ...int) *Value {
	x = a.settle(x)
	y := Exact(a.plain.Reshape(x.Activation, shape...))
	if x.sigma != nil {
		y.sigma = a.errors.Reshape(x.sigma, shape...)
	}
	return y.inherit(x)
}

// Move implements model.Arithmetic. What is yet to be rounded in all operands is put off
// further.
func (a *Analysis) Move(m *model.Move, operands ...*Value) *Value {
	values, sigmas, allExact := make([]*model.Activation, len(operands)), make([]*model.Activation, len(operands)), true
	putOff := !slices.ContainsFunc(operands, func(x *Value) bool { return !x.roundLater })
	for i, x := range operands {
		if x.DistributeShared(); !putOff {
			a.settle(x)
		}
		values[i] = x.Activation
		allExact = allExact && x.sigma == nil
	}
	y := Exact(a.plain.Move(m, values...))
	y.roundLater = putOff
	if allExact {
		return y
	}
	for i, x := range operands {
		if sigmas[i] = x.sigma; x.sigma == nil {
			sigmas[i] = a.errors.Make(tensor.F32, x.Shape...)
			clear(sigmas[i].Values)
		}
	}
	y.sigma = a.errors.Move(m, sigmas...)
	if operands[0].Float32Scores != nil {
		narrow := make([]*Value, len(operands))
		for i, x := range operands {
			narrow[i] = x.Float32Scores
		}
		y.Float32Scores = a.Move(m, narrow...)
	}
	return y.inherit(operands...)
}
