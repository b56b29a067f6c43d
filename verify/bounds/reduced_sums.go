package bounds

import (
	"slices"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

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
		sum = s.Add(s.Float32(sum), repeated(model.NewPlain(model.Options{DType: d}).Values(&l.Bias), sum.Shape))
	}
	sum.Shape, sum.DType, sum.unrounded = shape, d, true
	return sum
}

// product is the partial sum over the columns from:to of x and w, in float32 if partial sums are
// added in float32.
func (s *reducedSums) product(x *Value, w *model.Weight, from, to int) *Value {
	columns := s.Move(model.TakeColumns(&model.Input{Batch: 1, Seq: x.Rows()}, x.Width(), from, to), x)
	y := s.Arithmetic.Linear(columns, &model.Linear{Weight: weightColumns(w, from, to)})
	if y.Products = nil; s.Terms == 0 && !s.Narrow {
		return s.Float32(y)
	}
	return y
}

// add adds a partial sum of dtype d to the sum of the parts before it.
func (s *reducedSums) add(sum, part *Value, d tensor.DType) *Value {
	switch {
	case s.Terms > 0:
		part.DType, part.unrounded = tensor.F32, false // no rounding of its own
		y := s.Add(s.Float32(sum), part)
		y.DType, y.unrounded = d, true
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

// repeated is an exact value all of whose rows are row.
func repeated(row []float32, shape []int) *Value {
	y := &model.Activation{Shape: shape, DType: tensor.F32}
	for n := (tensor.Tensor{Shape: shape}).Len(); len(y.Values) < n; {
		y.Values = append(y.Values, row...)
	}
	return Exact(y)
}

// weightColumns is w's columns from:to without w's name, so that no conversion's half steps apply.
func weightColumns(w *model.Weight, from, to int) model.Weight {
	rows, size := w.Shape[0], int(w.DType.Bytes(1))
	data := make([]byte, 0, rows*(to-from)*size)
	for r := range rows {
		data = append(data, w.Row(r).Data[from*size:to*size]...)
	}
	return model.Weight{Tensor: tensor.Tensor{DType: w.DType, Shape: []int{rows, to - from}, Data: data}}
}
