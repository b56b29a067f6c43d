package verify

import (
	"fmt"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// Mistakes of the reference's arithmetic: products of BF16 or F16 numbers whose sums a GPU, or a
// setting of torch, kept in 16 bits on the way.

// schedule is how the K terms of a sum are cut into parts, and how partial sums are added.
type schedule struct {
	parts  int  // that K is cut into
	even   bool // each of K/parts terms; if not, of a multiple of 32 terms, the last of what is left
	narrow bool // partial sums are added in 16 bits, one after the other; if not, in float32
	terms  int  // after which an accumulator of 16 bits is rounded, if not 0: it has no partial sums
}

// sumMistakes are sums in the pack's 16 bits, the cheapest first.
func sumMistakes() (list []mistake) {
	add := func(s schedule) {
		list = append(list, mistake{id: "reduced-precision-sums", kinds: productStages, unless: "reduced-precision-sums", undo: s.undo})
	}
	for _, parts := range []int{2, 3, 4, 6, 8, 12, 16} {
		for _, narrow := range []bool{false, true} {
			if narrow && parts == 2 {
				continue // one addition, rounded once in either
			}
			add(schedule{parts: parts, narrow: narrow})
			add(schedule{parts: parts, narrow: narrow, even: true})
		}
	}
	for _, terms := range []int{16, 8, 4} {
		add(schedule{terms: terms})
	}
	return list
}

const (
	// leastSums is how many elements a stage has at least for such sums to be tried. Partial sums of
	// BF16 change 38 to 46 % of the elements of v1-base's and v3's first projections: no schedule
	// fits so many by chance.
	leastSums = 256
	// mostSummed is how many elements a weight has at most: parts of it are copied, beside it.
	mostSummed = 1 << 28
)

// undo adds up all products of a reference in 16 bits by the schedule. What blocks of other
// types than FP8 stand for is no number of 16 bits: their parts would be others.
func (s schedule) undo(x *trial) string {
	d := x.failed.tracer.pack.DType
	if d != tensor.F16 && (d != tensor.BF16 || s.terms > 0) || len(x.failed.got.Values) < leastSums {
		return ""
	}
	cut := false
	for _, name := range x.failed.weights {
		w := x.failed.tracer.set.Find(name)
		if len(w.Shape) != 2 {
			continue
		}
		if w.DType.Blocked() || w.Shape[0]*w.Shape[1] > mostSummed {
			return ""
		}
		cut = cut || s.cuts(w.Shape[1])
	}
	if !cut {
		return ""
	}
	x.around = func(a arithmetic) arithmetic { return &reducedSums{a, s} }
	return fmt.Sprintf("the reference keeps sums in %s: %s", d, s.words(d))
}

// words say what the schedule is.
func (s schedule) words(d tensor.DType) string {
	if s.terms > 0 {
		return fmt.Sprintf("an accumulator that is rounded after every %d terms", s.terms)
	}
	setting, added := "allow_bf16_reduced_precision_reduction", ", added in float32"
	if d == tensor.F16 {
		setting = "allow_fp16_reduced_precision_reduction"
	}
	if s.narrow {
		added = fmt.Sprintf(", added in %s", d)
	}
	if s.parts == 2 {
		added = ""
	}
	return fmt.Sprintf("K in %d parts%s (%s)", s.parts, added, setting)
}

// cuts says whether sums of k terms are cut, and not as those of a schedule tried before.
func (s schedule) cuts(k int) bool {
	n := s.part(k)
	if s.even {
		s.even = false
		return n < k && n != s.part(k)
	}
	return n < k
}

// part is how many terms each part of a sum of k has; k if it is not cut.
func (s schedule) part(k int) int {
	switch {
	case s.terms > 0:
		return min(s.terms, k)
	case s.even && k%s.parts == 0:
		return k / s.parts
	case s.even:
		return k
	}
	const together = 32
	n := (k + s.parts*together - 1) / (s.parts * together) * together
	if n*(s.parts-1) >= k {
		return k // it would be fewer parts
	}
	return n
}

// reducedSums is an arithmetic whose products are added up by a schedule, each rounding in it a
// rounding point. A weight that a conversion rounded counts as the reference's own: that only makes
// limits narrower.
type reducedSums struct {
	arithmetic
	schedule
}

// Linear adds x·weightᵀ up part by part, and the bias in float32 at the end. Products in float32,
// as of a gate, are left as they are.
func (s *reducedSums) Linear(x *value, l *model.Linear) *value {
	k, d := x.Width(), x.DType
	n := s.part(k)
	if d == tensor.F32 || n == k {
		return s.arithmetic.Linear(x, l)
	}
	x = s.Reshape(x, x.Shape...) // rounded
	w := l.Weight
	if w.DType.Bytes(1) == 1 { // FP8, with scales
		values := model.NewPlain(model.Options{DType: d}).Values(&l.Weight)
		w = float32Rows(&l.Weight, l.Weight.Shape[0], values)
	}
	sum := s.product(x, &w, 0, n)
	for from := n; from < k; from += n {
		sum = s.Scope(sum, func(sum *value) *value { return s.add(sum, s.product(x, &w, from, min(from+n, k)), d) })
	}
	if l.Bias.Name != "" {
		sum = s.Add(s.Float32(sum), repeated(model.NewPlain(model.Options{DType: d}).Values(&l.Bias), sum.Shape))
	}
	sum.DType, sum.unrounded = d, true
	return sum
}

// product is that of some columns of x and w: a partial sum, in float32 if such are added there.
func (s *reducedSums) product(x *value, w *model.Weight, from, to int) *value {
	y := s.arithmetic.Linear(columnsOf(x, from, to), &model.Linear{Weight: weightColumns(w, from, to)})
	if y.products = nil; s.terms == 0 && !s.narrow {
		return s.Float32(y)
	}
	return y
}

// add adds a partial sum of dtype d to those before.
func (s *reducedSums) add(sum, part *value, d tensor.DType) *value {
	switch {
	case s.terms > 0:
		part.DType, part.unrounded = tensor.F32, false // it has no rounding of its own
		y := s.Add(s.Float32(sum), part)
		y.DType, y.unrounded = d, true
		return y
	case s.narrow:
		return s.Add(sum, part)
	}
	y := s.Add(sum, part)
	for i, v := range y.Values {
		y.set(i, float64(v), roughly(float64(v), y.v(i))) // in another order, too
	}
	return y
}

// repeated is a value without errors, all of whose rows are row.
func repeated(row []float32, shape []int) *value {
	y := &model.Activation{Shape: shape, DType: tensor.F32}
	for n := (tensor.Tensor{Shape: shape}).Len(); len(y.Values) < n; {
		y.Values = append(y.Values, row...)
	}
	return exact(y)
}

// columnsOf are some columns of x.
func columnsOf(x *value, from, to int) *value {
	y := exact(columnsOfActivation(x.Activation, from, to))
	if x.sigma != nil {
		y.sigma = columnsOfActivation(x.sigma, from, to)
	}
	return y
}

func columnsOfActivation(x *model.Activation, from, to int) *model.Activation {
	y := &model.Activation{Shape: append([]int(nil), x.Shape...), DType: x.DType}
	y.Shape[len(y.Shape)-1] = to - from
	for t := range x.Rows() {
		y.Values = append(y.Values, x.Row(t)[from:to]...)
	}
	return y
}

// weightColumns are some columns of w, [rows, columns], without its name: what was rounded of w
// is not looked up.
func weightColumns(w *model.Weight, from, to int) model.Weight {
	rows, size := w.Shape[0], int(w.DType.Bytes(1))
	part := tensor.Tensor{DType: w.DType, Shape: []int{rows, to - from}, Data: make([]byte, 0, rows*(to-from)*size)}
	for r := range rows {
		part.Data = append(part.Data, w.Row(r).Data[from*size:to*size]...)
	}
	return model.Weight{Tensor: part}
}
