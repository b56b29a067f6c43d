package bounds

import (
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// Arithmetic is one of values with variances.
type Arithmetic = model.Arithmetic[*Value]

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

// sums are the sums of K terms. One chain rounds K partial sums, each with variance 1/6 of its square;
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

// sumsOf are the sums of a product with x. torch computes few rows by dot products, without blocks: four
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

// variance of a sum y is the variance of rounding its partial sums, from two estimates:
//
//	v_κ = κ·(squares + y²)   of terms in random order, whose squares have this sum
//	v_E = partial/6          of terms in natural order: partial is the sum of the squares of their
//	                         partial sums, in chains of 512 terms or in one, and of the totals
//	v   = v_κ, and where v_E is larger + 1.5·(v_E - v_κ)
func (s sums) variance(y, partial, squares float64) float64 {
	random, ordered := float64(s.kappa*(squares+Sq(y))), s.ordered*partial
	return random + float64(ordersDiffer*max(0, ordered-random))
}

// addition is a sum whose terms are added in their natural order.
type addition struct{ y, v, partial, squares float64 }

// add adds a term y of variance v.
func (s *addition) add(y, v float64) {
	s.y += y
	s.v += v
	s.partial += Sq(s.y)
	s.squares += Sq(y)
}

// variance is the variance of the sum, that of its terms included.
func (s *addition) variance(of sums) float64 {
	return s.v + of.variance(s.y, s.partial+Sq(s.y), s.squares)
}

// ordersDiffer is the factor by which a reference's own sums may exceed v_E. v_E is no upper estimate,
// but the variance of chains of just 512 terms whose partial sums are spread over a binade: where
// these lie near its lower end each is rounded by up to u²/3 of its square, and chains of other
// lengths have other partial sums. Measured of terms in runs of one sign: RMS of z up to 1.11 with
// a factor of 1, 1.03 of torch's.
const ordersDiffer = 1.5

// fewRows is up to how many rows a thread of torch takes dot products.
const fewRows = 3

// result returns a value whose elements are to be set.
func (a *Analysis) result(d tensor.DType, shape ...int) *Value {
	return &Value{Activation: a.plain.Make(d, shape...), sigma: a.errors.Make(tensor.F32, shape...), roundLater: true}
}

// computed is what Plain computed in float32, as a value of dtype d whose variances are to
// be set.
func (a *Analysis) computed(y *model.Activation, d tensor.DType) *Value {
	y.DType = d
	return &Value{Activation: y, sigma: a.errors.Make(tensor.F32, y.Shape...), roundLater: true}
}

// settle applies x's last rounding if it is still due, and distributes the errors that its rows share.
func (a *Analysis) settle(x *Value) *Value {
	x.DistributeShared()
	if x.roundLater && x.DType != tensor.F32 {
		a.round(x)
	}
	x.roundLater = false
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

// scratch returns what f made, and takes back what else f took from a.errors.
func (a *Analysis) scratch(f func() *model.Activation) *model.Activation {
	return a.errors.Scope(&model.Activation{}, func(*model.Activation) *model.Activation { return f() })
}

// scales are powers of two that bring the numbers of each row to at most 1, so that squares of
// small ones do not vanish.
func scales(x *Value) []float32 {
	all := make([]float32, x.Rows())
	for t := range all {
		_, e := math.Frexp(float64(largest(x.Row(t))))
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

// Roundings are the weights that a conversion rounded to the dtype they are stored in, and how.
type Roundings map[string]tensor.Rounding

// AllRounded says that all elements of a weight were rounded by an operation.
func AllRounded(by string) tensor.Rounding { return tensor.Rounding{By: by} }
