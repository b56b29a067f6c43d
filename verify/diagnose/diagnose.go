package diagnose

import (
	"context"
	"slices"

	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// Diagnose returns all causes that explain the failure, and what is odd about its weights.
func (f *Failure) Diagnose(ctx context.Context) (causes, hints []report.Cause, err error) {
	if causes, err = f.causes(ctx); err != nil {
		return nil, nil, err
	}
	hints, err = f.zeroWeights()
	return causes, hints, err
}

// causes are all explanations of the failure: weights that are not finite, overflow, then mistakes.
func (f *Failure) causes(ctx context.Context) ([]report.Cause, error) {
	found, err := f.notFiniteWeights()
	if err != nil || len(found) > 0 {
		return found, err
	}
	found = append(found, f.overflows()...)
	for _, m := range mistakes(f) {
		if kind, _ := pack.CutExpert(f.Kind); !slices.Contains(m.kinds, kind) || m.unless != "" && hasCause(found, m.unless) {
			continue
		}
		c, err := f.try(ctx, m)
		if err != nil {
			return nil, err
		}
		if c != nil && !slices.Contains(found, *c) {
			found = append(found, *c)
		}
	}
	return found, nil
}

// try returns the mistake as the cause if the stage passes with it undone, and all others
// that it must explain.
func (f *Failure) try(ctx context.Context, m mistake) (*report.Cause, error) {
	x := f.NewTrial()
	text := m.undo(x)
	if text == "" {
		return nil, ctx.Err()
	}
	needed := []string{f.Name}
	for _, c := range f.Checks {
		_, name := pack.CutLayer(c.Tensor)
		kind, _ := pack.CutExpert(name)
		if c.Layer() == f.Layer && c.Tensor != f.Name && f.Pack.Has(c.Tensor) && (m.whole || slices.Contains(m.also, kind)) {
			needed = append(needed, c.Tensor)
		}
	}
	passes, err := f.Rerun(ctx, x, needed)
	if err != nil || !passes {
		return nil, err
	}
	return &report.Cause{ID: m.id, Text: text}, nil
}

// hasCause reports whether the mistake id is among the causes.
func hasCause(causes []report.Cause, id string) bool {
	return slices.ContainsFunc(causes, func(c report.Cause) bool { return c.ID == id })
}
