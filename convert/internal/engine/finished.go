package engine

// A target that is already a finished output: which checks call it complete.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"syscall"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/digest"
	"dsmoe/convert/plan"
	"dsmoe/text"
)

// isOutputOf reports whether dst is, or was, the finished output of the plan.
func isOutputOf(dst string, p *plan.Plan) bool {
	m, err := readManifest(filepath.Join(dst, plan.ManifestName), nil)
	return err == nil && m.Plan == p.Hash
}

// finished describes a dst that is the finished output of the plan; otherwise its Result is
// nil. An output that was changed, or that the source no longer gives, is an error unless
// it is to be overwritten.
func finished(ctx context.Context, dst string, p *plan.Plan, src Source, s Settings) (*Result, error) {
	e, err := newExecution(dst, p, src, s)
	if err != nil || e.out.inside && exists(e.out.journalPath) { // a run was interrupted while it filled dst
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

// compare compares the target with its manifest and, if the manifest may be outdated or does
// not say verified, with the source.
func (e *execution) compare(ctx context.Context, m *Manifest) (*Result, error) {
	if err := e.compareManifest(ctx, m); err != nil {
		return nil, err
	}
	if err := e.compareCarried(ctx, m); err != nil {
		return nil, err
	}
	if m.Format == uncountedFormat {
		e.manifest = m.Format // the losses remain uncounted
	}
	r := &Result{Already: true, Verified: m.Verified, Uncounted: m.Format == uncountedFormat}
	if m.State != e.key || !m.Verified && !e.Unverified {
		err := e.proveAgain(ctx)
		if err == nil {
			err = e.checkSource()
		}
		if err != nil {
			return nil, err
		}
		r.Verified = true
	}
	r.Lost = e.lost()
	return r, e.out.removeOrphan()
}

// stale is the error for a finished output of this plan that is to be made anew.
func (e *execution) stale(cause string, problems ...checkpoint.Problem) error {
	err := checkpoint.Refusal(e.out.dst, "is the output of this very conversion, but "+cause, "--overwrite makes it anew")
	err.Problems = append(err.Problems, problems...)
	return err
}

// compareManifest compares the target with its manifest and takes over the losses.
func (e *execution) compareManifest(ctx context.Context, m *Manifest) error {
	n := 0
	problems, err := checkManifest(ctx, e.out.dst, m, e.plan, e.Settings, func(t *ManifestTensor) {
		if n < len(e.states) && t.Lost != nil {
			e.states[n].lost = *t.Lost
		}
		n++
	})
	if err != nil {
		return err
	}
	if n != len(e.states) {
		problems = append(problems, checkpoint.Problem{File: plan.ManifestName,
			Cause: fmt.Sprintf("lists %s, not %d", text.Plural(n, "tensor"), len(e.states))})
	}
	if len(problems) > 0 {
		return e.stale("was changed since", problems...)
	}
	return nil
}

// compareCarried compares the source's other files with the manifest's hashes, and takes
// these over.
func (e *execution) compareCarried(ctx context.Context, m *Manifest) error {
	e.startCarried("comparing other files")
	var problems []checkpoint.Problem
	for _, f := range m.Others {
		if !f.Carried {
			continue
		}
		file, err := e.source.OpenOther(f.Name)
		if err != nil {
			return err
		}
		hash, _, err := digest.Copy(ctx, io.Discard, file, e.advance)
		file.Close()
		if err != nil {
			return err
		}
		if hash != f.Hash {
			problems = append(problems, checkpoint.Problem{File: f.Name, Cause: "is " + hash + " now, not " + f.Hash})
		}
		e.carried[f.Name] = f.Hash
	}
	if len(problems) > 0 {
		return e.stale("files that went along changed in the source since", problems...)
	}
	return nil
}

// proveAgain compares the target's weights with the source in its present state, and
// records the proof in the manifest.
func (e *execution) proveAgain(ctx context.Context) error {
	e.Unverified = false
	_, total := e.plan.Bytes()
	e.startPhase("verifying", total)
	for i := range e.states {
		e.states[i].done = e.plan.Tensors[i].Bytes()
	}
	if err := e.out.openFinished(); err != nil {
		return err
	}
	defer e.out.closeFiles()
	switch err := e.work(ctx); {
	case errors.Is(err, context.Canceled):
		return err
	case err != nil:
		return e.stale("of other weights: " + err.Error())
	}
	err := e.Disk.ReplaceFile(filepath.Join(e.out.dst, plan.ManifestName), e.writeManifest)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return nil // the comparison holds without the manifest; the next run repeats it
	}
	return err
}
