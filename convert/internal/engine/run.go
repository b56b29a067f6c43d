package engine

// One run from its begin to the published output.

import (
	"context"
	"errors"
	"strings"

	"dsmoe/convert/internal/output"
	"dsmoe/convert/plan"
	"dsmoe/convert/source"
)

// begin opens the output and takes over the progress of an earlier run.
func (e *execution) begin(ctx context.Context) (output.Stage, error) {
	reached, err := e.out.Begin(e.Apply, func() error { return e.checkUnchanged(ctx) })
	switch {
	case err != nil:
	case reached == output.Fresh:
		clear(e.States)
	default:
		e.Resume(e.hashesWriting)
	}
	return reached, err
}

// run makes the whole output, continues it, or looks at one that is finished.
func run(ctx context.Context, t *output.Target, p *plan.Plan, src Source, s Settings) (*Result, error) {
	remade := s.StartOver && t.IsOutputOf(p)
	s.Overwrite = s.Overwrite || remade
	var intact map[string]string
	if !s.StartOver {
		r, states, err := finished(ctx, t, p, src, s)
		if r != nil || err != nil {
			return r, err
		}
		intact = states
	}
	e, err := newExecution(t, p, src, s)
	if err != nil {
		return nil, err
	}
	e.intact, e.remade = intact, remade
	reached, err := e.begin(ctx)
	if err != nil && !s.StartOver && t.IsOutputOf(p) { // another run may have finished it meanwhile
		if r, _, err := finished(ctx, t, p, src, s); r != nil {
			return r, err
		}
	}
	if err != nil {
		return nil, e.interrupted(err)
	}
	defer e.out.Close()
	if reached == output.Ended {
		r, _, err := finished(ctx, t, p, src, s)
		return r, err
	}
	replaced, err := e.finish(ctx)
	return &Result{Verified: !s.Unverified, Replaced: replaced, Resumed: e.Resumed, Lost: e.lost()}, e.interrupted(err)
}

// interrupted adds to the error of a cancelled run what it leaves.
func (e *execution) interrupted(err error) error {
	if !errors.Is(err, context.Canceled) {
		return err
	}
	dir, bytes := e.out.Leftovers()
	if dir == "" {
		return err
	}
	return &Interrupted{err, dir, bytes, e.remade || strings.HasPrefix(e.key, source.Unknown)}
}
