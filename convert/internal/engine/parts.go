package engine

// Outputs in parts: a run of one part, and the run that publishes all of them.

import (
	"context"

	"dsmoe/convert/internal/output"
	"dsmoe/convert/plan"
)

// runPart writes and proves a part of the output, and leaves its journal.
func runPart(ctx context.Context, t *output.Target, p *plan.Plan, src Source, s Settings) (*Result, error) {
	if t.IsOutputOf(p) {
		return &Result{Finished: true}, nil
	}
	e, err := newExecution(t, p, src, s)
	if err != nil {
		return nil, err
	}
	defer e.out.Close()
	reached, err := e.begin(ctx)
	if err != nil {
		return nil, err
	}
	already := reached == output.Ended && e.Complete(e.Unverified)
	if !already {
		_, err = e.finish(ctx)
	}
	return &Result{Already: already, Verified: !s.Unverified, Resumed: e.Resumed, Lost: e.lost()}, e.interrupted(err)
}

// finishParts publishes the output that all parts have written: it makes the journal of a run that wrote and
// proved everything from the parts' journals, and continues that run.
func finishParts(ctx context.Context, t *output.Target, p *plan.Plan, src Source, s Settings) (*Result, error) {
	o, err := outputOptions(src, s)
	if err != nil {
		return nil, err
	}
	parts, remove, err := output.JoinParts(t, p, o, s.Unverified)
	if err != nil {
		return nil, err
	}
	s.Finish = false
	r, err := run(ctx, t, p, src, s)
	if err == nil && parts > 0 {
		r.Parts, r.Resumed = parts, 0
		err = remove()
	}
	return r, err
}
