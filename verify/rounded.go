package verify

import (
	"dsmoe/model"
	"dsmoe/model/weights"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
)

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

// analysis is that of the reference's torch.
func (t *tracer) analysis(o model.Options, rounded bounds.Roundings) *bounds.Analysis {
	a, ref := bounds.NewAnalysis(o, rounded), &t.pack.Manifest.Reference
	a.SetReference(ref.Threads, ref.Attention == pack.Sdpa)
	if t.o.Decoded != nil {
		a.Decoded = t.decodedSteps
	}
	return a
}
