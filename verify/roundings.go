package verify

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// What a conversion did to weights by rounding them. The reference ran with weights that
// are up to half a unit away: an error of variance ulp²/12 each, beside those of computing.
// Of a block type half a unit is what tensor.HalfSteps says.

// roundings are the weights that a conversion rounded to the dtype they are stored in, and how.
type roundings map[string]tensor.Rounding

// all says that all elements of a weight were rounded by an operation.
func all(by string) tensor.Rounding { return tensor.Rounding{By: by} }

// roundings asks whoever knows, and gives stored tensors the names of the table. What is
// cast to the compute dtype anyway was rounded in the reference, too. Weights of a block type
// were rounded whoever made them, and are known without being asked for.
func (t *run) roundings(by func() (map[string]tensor.Rounding, error)) (rounded roundings, err error) {
	if t.o.Mode != report.Local {
		return nil, nil
	}
	var stored map[string]tensor.Rounding
	if by != nil {
		stored, err = by()
	}
	rounded = roundings{}
	for _, w := range t.set.All() {
		how, narrow := stored[w.Stored], w.DType == tensor.BF16 || w.DType == tensor.F16
		switch from := t.decodedFrom(w); {
		case from != "":
			rounded[w.Name] = all("quantise " + from)
		case w.DType.Blocked():
			rounded[w.Name] = all("quantise " + w.DType.String())
		case how.By != "" && narrow && w.DType != t.pack.DType:
			rounded[w.Name] = how
		}
	}
	return rounded, err
}

// decodedFrom returns the dtypes that a weight is decoded from.
func (t *run) decodedFrom(w *weights.Weight) string {
	if t.o.Decoded == nil {
		return ""
	}
	return t.o.Decoded.DecodedFrom(w.Stored)
}

// decodedSteps returns the half steps of a weight of the table that is decoded, nil of others.
// An error ends the run.
func (t *tracer) decodedSteps(name string) []float32 {
	w := t.set.Find(name)
	if t.decodedFrom(w) == "" {
		return nil
	}
	steps, err := t.o.Decoded.HalfSteps(w.Stored)
	if err != nil && t.stepsErr == nil {
		t.stepsErr = err
	}
	return steps
}

// explain compares the report with the one in which weights are taken as they are.
func explain(r *report.Report, rounded roundings, plain *report.Report) {
	x := &report.Rounding{Weights: len(rounded), Operations: []string{}, Stages: []string{}, Layers: ranked(r.Checks, false), Experts: ranked(r.Checks, true)}
	for _, how := range rounded {
		if !slices.Contains(x.Operations, how.By) {
			x.Operations = append(x.Operations, how.By)
		}
	}
	slices.Sort(x.Operations)
	sees := map[string]*float64{}
	for _, c := range r.Checks {
		sees[c.Tensor] = c.Sees
	}
	for _, c := range plain.Checks {
		if c.Verdict != report.Fail {
			continue
		}
		x.Stages = append(x.Stages, c.Tensor)
		x.Error, x.Allowed = larger(x.Error, c.RelRMS), larger(x.Allowed, sees[c.Tensor])
	}
	r.Rounding = x
}

// ranked orders layers, or single routed experts, by the stage that is furthest off. What is
// equal is left out.
func ranked(checks []report.Check, experts bool) []report.RankedError {
	type place struct{ layer, expert int }
	at, all := map[place]int{}, []report.RankedError{}
	for _, c := range checks {
		_, kind := pack.CutLayer(c.Tensor)
		_, expert := pack.CutExpert(kind)
		if c.Layer() < 0 || c.RelRMS == nil || *c.RelRMS == 0 || experts && expert < 0 {
			continue
		}
		if !experts {
			expert = -1
		}
		e := report.RankedError{Layer: c.Layer(), Expert: expert, Tensor: c.Tensor, RelRMS: *c.RelRMS}
		i, seen := at[place{c.Layer(), expert}]
		switch {
		case !seen:
			at[place{c.Layer(), expert}] = len(all)
			all = append(all, e)
		case e.RelRMS > all[i].RelRMS:
			all[i] = e
		}
	}
	slices.SortStableFunc(all, func(a, b report.RankedError) int { return cmp.Compare(b.RelRMS, a.RelRMS) })
	return all
}

func larger(a, b *float64) *float64 {
	if a == nil || b != nil && *b > *a {
		return b
	}
	return a
}

// deltas are the variances of w's elements, in units of u²; nil if it was not rounded.
func (a *analysis) deltas(w *model.Weight) []float64 {
	how := a.rounded[w.Name]
	if how.By == "" {
		return nil
	}
	deltas := make([]float64, w.Len())
	for i, h := range how.HalfSteps(nil, w.Tensor) {
		deltas[i] = sq(float64(h)/unit) / 3
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
func (a *analysis) embedded(y *model.Activation, w *model.Weight, ids []int) *value {
	how := a.rounded[w.Name]
	if how.By == "" {
		return exact(y)
	}
	x := a.computed(y, y.DType)
	for t, id := range ids {
		for i, h := range how.HalfSteps(nil, w.Row(id)) {
			i += t * y.Width()
			x.set(i, float64(y.Values[i]), sq(float64(h)/unit)/3)
		}
	}
	return x
}

// blockElements is how many elements of a weight are taken at a time.
const blockElements = 1 << 22

// linearDeltas sets sums to the variances of l's products with x that the rounding of its weight
// causes, Σ h²/3·(x² + v_x) with half units h, of row t in units[t]; nil units if it was not rounded.
func (a *analysis) linearDeltas(sums []float32, x *value, l *model.Linear) (units []float64) {
	how := a.rounded[l.Weight.Name]
	if how.By == "" {
		return nil
	}
	w := &l.Weight
	errorsOf, factor := func(w *model.Weight, first, n int) model.Weight { return halfUnitRows(w, first, n, how) }, 1.0/3
	if steps := a.stepsOf(w); steps != nil {
		errorsOf = func(w *model.Weight, first, n int) model.Weight {
			return float32Rows(w, n, steps[first*w.Shape[1]:(first+n)*w.Shape[1]])
		}
	} else if !w.DType.Blocked() && !how.Denormals { // a power of two, which takes part in no product, is divided by 2^(bits-1) here
		errorsOf, factor = powersOfTwo, math.Exp2(2-2*float64(precisionOf(w.DType).bits))/12
	}
	a.scratch(func() *model.Activation {
		var terms []float32
		terms, units = a.perRow(x, func(y, v float64) float64 { return (sq(y/unit) + v) * factor })
		rows, width := w.Shape[0], w.Shape[1]
		for first := 0; first < rows; first += max(1, blockElements/width) {
			part := errorsOf(w, first, min(max(1, blockElements/width), rows-first))
			a.errors.WeightPartial(&part, &model.Partial{V: terms, Each: func(t, r int, _, _, carried []float32) {
				copy(sums[t*rows+first+r:], carried)
			}})
		}
		return x.Activation
	})
	return units
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

// halfUnitRows are the half units of n rows of w, which was rounded so.
func halfUnitRows(w *model.Weight, first, n int, how tensor.Rounding) model.Weight {
	var h []float32
	for r := range n {
		h = how.HalfSteps(h, w.Row(first+r))
	}
	return float32Rows(w, n, h)
}

// stepsOf are the half steps of a weight that was decoded; nil of others.
func (a *analysis) stepsOf(w *model.Weight) []float32 {
	if a.decoded == nil {
		return nil
	}
	return a.decoded(w.Name)
}

// float32Rows are n rows of numbers in place of w's.
func float32Rows(w *model.Weight, n int, h []float32) model.Weight {
	data := make([]byte, 0, 4*len(h))
	for _, v := range h {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	return model.Weight{Name: w.Name, Tensor: tensor.Tensor{DType: tensor.F32, Shape: []int{n, w.Shape[1]}, Data: data}}
}

// roundedRMS is the limit of the RMS of a stage whose weights were rounded: no error of a
// weight exceeds √3 of its standard deviation, and the errors of all rows share the
// weights', so that they do not average out.
func roundedRMS(width int) float64 { return math.Sqrt(3) + 4/math.Sqrt(float64(width)) }
