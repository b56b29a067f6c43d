package verify

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
)

// Mistakes of the reference's arithmetic: products of float32 numbers that a GPU, or a setting of
// torch, rounded to fewer bits first.

// productStages are what a product is first seen at.
var productStages = slices.Concat(mlpStages, gateStages, upStages, attendStages,
	[]string{pack.GateLogits, pack.Logits, pack.ExpertOutput, pack.PredictedFrom, pack.PredictedLogits}, stagesOf(projections))

// stagesOf are the stages of projections of the attention.
func stagesOf(projections []string) (kinds []string) {
	for _, p := range projections {
		kinds = append(kinds, stageOf(p)...)
	}
	return kinds
}

// productMistakes are products of TF32 and of BF16 numbers, to nearest or cut off.
func productMistakes() (list []mistake) {
	for _, cut := range []bool{false, true} {
		list = append(list,
			mistake{id: "tf32-products", kinds: productStages, unless: "tf32-products",
				undo: undoShortProducts(11, cut, "TF32 numbers, of 10 bits of mantissa (allow_tf32, or float32_matmul_precision high)")},
			mistake{id: "bf16-products", kinds: productStages, unless: "bf16-products",
				undo: undoShortProducts(8, cut, "BF16 numbers, of 7 bits of mantissa (float32_matmul_precision medium)")})
	}
	return list
}

// undoShortProducts rounds the operands of all products of a float32 reference to so many
// significant bits.
func undoShortProducts(bits int, cut bool, numbers string) func(x *trial) string {
	return func(x *trial) string {
		if x.failed.tracer.pack.DType != tensor.F32 {
			return ""
		}
		x.around = func(a arithmetic) arithmetic {
			return &shortProducts{a, precision{bits, -126, math.MaxFloat32}, cut}
		}
		return fmt.Sprintf("the reference ran in float32, but its products are those of %s", numbers)
	}
}

// shortProducts is an arithmetic whose products, scores and contexts round their operands first.
type shortProducts struct {
	arithmetic
	operands precision
	cut      bool // toward zero; to nearest, ties to even, if not
}

// coarser is by how much the sums of such products may have larger errors than float32 sums, as
// standard deviations: tensor cores cut sums off. Rounding operands to 11 bits moves a sum of K terms by
// some 2^11/√κ(K) of its standard deviations, from 200 for K = 10,000 up, of 8 bits by eight times as
// much: a sum whose operands were not rounded stays beyond the limit.
const coarser = 4

// Linear rounds x and the weight.
func (s *shortProducts) Linear(x *value, l *model.Linear) *value {
	rounded := *l
	if f := l.Weight.DType; !(f == tensor.BF16 || f == tensor.F16 && s.operands.bits == 11) { // of no more bits
		values := model.NewPlain(model.Options{DType: tensor.F32}).Values(&l.Weight)
		rounded.Weight = model.Weight{Name: l.Weight.Name, Tensor: tensor.Tensor{DType: tensor.F32, Shape: l.Weight.Shape}}
		for _, v := range values {
			r, _ := s.point(float64(v), 0)
			rounded.Weight.Data = binary.LittleEndian.AppendUint32(rounded.Weight.Data, math.Float32bits(float32(r)))
		}
	}
	return s.sums(s.arithmetic.Linear(s.round(x), &rounded))
}

// Scores rounds queries and keys.
func (s *shortProducts) Scores(q, k *value, first, n int, by *model.Scoring) *value {
	return s.sums(s.arithmetic.Scores(s.round(q), s.round(k), first, n, by))
}

// Context rounds probabilities and values.
func (s *shortProducts) Context(probs, vT *value) *value {
	return s.sums(s.arithmetic.Context(s.round(probs), s.round(vT)))
}

// sums gives a sum the errors that such sums may have.
func (s *shortProducts) sums(y *value) *value {
	for i := range y.deviations() {
		y.sigma.Values[i] *= coarser
	}
	return y
}

// round is x with its elements rounded.
func (s *shortProducts) round(x *value) *value {
	x.spread()
	y, a := *x, *x.Activation
	a.Values, y.Activation = slices.Clone(a.Values), &a
	if x.sigma != nil {
		sigma := *x.sigma
		sigma.Values, y.sigma = slices.Clone(sigma.Values), &sigma
	}
	for i, v := range a.Values {
		r, variance := s.point(float64(v), x.v(i))
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
	r, off := s.cutOff(y), bounds.Lambda*unit*math.Sqrt(v)
	if s.cutOff(y-off) == r && s.cutOff(y+off) == r {
		return r, 0
	}
	return r, sq(s.operands.ulp(y) / unit)
}

// cutOff is y without the bits that operands have not.
func (s *shortProducts) cutOff(y float64) float64 {
	u := s.operands.ulp(y)
	return math.Trunc(y/u) * u
}
