package verify

import (
	"cmp"
	"slices"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// What a conversion did to weights by rounding them. The reference ran with weights that
// are up to half a unit away: an error of variance ulp²/12 each, beside those of computing.
// Of a block type half a unit is what tensor.HalfSteps says, of codes that times their scale.

// roundings asks whoever knows, and gives stored tensors the names of the table. What is
// cast to the compute dtype anyway was rounded in the reference, too, unless that kept it in float32. Weights of a block type
// were rounded whoever made them, and are known without being asked for.
func (j *job) roundings(by func() (map[string]tensor.Rounding, error)) (rounded bounds.Roundings, err error) {
	if j.options.Mode != report.Local || j.pack.IsTrace() { // whose weights these are
		return nil, nil
	}
	var stored map[string]tensor.Rounding
	if by != nil {
		stored, err = by()
	}
	rounded = bounds.Roundings{}
	for _, w := range j.weights.All() {
		how, narrow := stored[w.Stored], w.DType == tensor.BF16 || w.DType == tensor.F16 || w.Scaled()
		switch from := j.weights.decodedFrom(w); {
		case from != "":
			rounded[w.Name] = bounds.AllRounded("quantise " + from)
		case w.DType.Blocked():
			rounded[w.Name] = bounds.AllRounded("quantise " + w.DType.String())
		case how.By != "" && narrow && (w.DType != j.pack.DType || model.InFloat32(j.model.Config, w.Place)):
			rounded[w.Name] = how
		}
	}
	return rounded, err
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

// larger returns the larger of two numbers. nil is less than any number.
func larger(a, b *float64) *float64 {
	if a == nil || b != nil && *b > *a {
		return b
	}
	return a
}

// decodedSteps returns the half steps of a weight of the table that is decoded, nil of others.
// An error ends the run.
func (t *pass) decodedSteps(name string) []float32 {
	w := t.job.weights.Find(name)
	if t.job.weights.decodedFrom(w) == "" {
		return nil
	}
	steps, err := t.job.options.Decoded.HalfSteps(w.Stored)
	if err != nil && t.evidence.stepsErr == nil {
		t.evidence.stepsErr = err
	}
	return steps
}

// analysis returns the error analysis for the reference's torch.
func (t *pass) analysis(o model.Options) *bounds.Analysis {
	j := t.job
	a, ref, engine := bounds.NewAnalysis(o, j.rounded), &j.pack.Manifest.Reference, j.engine
	fused := ref.Attention == pack.Sdpa || engine != nil && len(engine.Attention) > 0 && engine.Attention[0] != pack.Eager
	a.SetReference(bounds.Reference{Threads: max(1, ref.Threads), Fused: fused, GPU: ref.OnGPU(), TF32: ref.TF32(),
		OneDNN: !ref.OnGPU() && !slices.Contains([]string{"", "highest"}, ref.MatmulPrecision())})
	if j.recognises {
		a.SetPoints(j.points())
	}
	if j.options.Decoded != nil && !j.pack.IsTrace() {
		a.Decoded = t.decodedSteps
	}
	return a
}
