// Package bounds derives how far a correct reference may be from what is computed: values that carry a
// variance, and what each operation of a model, forward and backward, does to them.
//
// NewAnalysis and NewGradients are arithmetics of model.Network. Measure tells how many standard deviations
// a golden tensor is from a value, Analysis.Neurons on which neuron of an MLP a residual lies. The package
// knows no packs: goldens and rows are numbers that it is given.
package bounds

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// Embed implements model.Arithmetic. Casting a weight to the compute dtype is exact; rows of an embedding that was
// rounded have their variances.
func (a *Analysis) Embed(w *model.Weight, ids []int) *Value {
	y, how := a.plain.Embed(w, ids), a.rounded[w.Name]
	if how.By == "" {
		return Exact(y)
	}
	x := a.computed(y, y.DType)
	for t, id := range ids {
		for i, h := range how.HalfSteps(nil, w.Row(id)) {
			i += t * y.Width()
			x.Set(i, float64(y.Values[i]), Sq(float64(h)/Unit)/3)
		}
	}
	return x
}

// Linear implements model.Arithmetic:
//
//	v = Σ w²·v_x + sums.variance;  with a bias + y²/3 for the sum without it, where that is added last
//	with a weight that was rounded + Σ h²/3·(x² + v_x), h half a unit of w
//	in BF16 + (2⁻¹²⁶·Σ |x|)², and v_x = x² of denormal x: processors may take denormal numbers for 0, as partial sums, too
//
// carried says what the first sum is where columns of x are equal. A common error c of x adds (Σ w·c)².
func (a *Analysis) Linear(x *Value, l *model.Linear) *Value {
	a.last, a.lastWeight = a.operation(&l.Weight), &l.Weight
	if n, err := strconv.Atoi(a.way(Ranks)); a.last == Ranks && err == nil && n > 1 {
		return NewReducedSums(a, Schedule{Parts: n, Even: true}).Linear(x, l)
	}
	x, common := a.splitCommon(x, l)
	x = a.withDenormals(a.settle(x))
	y := a.result(x.DType, slices.Concat(x.Shape[:len(x.Shape)-1], l.Weight.Shape[:1])...)
	sums := a.linear(x, l.Weight.Shape[0])
	moved := a.linearDeltas(y.sigma.Values, x, l)
	var bias []float32
	if l.Bias.Name != "" {
		bias = a.plain.Values(&l.Bias)
	}
	var equal *classes
	deltas, width, flushed := a.deltas(&l.Bias), y.Width(), make([]float64, x.Rows())
	if x.DType == tensor.BF16 {
		a.plain.Each(len(flushed), len(x.Values), func(t int) {
			flushed[t] = Sq(sumOfMagnitudes(x.Row(t)) * (leastNormal / Unit))
		})
	}
	a.scratch(func() *model.Activation {
		p := &model.Partial{X: x.Values, Start: bias, Plans: sums.plans}
		var units []float64
		var ofClasses *model.Activation
		if x.sigma != nil {
			p.V, units = a.perRow(x, 0)
			if equal = classesOf(x); equal != nil {
				ofClasses = a.classSquares(&model.Activation{Shape: x.Shape, Values: p.V}, &l.Weight, equal)
			}
		}
		p.Each = func(t, r int, partial, squares, carried []float64) {
			at := t*width + r
			values, sigma := y.Values[at:at+len(partial)], y.sigma.Values[at:at+len(partial)]
			for c, out := range values {
				out, v := float64(out), flushed[t]
				sum := out
				if bias != nil {
					sum -= float64(bias[r+c])
					v += Sq(sum)/3 + delta(deltas, r+c)
				}
				if carried != nil {
					squares := carried[c]
					if ofClasses != nil {
						squares = max(squares, float64(ofClasses.Values[at+c]))
					}
					v += float64(squares * units[t])
				}
				if moved != nil {
					v += float64(Sq(float64(sigma[c])) * moved[t])
				}
				if common != nil {
					v += Sq(float64(common[at+c]))
				}
				v += sums.variance(sum, partial[c], squares[c])
				sigma[c] = deviation(roughly(out, v))
			}
		}
		a.plain.LinearPartial(y.Activation, x.Activation, &l.Weight, p)
		return y.sigma
	})
	if x.sigma != nil {
		l.Weight.Keep() // Neurons multiplies with it
		y.Products = []product{{expert: -1, hidden: x.deviations(), equal: equal, common: common, down: l}}
	}
	if a.last == Ranks && a.way(Ranks) == Unknown && y.DType != tensor.F32 {
		a.addRanks(y)
	}
	return y.inherit(x)
}

// sumOfMagnitudes returns Σ |x|. Its four sums do not wait for each other.
func sumOfMagnitudes(x []float32) float64 {
	var a, b, c, d float64
	for ; len(x) >= 4; x = x[4:] {
		a += math.Abs(float64(x[0]))
		b += math.Abs(float64(x[1]))
		c += math.Abs(float64(x[2]))
		d += math.Abs(float64(x[3]))
	}
	for _, v := range x {
		a += math.Abs(float64(v))
	}
	return a + b + c + d
}

// addRanks adds to y what sums over up to mostRanks ranks may do, each rounded to T, and added one after the other.
func (a *Analysis) addRanks(y *Value) {
	const mostRanks = 8
	p := PrecisionOf(y.DType)
	for i, v := range y.Values {
		y, v, part := y, float64(v), Sq(p.Ulp(float64(v)/math.Sqrt(mostRanks))/Unit)/12
		all := addition{y: v, squares: Sq(v)}
		y.Set(i, v, y.Variance(i)+mostRanks*part+p.partialSums(all, mostRanks))
	}
}

// withDenormals is x of BF16, whose denormal numbers may be taken for 0: they are their own deviations.
func (a *Analysis) withDenormals(x *Value) *Value {
	isDenormal := func(v float32) bool { return v != 0 && math.Abs(float64(v)) < leastNormal }
	if x.DType != tensor.BF16 || !slices.ContainsFunc(x.Values, isDenormal) {
		return x
	}
	y := *x
	y.sigma = a.errors.Make(tensor.F32, x.Shape...)
	y.copyDeviations(x, 0, len(x.Values))
	for i, v := range x.Values {
		if isDenormal(v) {
			y.sigma.Values[i] = deviation(x.Variance(i) + Sq(float64(v)/Unit))
		}
	}
	return &y
}

// RMSNorm implements model.Arithmetic, with r = 1/sqrt(mean(x²) + eps):
//
//	n = x·r:  v = r²·v_x + n²·(v_r + Σ(x²·v_x)/(Σx²)²), a rounding point;  · weight, exact
//
// An engine may round otherwise: see Points.
// v_r is 1.5², and more where the partial sums of the squares are large, as beside a massive one: see ofRoot.
// A serial sum of exact squares is reproduced; of others it adds n²·K/24, as one chain has K/6 of y² and r half of that
// error.
func (a *Analysis) RMSNorm(x *Value, weight *model.Weight, eps float64) *Value {
	y := a.result(x.DType, x.Shape...)
	w, deltas, p, operation := a.plain.Values(weight), a.deltas(weight), PrecisionOf(x.DType), a.operation(weight)
	x, way := a.read(x, operation)
	if a.points.Reference[operation] != "" {
		p = a.t
	}
	root := f32
	if p = rounds(p, way, Once); way == rstd16 {
		root = p
	}
	a.plain.Each(x.Rows(), 8*len(y.Values), func(t int) {
		row, from := x.Row(t), t*x.Width()
		r2, common := x.inverseRMS(t, eps, a.serial)
		r, vr := math.Sqrt(r2), 0.0
		if root != f32 {
			r, vr = root.point(float64(float32(r)), roughly(r, float64(r2*common)))
			r2, common = Sq(r), 0
		}
		for i, xi := range row {
			n := float64(float32(float64(xi) * r))
			v := float64(r2*x.Variance(from+i)) + float64(Sq(n)*common) + float64(Sq(float64(xi))*vr)
			n, v = point(p, n, roughly(n, v))
			wi := float64(w[i])
			out := float64(float32(n * wi))
			y.Set(from+i, out, exactly(out, float64(v*Sq(wi))+float64(Sq(n)*delta(deltas, i))))
		}
	})
	return y.inherit(x)
}

// inverseRMS returns the square of 1/sqrt(mean(x²) + eps) of row t, and its relative variance.
func (x *Value) inverseRMS(t int, eps float64, serial bool) (r2, relative float64) {
	row := x.Row(t)
	if !serial {
		r2, relative = inverseRMS(row, eps)
	} else {
		sum := 0.0
		for _, v := range row {
			sum = float64(float32(sum + float64(float32(Sq(float64(v))))))
		}
		r2, relative = 1/(sum/float64(len(row))+eps), 2.25
	}
	if x.sigma == nil {
		return r2, relative
	}
	sum, moved := 0.0, 0.0
	for i, v := range row {
		square := Sq(float64(v))
		sum += square
		moved += float64(square * x.Variance(t*len(row)+i))
	}
	if moved > 0 {
		relative += moved / Sq(sum)
		if serial {
			relative += float64(len(row)) / 24
		}
	}
	return r2, relative
}

// inverseRMS returns the square of 1/sqrt(mean(x²) + eps) of a row, and the relative variance that rounding gives it.
func inverseRMS(row []float32, eps float64) (r2, relative float64) {
	var squares lanes
	squares.addSquares(row)
	sum, v := squares.total()
	return 1 / (sum/float64(len(row)) + eps), ofRoot(sum, v)
}

// ofRoot is the relative variance of 1/√mean of numbers whose sum has a variance: half of the sum's error. The mean,
// eps, root and quotient have at most 1; with a sum in many short lanes all have at most 1.5².
func ofRoot(sum, v float64) float64 {
	if sum == 0 {
		return 2.25
	}
	return max(2.25, 1+v/Sq(sum)/4)
}

// UnitNorm implements model.Arithmetic, with r = 1/sqrt(mean(x²) + eps):
//
//	r:    v = r²·(v_r + Σ(x²·v_x)/(Σx²)²), a rounding point; v_r as RMSNorm
//	x·r:  v = r²·v_x + x²·v_r, exact
//
// The elements of a row share r's error. A product with the row has, of rounding its own sum, κ·y² and more, which
// covers that error, too: κ(K) is at least 2.25 for 14 terms or more, and more than K/96 of one massive square for up
// to 10,000; few outputs have more.
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

// Add implements model.Arithmetic: v = v_a + v_b. An engine may add shared experts to the unrounded sum of others.
func (a *Analysis) Add(x, z *Value) *Value {
	d := x.DType
	switch shared := a.way(ExpertsShared); {
	case !x.routed || !x.roundLater:
	case shared == oneSum || a.way(ExpertsFactor) == alpha:
		x = x.unrounded()
	case shared == Unknown:
		x = a.mayRound(x, d)
	}
	x, z = a.settle(x), a.settle(z)
	sum := a.plain.Add(x.wide(), z.wide())
	if x.sigma == nil && z.sigma == nil {
		sum.DType = d
		return &Value{Activation: sum, roundLater: true, keepsSum: a.readsSums()}
	}
	y := a.computed(sum, d)
	y.keepsSum = a.readsSums()
	for i, s := range y.Values {
		y.Set(i, float64(s), exactly(float64(s), x.Variance(i)+z.Variance(i)))
	}
	return y.inherit(x, z)
}

// readsSums reports whether a norm reads sums before they are rounded.
func (a *Analysis) readsSums() bool {
	reads := func(ways map[string]string) bool {
		return slices.ContainsFunc([]string{InputAddNorm, FinalAddNorm}, func(norm string) bool {
			return ways[norm] == Unknown || strings.HasPrefix(ways[norm], unrounded)
		})
	}
	return reads(a.points.Ways) || slices.ContainsFunc(slices.Collect(maps.Values(a.points.Layers)), reads)
}

// SwiGLU implements model.Arithmetic, with σ the logistic function and silu' = σ + silu·(1-σ):
//
//	silu(g):  v = silu'²·v_g + 0.3·v_g²·(2·silu”)², at most 1.21·v_g, + (1.5·silu)²·(1 + 0.1·min(g, 0)²), a rounding point
//	· up, exact
//
// A limit makes gates exactly equal. Their silu(g) has one error, which is common to them. An engine may round
// otherwise, and multiply with an expert's weight here: see Points. An engine that does not round gate and up has an
// exponential that may be off by 8 units.
func (a *Analysis) SwiGLU(gate, up *Value) *Value {
	d, way, exponential := gate.DType, a.way(a.last), 1.5
	p := rounds(PrecisionOf(d), way, Once, unrounded)
	switch {
	case d == tensor.F32 || a.last != ExpertsGLU:
	case way == unrounded:
		gate, up, exponential = gate.unrounded(), up.unrounded(), 8
	case way == Unknown:
		gate, up, exponential = a.mayRound(gate, d), a.mayRound(up, d), 8
	}
	var weights []float32 // of the rows' expert
	before := f32
	if with := a.way(ExpertsWeight); a.last == ExpertsGLU && (with == beforeRounded || with == beforeOnce) {
		if weights = a.points.Weights(a.lastWeight); len(weights) != gate.Rows() { // rows that did not choose the expert
			weights = nil
		}
		if with == beforeRounded {
			before = PrecisionOf(d)
		}
	}
	gate, up = a.settle(gate), a.settle(up)
	y := a.computed(a.plain.SiLU(gate.wide(), 1), d)
	limit := highest(gate.Values)
	if d == tensor.F32 && gate.limited(limit) {
		y.common, y.ColumnsShare = a.errors.Make(tensor.F32, y.Shape...), true
		clear(y.common.Values)
	}
	a.plain.Each(y.Rows(), 8*len(y.Values), func(t int) {
		weight, vw := 1.0, 0.0
		if weights != nil {
			weight, vw = a.ownWeight(float64(weights[t]), 0, PrecisionOf(d))
		}
		for i := t * y.Width(); i < (t+1)*y.Width(); i++ {
			g, s, vg := float64(gate.Values[i]), float64(y.Values[i]), gate.Variance(i)
			logistic := 0.5
			if g != 0 {
				logistic = s / g
			}
			slope := logistic + float64(s*(1-logistic))
			own := float64(Sq(exponential*s)*(1+float64(0.1*Sq(min(g, 0))))) + overflow(logistic, s)
			if y.common != nil && vg == 0 && gate.Values[i] == limit {
				y.common.Values[i], own = float32(math.Sqrt(own)*float64(up.Values[i])), 0
			}
			v := throughSiLU(g, slope, vg) + own
			s, v = point(p, s, roughly(s, v))
			s, v = times(s, v, float64(up.Values[i]), up.Variance(i))
			if weights != nil {
				s, v = point(before, s, v)
				s, v = times(s, v, weight, vw)
			}
			y.Set(i, s, v)
		}
	})
	if way == Unknown && a.last == ExpertsGLU && d != tensor.F32 {
		y = a.mayRound(y, d)
		y.DType = d
	}
	return y.inherit(gate, up)
}

// SiLU implements model.Arithmetic: with alpha 1 as SwiGLU. Otherwise, with s = σ(alpha·x),
//
//	alpha·x:  exact, a rounding point
//	s:        v = (s·(1-s))²·v of alpha·x + (1.5s)², a rounding point
//	x·s:      σ = s·σ_x + |x|·σ_s, as both may err together, exact
func (a *Analysis) SiLU(x *Value, alpha float32) *Value {
	x = a.settle(x)
	y, p, by := a.computed(a.plain.SiLU(x.wide(), alpha), x.DType), PrecisionOf(x.DType), float64(alpha)
	for i, n := range x.Values {
		if alpha == 1 {
			s, v := siluErrors(x.element(i), float64(y.Values[i]))
			y.Set(i, s, v)
			continue
		}
		n, z := float64(n), float64(n*alpha)
		z, v := point(p, z, exactly(z, x.Variance(i)*Sq(by)))
		s := float64(float32(1 / (1 + math.Exp(-z))))
		s, v = point(p, s, roughly(s, float64(Sq(s*(1-s))*v)+float64(2.25*Sq(s))))
		product := float64(float32(n * s))
		y.Set(i, product, exactly(product, Sq(s*math.Sqrt(x.Variance(i))+math.Abs(n)*math.Sqrt(v))))
	}
	return y.inherit(x)
}

// Multiply implements model.Arithmetic. The square of an uncertain value has twice the deviation of its product with
// another one.
func (a *Analysis) Multiply(x, z *Value, shift float32) *Value {
	x, z = a.settle(x), a.settle(z)
	y, p := a.result(x.DType, x.Shape...), PrecisionOf(x.DType)
	for i := range x.Values {
		b := z.element(i)
		if shift != 0 {
			b.y = float64(float32(b.y + float64(shift)))
			b.y, b.v = point(p, b.y, exactly(b.y, b.v))
		}
		product, v := times(float64(x.Values[i]), x.Variance(i), b.y, b.v)
		if x == z {
			v = exactly(product, 4*Sq(b.y)*b.v+3*Sq(b.v)*(Unit*Unit))
		}
		y.Set(i, product, v)
	}
	return y.inherit(x, z)
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

// throughSiLU is the variance of silu(x) that x's variance v causes, where silu' is slope. |silu'| is at most 1.1. With m the
// least |x| within λσ, |silu”| is at most 1/2 and at most e^-m·(2 + m), and e^-m at most (1 + m/8)^-8: a gate far below 0
// gives 0, however uncertain it is.
func throughSiLU(x, slope, v float64) float64 {
	bend := 1.0 // of 1/2
	if least := math.Abs(x) - Lambda*Unit*math.Sqrt(v); least > 0 {
		bend = min(1, 2*(2+least)/Sq(Sq(Sq(1+least/8))))
	}
	return min(float64(Sq(slope)*v)+float64(0.3*Unit*Unit*Sq(v)*Sq(bend)), 1.21*v)
}

// Softmax implements model.Arithmetic, with z = x - max:
//
//	a = v_x + 1 + z²/3     what each element does on its own
//	c = Σ p²·a + 1 + v_S   what acts on the whole row, the denominator S: shared; v_S as lanes.total
//	v = p²·(a + c)
func (a *Analysis) Softmax(x *Value) *Value {
	x = a.settle(x)
	y := a.softmax(x, a.plain.Softmax(x.wide()), nil)
	if a.last == Router {
		return a.scored(y)
	}
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
	y.shared, y.queries = make([]float64, y.Rows()), x.queries
	a.plain.Each(y.Rows(), 8*len(y.Values), func(t int) {
		row, from := x.Row(t), t*x.Width()
		top, none := math.Inf(-1), uncertain{math.Inf(-1), 0}
		if sink != nil {
			none = sink(t)
			top = none.y
		}
		top = max(top, float64(highest(row)))
		c, total, sum := 1.0, 0.0, lanes{}
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
			sum.add(i, p)
			y.Set(from+i, p, roughly(p, v))
		}
		all, ofSum := sum.total()
		if all > 0 {
			c += ofSum / Sq(all)
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

// Float32 implements model.Arithmetic. Logits that an engine does not round, or perhaps not, are not rounded before they are
// widened.
func (a *Analysis) Float32(x *Value) *Value {
	if x.roundLater && a.last == Router && a.points.Reference[Router] != "" && a.way(Router) != InT {
		x.DType = tensor.F32
	}
	x = a.settle(x)
	y := &Value{Activation: a.plain.Float32(x.Activation), sigma: x.sigma}
	return y.inherit(x)
}

// Reshape implements model.Arithmetic.
func (a *Analysis) Reshape(x *Value, shape ...int) *Value {
	if !x.routed { // by which shared experts are added
		x = a.settle(x)
	}
	y := Exact(a.plain.Reshape(x.Activation, shape...))
	y.routed, y.roundLater = x.routed, x.roundLater
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
