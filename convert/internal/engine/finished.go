package engine

// A target that is there already: what it takes to call it complete.

import (
	"context"
	"errors"
	"path/filepath"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/plan"
)

// finished says whether the target is the finished output of the plan; a nil Result says
// that it is not. If it is, but was changed since, or is not what the source gives any
// more, that is an error.
func (e *execution) finished(ctx context.Context) (*Result, error) {
	m, err := readManifest(filepath.Join(e.dst, plan.ManifestName))
	if err != nil || m.Plan != e.plan.Hash || len(m.Tensors) != len(e.plan.Tensors) {
		return nil, nil
	}
	if err := e.unchanged(ctx, m); err != nil {
		return nil, err
	}
	r := &Result{Already: true, Verified: m.Verified}
	if m.State != e.key || !m.Verified && !e.Unverified {
		if err := e.proveAgain(ctx, m); err != nil {
			return nil, err
		}
		r.Verified = true
	}
	for i := range m.Tensors {
		if t := &m.Tensors[i]; t.Lost != nil {
			r.Lost = append(r.Lost, LostTensor{t.Name, *t.Lost})
		}
	}
	return r, e.removeOrphan()
}

// unchanged compares the target with its manifest.
func (e *execution) unchanged(ctx context.Context, m *Manifest) error {
	problems, err := checkManifest(ctx, e.dst, m, e.Settings)
	if err == nil && len(problems) > 0 {
		err = &checkpoint.Error{Path: e.dst, Problems: append([]checkpoint.Problem{{Cause: "is the output of this very conversion, but was changed since"}}, problems...)}
	}
	return err
}

// proveAgain compares the target's weights with the source as that is now, and puts what
// it found into the manifest.
func (e *execution) proveAgain(ctx context.Context, m *Manifest) error {
	e.dir, e.Unverified, e.phase = e.dst, false, "verifying"
	_, e.total = e.plan.Bytes()
	for i := range e.states {
		e.states[i].done = e.plan.Tensors[i].Bytes()
		if lost := m.Tensors[i].Lost; lost != nil {
			e.states[i].lost = *lost
		}
	}
	if err := e.openFiles(e.Disk.OpenTilesToRead); err != nil {
		return err
	}
	defer e.closeFiles()
	if err := e.work(ctx); err != nil {
		return differs(e.dst, err)
	}
	return e.Disk.ReplaceFile(filepath.Join(e.dst, plan.ManifestName), e.writeManifest)
}

// differs says that a finished output is not what the source gives.
func differs(dst string, err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return &checkpoint.Error{Path: dst, Problems: []checkpoint.Problem{{
		Cause: "is the output of this very conversion, but of other weights: " + err.Error(),
		Hint:  "--no-resume makes it anew",
	}}}
}

// removeOrphan removes the journal of a run that died between giving the output its name
// and its own end.
func (e *execution) removeOrphan() error {
	j, err := lockJournal(e.Disk, e.place.journal)
	if err != nil {
		return nil
	}
	defer j.f.Close()
	old, err := j.read(func(record) {})
	if err == nil && old != nil && old.Plan == e.plan.Hash && !e.place.inside {
		err = removeReplaced(e.Disk, e.dst) // it died while it removed what it replaced
	}
	if err != nil {
		return err
	}
	return e.Disk.Remove(e.place.journal)
}
