package bounds

import (
	"encoding/binary"
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// Operands is what a reference does to float32 operands of products.
type Operands int

// The ways of operands.
const (
	Whole       Operands = iota // takes them as they are
	Nearest                     // rounds them to nearest, ties to even
	CutOff                      // rounds them toward zero
	SomeRounded                 // rounds some of them in a way that is not known
)

// TF32Bits and BF16Bits are the significant bits of such operands.
const TF32Bits, BF16Bits = 11, 8

// shortProducts is an arithmetic whose products, scores and contexts round their operands first, if these are float32.
type shortProducts struct {
	Arithmetic
	operands *precision
	how      Operands
}

// Linear rounds x and the weight.
func (s *shortProducts) Linear(x *Value, l *model.Linear) *Value {
	if x.DType != tensor.F32 {
		return s.Arithmetic.Linear(x, l)
	}
	rounded := *l
	if f := l.Weight.DType; s.how != SomeRounded && !(f == tensor.BF16 || f == tensor.F16 && s.operands.bits == 11) { // of no more bits
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
	if q.DType != tensor.F32 {
		return s.Arithmetic.Scores(q, k, first, n, by)
	}
	return s.sums(s.Arithmetic.Scores(s.round(q), s.round(k), first, n, by))
}

// Context rounds probabilities and values.
func (s *shortProducts) Context(probs, vT *Value) *Value {
	if probs.DType != tensor.F32 {
		return s.Arithmetic.Context(probs, vT)
	}
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
	y.squared, y.alike = nil, nil
	a.Values, y.Activation = slices.Clone(a.Values), &a
	if x.sigma != nil || s.how == SomeRounded {
		y.sigma = &model.Activation{Shape: a.Shape, Values: make([]float32, len(a.Values))}
	}
	for i, v := range a.Values {
		r, variance := s.point(float64(v), x.Variance(i))
		if a.Values[i] = float32(r); y.sigma != nil {
			y.sigma.Values[i] = float32(math.Sqrt(variance))
		}
	}
	return &y
}

// point rounds y of variance v, in units of u². Where y may be off by so much that it is cut to
// another number, the result carries the variance of that. An operand that may have been rounded, as may the weight that
// it is multiplied with, loses up to 2^-(bits-1) of itself, of which a third is the mean square.
func (s *shortProducts) point(y, v float64) (float64, float64) {
	switch s.how {
	case Nearest:
		return s.operands.point(y, v)
	case SomeRounded:
		return y, v + Sq(math.Ldexp(y, 1-s.operands.bits)/Unit)*2/3
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

// NewShortProducts rounds float32 operands of products to so many significant bits.
func NewShortProducts(a Arithmetic, bits int, how Operands) Arithmetic {
	return &shortProducts{a, newPrecision(bits, -126, math.MaxFloat32), how}
}

// coarser is by how much the sums of such products may have larger errors than float32 sums, as
// standard deviations: tensor cores cut sums off. Rounding operands to 11 bits moves a sum of K terms by
// some 2^11/√κ(K) of its standard deviations, from 200 for K = 10,000 up, of 8 bits by eight times as
// much: a sum whose operands were not rounded stays beyond the limit.
const coarser = 4

// Schedule is the order in which a sum over K terms is added up, and where it is rounded.
type Schedule struct {
	Parts  int  // number of parts of K; each partial sum is rounded to 16 bits
	Even   bool // each part has K/parts terms; otherwise a multiple of 32 terms, the last part fewer
	Narrow bool // partial sums are added in 16 bits, one after the other; otherwise in float32
	Terms  int  // number of terms after which one 16-bit accumulator is rounded; 0 with Parts
}

// NewReducedSums adds the products of a up by the schedule, with a rounding point at each rounding of
// the schedule.
func NewReducedSums(a Arithmetic, s Schedule) Arithmetic { return &reducedSums{a, s} }

// Cuts reports whether the schedule cuts sums of k terms, and not where its uneven twin does.
func (s Schedule) Cuts(k int) bool {
	n := s.part(k)
	if s.Even {
		s.Even = false
		return n < k && n != s.part(k)
	}
	return n < k
}

// part is the number of terms in each part of a sum of k terms; k if the sum is not cut.
func (s Schedule) part(k int) int {
	switch {
	case s.Terms > 0:
		return min(s.Terms, k)
	case s.Even && k%s.Parts == 0:
		return k / s.Parts
	case s.Even:
		return k
	}
	const together = 32
	n := (k + s.Parts*together - 1) / (s.Parts * together) * together
	if n*(s.Parts-1) >= k {
		return k // fewer parts than s.Parts
	}
	return n
}

// reducedSums is an arithmetic that adds its products up by a schedule. It takes rounded weights for
// the reference's own: that only makes limits narrower.
type reducedSums struct {
	Arithmetic
	Schedule
}

// Linear adds x·weightᵀ up part by part, and the bias in float32 at the end. Products in float32,
// such as a gate's, stay as they are.
func (s *reducedSums) Linear(x *Value, l *model.Linear) *Value {
	k, d := x.Width(), x.DType
	n := s.part(k)
	if d == tensor.F32 || n == k {
		return s.Arithmetic.Linear(x, l)
	}
	w, shape := l.Weight, append(slices.Clone(x.Shape[:len(x.Shape)-1]), l.Weight.Shape[0])
	if w.DType.Bytes(1) == 1 { // FP8, with scales
		w = float32Rows(&w, w.Shape[0], model.NewPlain(model.Options{DType: d}).Values(&l.Weight))
	}
	x = s.Reshape(x, 1, x.Rows(), k) // rounded
	sum := s.product(x, &w, 0, n)
	for from := n; from < k; from += n {
		sum = s.Scope(sum, func(sum *Value) *Value {
			return s.add(sum, s.product(x, &w, from, min(from+n, k)), d)
		})
	}
	if l.Bias.Name != "" {
		bias, rows := model.NewPlain(model.Options{DType: d}).Values(&l.Bias), &model.Activation{Shape: sum.Shape, DType: tensor.F32}
		for len(rows.Values) < len(sum.Values) {
			rows.Values = append(rows.Values, bias...)
		}
		sum = s.Add(s.Float32(sum), Exact(rows))
	}
	sum.Shape, sum.DType, sum.roundLater = shape, d, true
	return sum
}

// product is the partial sum over the columns from:to of x and w, in float32 if partial sums are
// added in float32.
func (s *reducedSums) product(x *Value, w *model.Weight, from, to int) *Value {
	columns := s.Move(model.TakeColumns(&model.Input{Batch: 1, Seq: x.Rows()}, x.Width(), from, to), x)
	rows, size := w.Shape[0], int(w.DType.Bytes(1))
	data := make([]byte, 0, rows*(to-from)*size)
	for r := range rows {
		data = append(data, w.Row(r).Data[from*size:to*size]...)
	}
	part := model.Weight{Tensor: tensor.Tensor{DType: w.DType, Shape: []int{rows, to - from}, Data: data}} // no name: no half steps
	y := s.Arithmetic.Linear(columns, &model.Linear{Weight: part})
	if y.Products = nil; s.Terms == 0 && !s.Narrow {
		return s.Float32(y)
	}
	return y
}

// add adds a partial sum of dtype d to the sum of the parts before it.
func (s *reducedSums) add(sum, part *Value, d tensor.DType) *Value {
	switch {
	case s.Terms > 0:
		part.DType, part.roundLater = tensor.F32, false // no rounding of its own
		y := s.Add(s.Float32(sum), part)
		y.DType, y.roundLater = d, true
		return y
	case s.Narrow:
		return s.Add(sum, part)
	}
	y := s.Add(sum, part)
	for i, v := range y.Values {
		y.Set(i, float64(v), roughly(float64(v), y.Variance(i))) // the reference may add in another order
	}
	return y
}
