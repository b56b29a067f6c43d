package verify

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// What a conversion did to weights by rounding them. The reference ran with weights that
// are up to half a unit away: an error of variance ulp²/12 each, beside those of computing.

// Rounding says that the checkpoint differs from the reference's by no more than what a
// conversion did to its weights by rounding them.
type Rounding struct {
	Weights    int      `json:"weights"`    // that were rounded
	Operations []string `json:"operations"` // that rounded them, such as "cast BF16"
	// Stages would fail if the weights were the reference's own; empty if all would pass.
	Stages []string `json:"stages"`
	// Error is the largest relative RMS error of these stages; null if none is finite.
	Error *float64 `json:"error"`
	// Allowed is the largest that 8 standard deviations allow one of these stages, as
	// relative RMS.
	Allowed *float64 `json:"allowed"`
}

// roundings are the weights that a conversion rounded to the dtype they are stored in, and
// by which operation.
type roundings map[string]string

// roundings asks whoever knows, and gives stored tensors the names of the table. What is
// cast to the compute dtype anyway was rounded in the reference, too.
func (t *tracer) roundings(by func() (map[string]string, error)) (roundings, error) {
	if by == nil || t.o.Mode != Local {
		return nil, nil
	}
	stored, err := by()
	if err != nil {
		return nil, err
	}
	rounded := roundings{}
	for _, w := range t.set.All() {
		narrow := w.DType == tensor.BF16 || w.DType == tensor.F16
		if op := stored[w.Stored]; op != "" && narrow && w.DType != t.pack.DType {
			rounded[w.Name] = op
		}
	}
	return rounded, nil
}

// explained compares the report with the one in which weights are taken as they are.
func (r *Report) explained(rounded roundings, plain *Report) {
	x := &Rounding{Weights: len(rounded), Operations: []string{}, Stages: []string{}}
	for _, op := range rounded {
		if !slices.Contains(x.Operations, op) {
			x.Operations = append(x.Operations, op)
		}
	}
	slices.Sort(x.Operations)
	sees := map[string]*float64{}
	for _, c := range r.Checks {
		sees[c.Tensor] = c.Sees
	}
	for _, c := range plain.Checks {
		if c.Verdict != Fail {
			continue
		}
		x.Stages = append(x.Stages, c.Tensor)
		x.Error, x.Allowed = larger(x.Error, c.RelRMS), larger(x.Allowed, sees[c.Tensor])
	}
	r.Rounding = x
}

func larger(a, b *float64) *float64 {
	if a == nil || b != nil && *b > *a {
		return b
	}
	return a
}

// deltas are the variances of w's elements, in units of u²; nil if it was not rounded.
func (a *analysis) deltas(w *model.Weight) []float64 {
	if a.rounded[w.Name] == "" {
		return nil
	}
	p, values := precisionOf(w.DType), a.plain.Values(w)
	deltas := make([]float64, len(values))
	for i, v := range values {
		deltas[i] = sq(p.ulp(float64(v))/unit) / 12
	}
	return deltas
}

// delta is element i of deltas, 0 without any.
func delta(deltas []float64, i int) float64 {
	if deltas == nil {
		return 0
	}
	return deltas[i]
}

// embedded gives rows of an embedding that was rounded their variances.
func (a *analysis) embedded(y *model.Activation, w *model.Weight) *value {
	if a.rounded[w.Name] == "" {
		return exact(y)
	}
	x, p := a.computed(y, y.DType), precisionOf(w.DType)
	for i, v := range y.Values {
		x.set(i, float64(v), sq(p.ulp(float64(v))/unit)/12)
	}
	return x
}

// blockElements is how many elements of a weight are taken at a time.
const blockElements = 1 << 22

// linearDeltas adds to the variances of l's products with x what the rounding of its weight
// does, Σ ulp(w)²/12·(x² + v_x). Row t of sums is in units of scales[t].
func (a *analysis) linearDeltas(sums []float32, scales []float64, x *value, l *model.Linear) {
	if a.rounded[l.Weight.Name] == "" {
		return
	}
	w := &l.Weight
	terms := a.errors.Make(tensor.F32, x.Shape...)
	for t, scale := range scales {
		for i, xi := range x.Row(t) {
			i += t * x.Width()
			// a power of two, which takes part in no product, is divided by 2^(bits-1) here
			terms.Values[i] = float32((sq(float64(xi)/unit) + x.v(i)) / scale * math.Exp2(2-2*float64(precisionOf(w.DType).bits)) / 12)
		}
	}
	rows, width := w.Shape[0], w.Shape[1]
	for first := 0; first < rows; first += max(1, blockElements/width) {
		n := min(max(1, blockElements/width), rows-first)
		powers := &model.Linear{Weight: powersOfTwo(w, first, n)}
		part := a.scratch(func() *model.Activation {
			part := a.errors.Make(tensor.F32, x.Rows(), n)
			flat := a.errors.Make(tensor.F32, x.Rows(), width)
			clear(flat.Values)
			a.errors.LinearSquares(flat, powers, &model.Activation{Shape: flat.Shape, Values: terms.Values, DType: tensor.F32}, part)
			return part
		})
		for t := range x.Rows() {
			for c, v := range part.Row(t) {
				sums[t*rows+first+c] += v
			}
		}
	}
}

// powersOfTwo are 2^e of n rows of w, 2^e ≤ |w| < 2^(e+1), in BF16, and at least that of
// the smallest normal number: the unit of w's dtype is that times 2^(1-bits).
func powersOfTwo(w *model.Weight, first, n int) model.Weight {
	least := float32(math.Exp2(float64(precisionOf(w.DType).least)))
	data, row := make([]byte, 0, 2*n*w.Shape[1]), []float32(nil)
	for r := range n {
		row, _ = w.Row(first + r).Float32s(row[:0]) // BF16 or F16
		for _, v := range row {
			b := math.Float32bits(max(least, float32(math.Abs(float64(v))))) >> 16 & 0x7f80
			data = append(data, byte(b), byte(b>>8))
		}
	}
	return model.Weight{Name: w.Name, Tensor: tensor.Tensor{DType: tensor.BF16, Shape: []int{n, w.Shape[1]}, Data: data}}
}

// roundedRMS is the limit of the RMS of a stage whose weights were rounded: no error of a
// weight exceeds √3 of its standard deviation, and the errors of all rows share the
// weights', so that they do not average out.
func roundedRMS(width int) float64 { return math.Sqrt(3) + 4/math.Sqrt(float64(width)) }

// String says what was rounded, and what that did.
func (x *Rounding) String() string {
	what := fmt.Sprintf("%d weights were rounded when they were converted (%s)", x.Weights, strings.Join(x.Operations, ", "))
	if len(x.Stages) == 0 {
		return what
	}
	return fmt.Sprintf("%s: %d stages differ by up to %s of their RMS, where 8 σ allow %s", what, len(x.Stages), short(x.Error, "%.1e"), short(x.Allowed, "%.1e"))
}
