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

// Value is a tensor as the analysis has it: what was computed and, of each element, how far
// a correct evaluation of the reference may be from that.
type Value struct {
	*model.Activation // computed; in float32 if unrounded, whatever the dtype

	// sigma are standard deviations in units of u, as many as values; nil where all
	// elements are exact.
	sigma *model.Activation
	// shared is, of probabilities, the relative variance per row that all elements of the
	// row have in common, in units of u²; nil of other values.
	shared []float64
	// unrounded says that the last rounding, to the dtype, is yet to be done.
	unrounded bool
	// Together says that the elements of a column share an operand's errors: those of a row of
	// another stage, which the pack does not hold.
	Together bool
	// Float32Scores is, of attention in BF16 or F16 whose scores may have been rounded, the same value
	// with the variance that it has if they were not; nil elsewhere.
	Float32Scores *Value
	// Products are those, of what is not exact, whose result the value is a (weighted) sum of.
	Products []product
}

// product is down_proj of an MLP: the neurons that went in and what they were multiplied by.
type product struct {
	expert int       // number of the routed expert, -1 for other MLPs
	hidden []float32 // standard deviations of the neurons, in units of u
	down   *model.Linear
	// Of a routed expert: the tokens that chose it, and the weights of its outputs.
	tokens  []int
	weights []float32
}

// Variance is the variance of element i, in units of u².
func (x *Value) Variance(i int) float64 {
	if x.sigma == nil {
		return 0
	}
	return Sq(float64(x.sigma.Values[i]))
}

// deviations are the standard deviations, in units of u; nil where all are 0.
func (x *Value) deviations() []float32 {
	if x.sigma == nil {
		return nil
	}
	return x.sigma.Values
}

// Set sets element i to y, with variance v.
func (x *Value) Set(i int, y, v float64) {
	x.Values[i], x.sigma.Values[i] = float32(y), float32(math.Sqrt(v))
}

// wide is x for operations that do not round their result.
func (x *Value) wide() *model.Activation {
	return &model.Activation{Shape: x.Shape, Values: x.Values, DType: tensor.F32}
}

// Sq is x², rounded: no machine fuses it with a sum.
func Sq(x float64) float64 { return float64(x * x) }

// exactly is the variance v of one correctly rounded float32 operation's result y: what is
// computed of exact operands is reproduced, not bounded.
func exactly(y, v float64) float64 {
	if v == 0 {
		return 0
	}
	return float64(v) + Sq(y)/3 + denormal
}

// roughly is the variance of a result y beside v where the reference's float32 rounding and
// our own may differ.
func roughly(y, v float64) float64 { return float64(v) + 2*Sq(y)/3 + denormal }

// denormal is the variance of one unit of the smallest float32 values, which are spaced
// wider than 2u of their size.
const denormal = 0x1p-149 * 0x1p-149 / (Unit * Unit)

// Analysis is the arithmetic of running error analysis: Plain's values, and beside each a
// variance. Formulas in its comments are in units of u² for variances.
//
// An operation's last rounding is put off until its result is used: a trace sees what was
// computed before it, with its variance.
type Analysis struct {
	plain  *model.Plain // computes values, unrounded
	errors *model.Plain // computes variances, in float32
	chain  bool         // the reference sums in one chain, not in blocks
	fused  bool         // the reference may leave out roundings of scores and probabilities, as sdpa does
	few    int          // rows up to which the reference's products are dot products
	noise  float64      // factor on the variance of products: 2 if our own sums are float32
	// rounded are weights that the reference had before they were rounded.
	rounded Roundings
	// Decoded returns the half steps of a weight that was decoded from a rounded dtype; nil if
	// it was not. It is nil if there is none.
	Decoded func(name string) []float32
}

// NewAnalysis returns an arithmetic for one pass of a reference of dtype o.DType, with
// weights some of which were rounded since.
func NewAnalysis(o model.Options, rounded Roundings) *Analysis {
	a := &Analysis{plain: model.NewPlain(o), chain: o.DType == tensor.F16, few: fewRows, noise: 1, rounded: rounded}
	if o.Accumulate == model.Float32 {
		a.noise = 2
	}
	o.Accumulate = model.Float32
	a.errors = model.NewPlain(o)
	return a
}

// SetReference sets the reference's number of threads, and whether its attention is fused, as sdpa is.
func (a *Analysis) SetReference(threads int, fused bool) {
	a.few, a.fused = fewRows*max(1, threads), fused
}

// Close takes all memory back. Nothing that the arithmetic gave must be used any more.
func (a *Analysis) Close() {
	a.plain.Close(nil)
	a.errors.Close(nil)
}

// sums is how the reference adds up the terms of a sum, as far as its rounding errors depend on that.
type sums struct {
	kappa    float64 // κ: variance of terms in random order, over Σ(w·x)² + y²
	ordered  float64 // variance of terms in natural order, over the squares of their partial sums
	oneChain bool    // these are of one chain, not of chains of 512 terms and their totals
}

// sums are those of K terms. One chain rounds K partial sums, each with variance 1/6 of its square;
// blocks have at most 512, and K/64 totals:
//
//	κ(K) = (min(K, 512) + K/64)/6, of one chain K/6
func (a *Analysis) sums(k int) sums {
	terms := float64(k)
	if !a.chain {
		terms = min(terms, 512) + terms/64
	}
	return sums{a.noise * terms / 6, a.noise / 6, a.chain}
}

// sumsOf are those of a product with x. Of few rows torch takes dot products, without blocks: four
// sums of K/4 terms each, as was measured of torch 2.3 and 2.8 for 512 to 7168 terms, up to three
// rows for each thread. Their partial sums are at most half of those of one chain, in the mean of
// squares.
func (a *Analysis) sumsOf(x *Value) sums {
	s := a.sums(x.Width())
	if x.Rows() <= a.few && !a.chain {
		s = sums{max(s.kappa, a.noise*float64(x.Width())/4/6), s.ordered / 4, true}
	}
	return s
}

// variance of a sum y is that of rounding its partial sums, from two estimates:
//
//	v_κ = κ·(squares + y²)   of terms in random order, whose squares have this sum
//	v_E = partial/6          of terms in natural order: partial is the sum of the squares of their
//	                         partial sums, in chains of 512 terms or in one, and of the totals
//	v   = v_κ, and where v_E is larger + 1.5·(v_E - v_κ)
func (s sums) variance(y, partial, squares float64) float64 {
	random, ordered := float64(s.kappa*(squares+Sq(y))), s.ordered*partial
	return random + float64(ordersDiffer*max(0, ordered-random))
}

// ordersDiffer is how much more than v_E a reference's own sums may have. v_E is no upper estimate,
// but the variance of chains of just 512 terms whose partial sums are spread over a binade: where
// these lie near its lower end each is rounded by up to u²/3 of its square, and chains of other
// lengths have other partial sums. Measured of terms in runs of one sign: RMS of z up to 1.11 with
// a factor of 1, 1.03 of torch's.
const ordersDiffer = 1.5

// fewRows is up to how many rows a thread of torch takes dot products.
const fewRows = 3

// result returns a value whose elements are to be set.
func (a *Analysis) result(d tensor.DType, shape ...int) *Value {
	return &Value{Activation: a.plain.Make(d, shape...), sigma: a.errors.Make(tensor.F32, shape...), unrounded: true}
}

// computed is what Plain computed in float32, as a value of dtype d whose variances are to
// be set.
func (a *Analysis) computed(y *model.Activation, d tensor.DType) *Value {
	y.DType = d
	return &Value{Activation: y, sigma: a.errors.Make(tensor.F32, y.Shape...), unrounded: true}
}

// after returns y, whose columns share errors if those of an operand do.
func (y *Value) after(operands ...*Value) *Value {
	y.Together = y.Together || slices.ContainsFunc(operands, func(x *Value) bool { return x.Together })
	return y
}

// Exact is a value without errors.
func Exact(y *model.Activation) *Value { return &Value{Activation: y} }

// WithErrors is a value whose elements have these standard deviations.
func WithErrors(y *model.Activation, deviation func(i int) float64) *Value {
	x := &Value{Activation: y, sigma: &model.Activation{Shape: y.Shape, Values: make([]float32, len(y.Values))}}
	for i := range y.Values {
		x.sigma.Values[i] = float32(deviation(i) / Unit)
	}
	return x
}

// use does x's last rounding, if that is yet to be done, and spreads what its rows share.
func (a *Analysis) use(x *Value) *Value {
	x.DistributeShared()
	if x.unrounded && x.DType != tensor.F32 {
		a.round(x)
	}
	x.unrounded = false
	return x
}

// round makes each element of x a rounding point.
func (a *Analysis) round(x *Value) {
	p := PrecisionOf(x.DType)
	if x.sigma == nil {
		for i, y := range x.Values {
			x.Values[i] = tensor.Rounded(y, x.DType)
		}
		return
	}
	a.plain.Each(x.Rows(), 4*len(x.Values), func(t int) {
		for i := t * x.Width(); i < (t+1)*x.Width(); i++ {
			r, v := p.point(float64(x.Values[i]), x.Variance(i))
			x.Set(i, r, v)
		}
	})
}

// point is a rounding point inside an operation on values of dtype d; in float32 there is
// nothing to round.
func point(d tensor.DType, y, v float64) (float64, float64) {
	if d == tensor.F32 {
		return y, v
	}
	return PrecisionOf(d).point(y, v)
}

// Scope implements model.Arithmetic.
func (a *Analysis) Scope(x *Value, f func(x *Value) *Value) *Value {
	var y *Value
	a.plain.Scope(x.Activation, func(*model.Activation) *model.Activation {
		a.errors.Scope(orNone(x.sigma), func(*model.Activation) *model.Activation {
			y = f(x)
			for i, p := range y.Products {
				y.Products[i].hidden = slices.Clone(p.hidden)
			}
			if n := y.Float32Scores; n != nil {
				n.Activation, n.sigma = copied(n.Activation), copied(n.sigma)
			}
			return orNone(y.sigma)
		})
		return y.Activation
	})
	return y
}

func orNone(sigma *model.Activation) *model.Activation {
	if sigma == nil {
		return &model.Activation{}
	}
	return sigma
}

// Embed implements model.Arithmetic. Casting a weight to the compute dtype is exact.
func (a *Analysis) Embed(w *model.Weight, ids []int) *Value {
	return a.embedded(a.plain.Embed(w, ids), w, ids)
}

// Linear implements model.Arithmetic:
//
//	v = Σ w²·v_x + sums.variance;  with a bias + y²/3 for the sum without it
//	with a weight that was rounded + Σ h²/3·(x² + v_x), h half a unit of w
func (a *Analysis) Linear(x *Value, l *model.Linear) *Value {
	x = a.use(x)
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
	return y.after(x)
}

// scratch returns what f made, and takes back what else f took from a.errors.
func (a *Analysis) scratch(f func() *model.Activation) *model.Activation {
	return a.errors.Scope(&model.Activation{}, func(*model.Activation) *model.Activation { return f() })
}

// scales are powers of two that bring the numbers of each row to at most 1, so that squares of
// small ones do not vanish.
func scales(x *Value) []float32 {
	all := make([]float32, x.Rows())
	for t := range all {
		largest := float32(0)
		for _, y := range x.Row(t) {
			largest = max(largest, y, -y)
		}
		_, e := math.Frexp(float64(largest))
		all[t] = float32(math.Ldexp(1, max(-120, min(-e, 120))))
	}
	return all
}

// perRow are f of x's elements and their variances, in units of the largest of each row, so that
// small ones do not vanish.
func (a *Analysis) perRow(x *Value, f func(y, v float64) float64) (terms []float32, units []float64) {
	all := a.errors.Make(tensor.F32, x.Shape...)
	units = make([]float64, x.Rows())
	a.plain.Each(x.Rows(), 2*len(x.Values), func(t int) {
		from := t * x.Width()
		for i, y := range x.Row(t) {
			units[t] = max(units[t], f(float64(y), x.Variance(from+i)))
		}
		if units[t] == 0 {
			units[t] = 1
		}
		for i, y := range x.Row(t) {
			all.Values[from+i] = float32(f(float64(y), x.Variance(from+i)) / units[t])
		}
	})
	return all.Values, units
}

// RMSNorm implements model.Arithmetic, with r = 1/sqrt(mean(x²) + eps):
//
//	n = x·r:  v = r²·v_x + n²·(1.5² + Σ(x²·v_x)/(Σx²)²), a rounding point;  · weight, exact
func (a *Analysis) RMSNorm(x *Value, weight *model.Weight, eps float64) *Value {
	x = a.use(x)
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
	return y.after(x)
}

// Add implements model.Arithmetic: v = v_a + v_b.
func (a *Analysis) Add(x, z *Value) *Value {
	x, z = a.use(x), a.use(z)
	sum := a.plain.Add(x.wide(), z.wide())
	if x.sigma == nil && z.sigma == nil {
		sum.DType = x.DType
		return &Value{Activation: sum, unrounded: true}
	}
	y := a.computed(sum, x.DType)
	for i, s := range y.Values {
		y.Set(i, float64(s), exactly(float64(s), x.Variance(i)+z.Variance(i)))
	}
	return y.after(x, z)
}

// times is the product of two uncertain values: v = v_a·b² + v_b·a² + v_a·v_b.
func times(x, vx, z, vz float64) (float64, float64) {
	y := float64(float32(x * z))
	return y, exactly(y, float64(vx*Sq(z))+float64(vz*Sq(x))+float64(vx*vz*(Unit*Unit)))
}

// SwiGLU implements model.Arithmetic, with σ the logistic function and silu' = σ + silu·(1-σ):
//
//	silu(g):  v = silu'²·v_g + 0.3·v_g² + (1.5·silu)²·(1 + 0.1·min(g, 0)²), a rounding point
//	· up, exact
func (a *Analysis) SwiGLU(gate, up *Value) *Value {
	gate, up = a.use(gate), a.use(up)
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
	return y.after(gate, up)
}

// Softmax implements model.Arithmetic, with z = x - max:
//
//	a = v_x + 1 + z²/3     what each element does on its own
//	c = Σ p²·a + 1         what acts on the whole row, the denominator: shared
//	v = p²·(a + c)
func (a *Analysis) Softmax(x *Value) *Value {
	x = a.use(x)
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
	return y.after(x)
}

// Float32 implements model.Arithmetic.
func (a *Analysis) Float32(x *Value) *Value {
	x = a.use(x)
	y := &Value{Activation: a.plain.Float32(x.Activation), sigma: x.sigma}
	return y.after(x)
}

// Reshape implements model.Arithmetic.
func (a *Analysis) Reshape(x *Value, shape ...int) *Value {
	x = a.use(x)
	y := Exact(a.plain.Reshape(x.Activation, shape...))
	if x.sigma != nil {
		y.sigma = a.errors.Reshape(x.sigma, shape...)
	}
	return y.after(x)
}

// Move implements model.Arithmetic. What is yet to be rounded in all operands is put off
// further.
func (a *Analysis) Move(m *model.Move, operands ...*Value) *Value {
	values, sigmas, allExact := make([]*model.Activation, len(operands)), make([]*model.Activation, len(operands)), true
	putOff := !slices.ContainsFunc(operands, func(x *Value) bool { return !x.unrounded })
	for i, x := range operands {
		if x.DistributeShared(); !putOff {
			a.use(x)
		}
		values[i] = x.Activation
		allExact = allExact && x.sigma == nil
	}
	y := Exact(a.plain.Move(m, values...))
	y.unrounded = putOff
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
	return y.after(operands...)
}

// Replace puts golden values in x's place, if they are finite.
func (x *Value) Replace(want []float32) {
	if AllFinite(want) {
		*x = Value{Activation: x.Activation}
		copy(x.Values, want)
	}
}

// Rounded are x's values as the reference holds them: its own, if they are these.
func (x *Value) Rounded() []float32 {
	if !x.unrounded || x.DType == tensor.F32 {
		return x.Values
	}
	rounded := make([]float32, len(x.Values))
	for i, v := range x.Values {
		rounded[i] = tensor.Rounded(v, x.DType)
	}
	return rounded
}

// Arithmetic is one of values with variances.
type Arithmetic = model.Arithmetic[*Value]

// DistributeShared spreads what rows share over their elements.
func (x *Value) DistributeShared() {
	for i, y := range x.Values {
		if x.shared == nil {
			return
		}
		x.Set(i, float64(y), x.Variance(i)+float64(Sq(float64(y))*x.shared[i/x.Width()]))
	}
	x.shared = nil
}
