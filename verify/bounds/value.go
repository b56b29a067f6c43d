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
	// common are the deviations of neurons, in units of u, by one error that many of them have; sigma does not contain
	// it. It is nil if no limit cut the gates.
	common *model.Activation
	// roundLater says that the last rounding, to the dtype, is yet to be done.
	roundLater bool
	// ColumnsShare says that the elements of a column share an operand's errors: those of a row of
	// another stage, which the pack does not hold.
	ColumnsShare bool
	// queries are the queries of scores and probabilities, if an error of one of their numbers moves all scores of a row:
	// in BF16 and F16, and where an engine rounds queries.
	queries *queries
	// Float32Scores is, of attention in BF16 or F16 whose scores may have been rounded, the same value
	// with the variance that it has if they were not; nil elsewhere.
	Float32Scores *Value
	// squared are [x², v_x] of each row, of the keys and values of attention, in units of squaredUnit: all blocks of
	// queries multiply with them. nil before the first block.
	squared     *model.Activation
	squaredUnit float64
	// alike are the groups of keys whose values are alike, of each head; nil before the first block.
	alike [][][]int
	// keepsSum says that a norm may read the value before its last rounding; sum is the value before it was replaced by
	// the golden, in float32.
	keepsSum bool
	sum      *Value
	// routed says that the value is a sum of experts' outputs.
	routed bool
	// choice is, of a router's scores, the same in the dtype in which they choose experts; nil where that is the value's.
	choice *Value
	// Products are those, of what is not exact, whose result the value is a (weighted) sum of.
	Products []product
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
	x.Values[i], x.sigma.Values[i] = float32(y), 0
	if v != 0 {
		x.sigma.Values[i] = deviation(v)
	}
}

// deviation is the root of a variance, a finite number: errors larger than that are no excuse.
func deviation(v float64) float32 { return float32(min(math.Sqrt(v), math.MaxFloat32)) }

// copyDeviations gives x's elements from … to-1 the deviations of the same elements of another value.
func (x *Value) copyDeviations(of *Value, from, to int) {
	if of.sigma == nil {
		clear(x.sigma.Values[from:to])
	} else {
		copy(x.sigma.Values[from:to], of.sigma.Values[from:to])
	}
}

// wide is x for operations that do not round their result.
func (x *Value) wide() *model.Activation {
	return &model.Activation{Shape: x.Shape, Values: x.Values, DType: tensor.F32}
}

// product is down_proj of an MLP: the neurons that went in and what they were multiplied by.
type product struct {
	expert int       // number of the routed expert, -1 for other MLPs
	hidden []float32 // standard deviations of the neurons, in units of u
	equal  *classes  // classes of the neurons; nil if no two are equal
	common []float32 // deviations of the results by the neurons' common error, in units of u; nil if they have none
	down   *model.Linear
	// Of a routed expert: the tokens that chose it, and the weights of its outputs.
	tokens  []int
	weights []float32
}

// WithSum returns x, which a norm may read as the sum that it was before it was rounded.
func (x *Value) WithSum(sum *model.Activation) *Value {
	x.sum = Exact(sum)
	return x
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

// inherit returns y, whose columns share errors if an operand's columns do.
func (y *Value) inherit(operands ...*Value) *Value {
	y.ColumnsShare = y.ColumnsShare || slices.ContainsFunc(operands, func(x *Value) bool { return x.ColumnsShare })
	return y
}

// DistributeShared gives the errors that elements share to them.
func (x *Value) DistributeShared() {
	if x.common != nil {
		for i, y := range x.Values {
			x.Set(i, float64(y), x.Variance(i)+Sq(float64(x.common.Values[i])))
		}
		x.common = nil
	}
	for t := range x.shared {
		x.distributeShared(t)
	}
	x.shared = nil
}

// distributeShared gives the errors that row t shares to its elements.
func (x *Value) distributeShared(t int) {
	for i := t * x.Width(); i < (t+1)*x.Width(); i++ {
		if y := float64(x.Values[i]); y != 0 {
			x.Set(i, y, x.Variance(i)+float64(Sq(y)*x.shared[t]))
		}
	}
}

// Replace puts golden values in x's place if they are finite.
func (x *Value) Replace(want []float32) {
	if !AllFinite(want) {
		return
	}
	sum := x.sum
	if x.keepsSum && x.roundLater {
		sum = x.unrounded()
		if sum.Activation = copied(sum.Activation); sum.sigma != nil {
			sum.sigma = copied(sum.sigma)
		}
	}
	*x = Value{Activation: x.Activation, sum: sum}
	copy(x.Values, want)
}

// AllBelow reports whether all magnitudes are less than limit.
func AllBelow(numbers []float32, limit float64) bool { return float64(largest(numbers)) < limit }

// Rounded is x's element i as the reference holds it.
func (x *Value) Rounded(i int) float32 { return rounded(x.Values[i], x.DType) }

// copied is a with memory of its own.
func copied(a *model.Activation) *model.Activation {
	return &model.Activation{Shape: a.Shape, Values: slices.Clone(a.Values), DType: a.DType}
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
func roughly(y, v float64) float64 { return float64(v) + 2*Sq(y)/3 + denormal + overflow(y, y) }

// overflow is the variance of y, which has a factor that is a logistic function or an exponential: the reference may have 0
// in place of a denormal one. It has 1/(1 + e^88.8) = 0, as e^88.8 is infinite in float32.
func overflow(factor, y float64) float64 {
	if math.Abs(factor) < leastNormal {
		return Sq(y / Unit)
	}
	return 0
}

// denormal is the variance of one unit of the smallest float32 values, which are spaced
// wider than 2u of their size.
const denormal = denormalSigma * denormalSigma

// denormalSigma is its root.
const denormalSigma = 0x1p-149 / Unit

// times is the product of two uncertain values: v = v_a·b² + v_b·a² + v_a·v_b.
func times(x, vx, z, vz float64) (float64, float64) {
	y := float64(float32(x * z))
	return y, exactly(y, float64(vx*Sq(z))+float64(vz*Sq(x))+float64(vx*vz*(Unit*Unit)))
}

// uncertain is a number and its variance, in units of u².
type uncertain struct{ y, v float64 }

// element is element i.
func (x *Value) element(i int) uncertain { return uncertain{float64(x.Values[i]), x.Variance(i)} }

// queries are the queries first … first+n-1 of q, and keys, whose products times by are scores.
type queries struct {
	q, k     *Value
	first, n int
	by       float64
}

// classes groups the columns of a value. Columns of one class have equal numbers and equal deviations in every row.
type classes struct {
	class []int // class of each column; classes are numbered by their first columns
	first []int // first column of each class
}

// unrounded is x as an operation reads it that leaves out x's last rounding.
func (x *Value) unrounded() *Value {
	x.DistributeShared()
	y := *x
	y.Activation, y.roundLater = x.wide(), false
	return &y
}
