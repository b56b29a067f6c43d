package bounds

import (
	"encoding/binary"
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// shortProducts is an arithmetic whose products, scores and contexts round their operands first.
type shortProducts struct {
	Arithmetic
	operands precision
	cut      bool // toward zero; to nearest, ties to even, if not
}

// Linear rounds x and the weight.
func (s *shortProducts) Linear(x *Value, l *model.Linear) *Value {
	rounded := *l
	if f := l.Weight.DType; !(f == tensor.BF16 || f == tensor.F16 && s.operands.bits == 11) { // of no more bits
		values := model.NewPlain(model.Options{DType: tensor.F32}).Values(&l.Weight)
		rounded.Weight = model.Weight{Name: l.Weight.Name, Tensor: tensor.Tensor{DType: tensor.F32, Shape: l.Weight.Shape}}
		for _, v := range values {
			r, _ := s.point(float64(v), 0)
			rounded.Weight.Data = binary.LittleEndian.AppendUint32(rounded.Weight.Data, math.Float32bits(float32(r)))
		}
	}
	return s.sums(s.Arithmetic.Linear(s.round(x), &rounded))
}

// Scores rounds queries and keys.
func (s *shortProducts) Scores(q, k *Value, first, n int, by *model.Scoring) *Value {
	return s.sums(s.Arithmetic.Scores(s.round(q), s.round(k), first, n, by))
}

// Context rounds probabilities and values.
func (s *shortProducts) Context(probs, vT *Value) *Value {
	return s.sums(s.Arithmetic.Context(s.round(probs), s.round(vT)))
}

// sums gives a sum the errors that such sums may have.
func (s *shortProducts) sums(y *Value) *Value {
	for i := range y.deviations() {
		y.sigma.Values[i] *= coarser
	}
	return y
}

// round is x with its elements rounded.
func (s *shortProducts) round(x *Value) *Value {
	x.DistributeShared()
	y, a := *x, *x.Activation
	a.Values, y.Activation = slices.Clone(a.Values), &a
	if x.sigma != nil {
		sigma := *x.sigma
		sigma.Values, y.sigma = slices.Clone(sigma.Values), &sigma
	}
	for i, v := range a.Values {
		r, variance := s.point(float64(v), x.Variance(i))
		if a.Values[i] = float32(r); x.sigma != nil {
			y.sigma.Values[i] = float32(math.Sqrt(variance))
		}
	}
	return &y
}

// point rounds y of variance v, in units of u². Where y may be off by so much that it is cut to
// another number, the result carries the variance of that.
func (s *shortProducts) point(y, v float64) (float64, float64) {
	if !s.cut {
		return s.operands.point(y, v)
	}
	r, off := s.cutOff(y), Lambda*Unit*math.Sqrt(v)
	if s.cutOff(y-off) == r && s.cutOff(y+off) == r {
		return r, 0
	}
	return r, Sq(s.operands.Ulp(y) / Unit)
}

// cutOff is y without the bits that operands have not.
func (s *shortProducts) cutOff(y float64) float64 {
	u := s.operands.Ulp(y)
	return math.Trunc(y/u) * u
}

// NewShortProducts rounds the operands of products to so many significant bits, toward zero or to nearest.
func NewShortProducts(a Arithmetic, bits int, cut bool) model.Arithmetic[*Value] {
	return &shortProducts{a, precision{bits, -126, math.MaxFloat32}, cut}
}

// coarser is by how much the sums of such products may have larger errors than float32 sums, as
// standard deviations: tensor cores cut sums off. Rounding operands to 11 bits moves a sum of K terms by
// some 2^11/√κ(K) of its standard deviations, from 200 for K = 10,000 up, of 8 bits by eight times as
// much: a sum whose operands were not rounded stays beyond the limit.
const coarser = 4
