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
func (a *Analysis) Linear(x *Value, l *model.Linear) *Value {
	x = a.settle(x)
	y := a.result(x.DType, slices.Concat(x.Shape[:len(x.Shape)-1], l.Weight.Shape[:1])...)
	sums := a.sumsOf(x)
	moved := a.linearDeltas(y.sigma.Values, x, l)
	var bias []float32
	if l.Bias.Name != "" {
		bias = a.plain.Values(&l.Bias)
	}
	deltas, width := a.deltas(&l.Bias), y.Width()
	a.scratch(func() *model.Activation {
		p := &model.Partial{X: x.Values, Scale: scales(x), OneChain: sums.oneChain}
		var units []float64
		if x.sigma != nil {
			p.V, units = a.perRow(x, func(_, v float64) float64 { return v })
		}
		p.Each = func(t, r int, partial, squares, carried []float32) {
			unscale := Sq(1 / float64(p.Scale[t]))
			for c := range partial {
				i := t*width + r + c
				out, v := float64(y.Values[i]), 0.0
				sum := out
				if bias != nil {
					sum -= float64(bias[r+c])
					v += Sq(sum)/3 + delta(deltas, r+c)
				}
				if carried != nil {
					v += float64(float64(carried[c]) * units[t])
				}
				if moved != nil {
					v += float64(float64(y.sigma.Values[i]) * moved[t])
				}
				v += sums.variance(sum, float64(unscale*float64(partial[c])), float64(unscale*float64(squares[c])))
				y.sigma.Values[i] = float32(math.Sqrt(roughly(out, v)))
			}
		}
		a.plain.LinearPartial(y.Activation, x.Activation, l, p)
		return y.sigma
	})
	if x.sigma != nil {
		y.Products = []product{{expert: -1, hidden: x.deviations(), down: l}}
	}
	return y.inherit(x)
}

// RMSNorm implements model.Arithmetic, with r = 1/sqrt(mean(x²) + eps):
//
//	n = x·r:  v = r²·v_x + n²·(1.5² + Σ(x²·v_x)/(Σx²)²), a rounding point;  · weight, exact
func (a *Analysis) RMSNorm(x *Value, weight *model.Weight, eps float64) *Value {
	x = a.settle(x)
	w, deltas := a.plain.Values(weight), a.deltas(weight)
	y := a.result(x.DType, x.Shape...)
	a.plain.Each(x.Rows(), 8*len(y.Values), func(t int) {
		row, from := x.Row(t), t*x.Width()
		sum, moved := 0.0, 0.0
		for i, v := range row {
			square := Sq(float64(v))
			sum += square
			moved += float64(square * x.Variance(from+i))
		}
		r2 := 1 / (sum/float64(len(row)) + eps)
		r, common := math.Sqrt(r2), 2.25
		if sum > 0 {
			common += moved / Sq(sum)
		}
		for i, xi := range row {
			n := float64(float32(float64(xi) * r))
			n, v := point(x.DType, n, roughly(n, float64(r2*x.Variance(from+i))+float64(Sq(n)*common)))
			wi := float64(w[i])
			out := float64(float32(n * wi))
			y.Set(from+i, out, exactly(out, float64(v*Sq(wi))+float64(Sq(n)*delta(deltas, i))))
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
func (a *Analysis) SwiGLU(gate, up *Value) *Value {
	gate, up = a.settle(gate), a.settle(up)
	y := a.computed(a.plain.SiLU(gate.wide()), gate.DType)
	a.plain.Each(y.Rows(), 8*len(y.Values), func(t int) {
		for i := t * y.Width(); i < (t+1)*y.Width(); i++ {
			g, s, vg := float64(gate.Values[i]), float64(y.Values[i]), gate.Variance(i)
			logistic := 0.5
			if g != 0 {
				logistic = s / g
			}
			slope := logistic + float64(s*(1-logistic))
			v := float64(Sq(slope)*vg) + float64(0.3*Unit*Unit*Sq(vg)) + float64(2.25*Sq(s)*(1+float64(0.1*Sq(min(g, 0)))))
			s, v = point(y.DType, s, roughly(s, v))
			s, v = times(s, v, float64(up.Values[i]), up.Variance(i))
			y.Set(i, s, v)
		}
	})
	return y.inherit(gate, up)
}

// Softmax implements model.Arithmetic, with z = x - max:
//
//	a = v_x + 1 + z²/3     what each element does on its own
//	c = Σ p²·a + 1         what acts on the whole row, the denominator: shared
//	v = p²·(a + c)
func (a *Analysis) Softmax(x *Value) *Value {
	x = a.settle(x)
	y := a.computed(a.plain.Softmax(x.wide()), x.DType)
	y.shared = make([]float64, y.Rows())
	a.plain.Each(y.Rows(), 8*len(y.Values), func(t int) {
		row, from := x.Row(t), t*x.Width()
		top := math.Inf(-1)
		for _, v := range row {
			top = max(top, float64(v))
		}
		c := 1.0
		for i, xi := range row {
			p := float64(y.Values[from+i])
			if p == 0 { // z² may be infinite
				y.Set(from+i, 0, denormal)
				continue
			}
			own := float64(Sq(p) * (x.Variance(from+i) + 1 + Sq(float64(xi)-top)/3))
			c += own
			y.Set(from+i, p, roughly(p, own))
		}
		y.shared[t] = c
	})
	if x.Float32Scores != nil {
		y.Float32Scores = a.Softmax(x.Float32Scores)
	}
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
