package engine

// Updating a finished output whose weights stay.

import (
	"context"
	"errors"
	"fmt"

	"dsmoe/convert/internal/manifest"
	"dsmoe/convert/internal/output"
	"dsmoe/convert/internal/progress"
	"dsmoe/convert/plan"
	"dsmoe/text/problem"
)

// updateFinished turns the target, a finished output of another plan with the same weights, into the output of p. A
// file that is neither as the manifest records it nor as p writes it is not replaced, and is an error.
func updateFinished(ctx context.Context, t *output.Target, p *plan.Plan, src Source, s Settings) (*Result, error) {
	e, err := newExecution(t, p, src, s)
	if err != nil {
		return nil, err
	}
	if t.InStore() {
		return nil, problem.New(t.Path, "an output in an object store cannot be updated", "--overwrite makes it anew")
	}
	m, err := t.ReadManifest(nil)
	if err != nil {
		return nil, fmt.Errorf("cannot be updated, as it is not a finished output: %w", err)
	}
	if edited := m.Edited(); edited != "" {
		return nil, fmt.Errorf("cannot be updated: %s %s", t.ManifestName(), edited)
	}
	others, err := e.otherFiles(ctx, m)
	if err != nil {
		return nil, err
	}
	different := e.differences(m, others)
	switch {
	case !e.updates(m):
		return nil, e.another(m, different)
	case len(different) == 0 && m.Plan == p.Hash:
		r, _, err := finished(ctx, t, p, src, s)
		return r, err
	}
	u, err := output.LockFinished(t, p, e.options, m)
	if err != nil {
		return nil, err
	}
	current := e.key
	if err = u.Examine(ctx, others); err == nil {
		err = e.adopt(m)
	}
	if err == nil {
		err = u.Replace(ctx, e.content(ctx), e.Ledger)
	}
	if err = errors.Join(err, u.Unlock()); err != nil {
		return nil, err
	}
	return &Result{Verified: m.Verified, Updated: u.Replaced, Outdated: m.State != current, Lost: e.lost()}, nil
}

// adopt takes over what the manifest of the target, whose head is old, records of the weights.
func (e *execution) adopt(old *manifest.Manifest) error {
	n, other := 0, errors.New(e.target.ManifestName()+" lists other tensors")
	_, err := e.target.ReadManifest(func(t *manifest.Tensor) error {
		if n == len(e.States) || e.plan.Tensors[n].Name != t.Name || len(e.plan.Tensors[n].Segments) != len(t.Sources) {
			return other
		}
		s := progress.State{Proof: &progress.Proof{Hash: t.Hash}}
		if t.Lost != nil {
			s.Lost = progress.Losses{*t.Lost}
		}
		for _, source := range t.Sources {
			if source.Hash != "" { // of all of them or none
				s.Proof.Segments = append(s.Proof.Segments, source.Hash)
			}
		}
		if len(s.Proof.Segments) != len(t.Sources) {
			s.Proof.Segments = nil
		}
		e.States[n] = s
		n++
		return nil
	})
	if err == nil && n != len(e.States) {
		err = other
	}
	// The weights stay, and so does what is known of them.
	e.key, e.Unverified = old.State, !old.Verified
	return err
}
