package engine

// A target that is there already: what it takes to call it complete.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/plan"
	"dsmoe/text"
)

// isOutputOf says whether dst is, or was, the finished output of the plan.
func isOutputOf(dst string, p *plan.Plan) bool {
	m, err := readManifest(filepath.Join(dst, plan.ManifestName), nil)
	return err == nil && m.Plan == p.Hash
}

// finished says what dst is if it is the finished output of the plan; a nil Result says that
// it is not. If it was changed since, or is not what the source gives any more, that is an
// error, unless it is to be overwritten.
func finished(ctx context.Context, dst string, p *plan.Plan, src Source, s Settings) (*Result, error) {
	e, err := newExecution(dst, p, src, s)
	if err != nil || e.place.inside && exists(e.place.journal) { // a run was interrupted while it filled dst
		return nil, err
	}
	m, err := readManifest(filepath.Join(dst, plan.ManifestName), nil)
	if err != nil || m.Plan != p.Hash {
		return nil, nil
	}
	r, err := e.compare(ctx, m)
	var stale *checkpoint.Error
	if s.Overwrite && errors.As(err, &stale) {
		return nil, nil
	}
	return r, err
}

// compare compares the target with its manifest and, where that does not tell, with the
// source.
func (e *execution) compare(ctx context.Context, m *Manifest) (*Result, error) {
	if err := e.unchanged(ctx, m); err != nil {
		return nil, err
	}
	if err := e.sameCarried(ctx, m); err != nil {
		return nil, err
	}
	e.format = m.Format
	r := &Result{Already: true, Verified: m.Verified, Uncounted: m.Format == uncountedFormat}
	if m.State != e.key || !m.Verified && !e.Unverified {
		err := e.proveAgain(ctx)
		if err == nil {
			err = e.unmoved()
		}
		if err != nil {
			return nil, err
		}
		r.Verified = true
	}
	r.Lost = e.lost()
	return r, e.removeOrphan()
}

// anew is what can be done about a finished output that is not what it should be.
const anew = "--overwrite makes it anew"

// unchanged compares the target with its manifest, and takes over what that says of tensors.
func (e *execution) unchanged(ctx context.Context, m *Manifest) error {
	n := 0
	problems, err := checkManifest(ctx, e.dst, m, e.plan, e.Settings, func(t *ManifestTensor) {
		if n < len(e.states) && t.Lost != nil {
			e.states[n].lost = *t.Lost
		}
		n++
	})
	if err == nil && n != len(e.states) {
		problems = append(problems, checkpoint.Problem{File: plan.ManifestName, Cause: fmt.Sprintf("lists %s, not %d", text.Plural(n, "tensor"), len(e.states))})
	}
	if err == nil && len(problems) > 0 {
		err = &checkpoint.Error{Path: e.dst, Problems: append([]checkpoint.Problem{{
			Cause: "is the output of this very conversion, but was changed since", Hint: anew}}, problems...)}
	}
	return err
}

// proveAgain compares the target's weights with the source as that is now, and puts what
// it found into the manifest.
func (e *execution) proveAgain(ctx context.Context) error {
	e.dir, e.Unverified, e.phase = e.dst, false, "verifying"
	e.done = 0
	_, e.total = e.plan.Bytes()
	for i := range e.states {
		e.states[i].done = e.plan.Tensors[i].Bytes()
	}
	if err := e.openFiles(e.Disk.OpenTilesToRead); err != nil {
		return err
	}
	defer e.closeFiles()
	if err := e.work(ctx); err != nil {
		return differs(e.dst, err)
	}
	err := e.Disk.ReplaceFile(filepath.Join(e.dst, plan.ManifestName), e.writeManifest)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return nil // what was found is true all the same; the next run compares again
	}
	return err
}

// differs says that a finished output is not what the source gives.
func differs(dst string, err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return &checkpoint.Error{Path: dst, Problems: []checkpoint.Problem{{
		Cause: "is the output of this very conversion, but of other weights: " + err.Error(),
		Hint:  anew,
	}}}
}

// removeOrphan removes the journal of a run that died between giving the output its name
// and its own end. One of another conversion, or what is no journal, stays.
func (e *execution) removeOrphan() error {
	if !exists(e.place.journal) {
		return nil
	}
	j, err := lockJournal(e.Disk, e.place.journal)
	if err != nil {
		return nil
	}
	defer j.f.Close()
	old, err := j.read(func(record) {})
	ours := old != nil && old.Plan == e.plan.Hash
	if err != nil || !ours && (old != nil || !j.isOurs()) {
		return err
	}
	if ours && !e.place.inside {
		if err := removeReplaced(e.Disk, e.dst); err != nil { // it died while it removed what it replaced
			return err
		}
	}
	return e.Disk.Remove(e.place.journal)
}
