package verify

import (
	"cmp"
	"slices"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// What a conversion did to weights by rounding them. The reference ran with weights that
// are up to half a unit away: an error of variance ulp²/12 each, beside those of computing.
// Of a block type half a unit is what tensor.HalfSteps says, of codes that times their scale.

// roundings asks whoever knows, and gives stored tensors the names of the table. What is
// cast to the compute dtype anyway was rounded in the reference, too. Weights of a block type
// were rounded whoever made them, and are known without being asked for.
func (t *run) roundings(by func() (map[string]tensor.Rounding, error)) (rounded bounds.Roundings, err error) {
	if t.o.Mode != report.Local || t.pack.IsTrace() { // whose weights these are
		return nil, nil
	}
	var stored map[string]tensor.Rounding
	if by != nil {
		stored, err = by()
	}
	rounded = bounds.Roundings{}
	for _, w := range t.set.All() {
		how, narrow := stored[w.Stored], w.DType == tensor.BF16 || w.DType == tensor.F16 || w.Scaled()
		switch from := t.decodedFrom(w); {
		case from != "":
			rounded[w.Name] = bounds.AllRounded("quantise " + from)
		case w.DType.Blocked():
			rounded[w.Name] = bounds.AllRounded("quantise " + w.DType.String())
		case how.By != "" && narrow && w.DType != t.pack.DType:
			rounded[w.Name] = how
		}
	}
	return rounded, err
}

// repacked reports whether the blocks of a weight hold the reference's own numbers, as those that FP4 was repacked to:
// every stage behind it passed without an error of the weight.
func (t outcome) repacked(name string) bool {
	w := t.set.Find(name)
	_, exercised := t.exercised[name]
	_, failed := t.failed[name]
	return exercised && !failed && (w.DType.Blocked() || t.decodedFrom(w) != "")
}

// explain compares the report with the one in which weights are taken as they are.
func explain(r *report.Report, rounded bounds.Roundings, plain *report.Report) {
	x := &report.Rounding{Weights: len(rounded), Operations: []string{}, Stages: []string{},
		Layers: ranked(r.Checks, false), Experts: ranked(r.Checks, true)}
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
		expert := c.Stage().Expert
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

// analysis returns the error analysis for the reference's torch.
func (t *tracer) analysis(o model.Options, rounded bounds.Roundings) *bounds.Analysis {
	a, ref := bounds.NewAnalysis(o, rounded), &t.pack.Manifest.Reference
	fused := ref.Attention == pack.Sdpa || t.how != nil && len(t.how.Attention) > 0 && t.how.Attention[0] != pack.Eager
	a.SetReference(ref.Threads, ref.Precision != nil && ref.GPU == "" && ref.Precision.Float32 != "highest", fused)
	if t.o.Decoded != nil && !t.pack.IsTrace() {
		a.Decoded = t.decodedSteps
	}
	return a
}
