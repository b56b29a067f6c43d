package engine

// A target that is already a finished output: which checks call it complete.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"syscall"

	"dsmoe/convert/internal/manifest"
	"dsmoe/convert/internal/output"
	"dsmoe/convert/internal/progress"
	"dsmoe/convert/plan"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// finished describes a target that is the finished output of the plan; otherwise its Result is
// nil. An output that was changed, or that the source no longer gives, is an error unless
// it is to be overwritten. intact are the states of its files if they were found unchanged.
func finished(ctx context.Context, t *output.Target, p *plan.Plan, src Source, s Settings) (r *Result,
	intact map[string]string, err error) {
	e, err := newExecution(t, p, src, s)
	if err != nil {
		return nil, nil, err
	}
	unfinished, filling := e.out.Unfinished()
	if filling { // a run was interrupted while it filled dst
		return nil, nil, nil
	}
	if err := t.LostFile(); err != nil && !unfinished {
		return nil, nil, err
	}
	m, err := t.ReadManifest(nil)
	switch {
	case err != nil, m.Plan != p.Hash && (s.Overwrite || unfinished || e.out.CheckReplaceable() != nil):
		return nil, nil, nil
	case m.Plan != p.Hash:
		others, err := e.otherDifferences(ctx, m)
		if err != nil {
			return nil, nil, err
		}
		const most = 20
		another := t.AnotherOutput("--overwrite replaces it")
		another.Problems[0].Cause += ": " + cmp.Or(text.Some(e.differences(m, others), most, "; "),
			"written by "+text.Quote(m.Tool)+", which planned it otherwise")
		return nil, nil, another
	}
	changed, err := e.compareManifest(ctx, m)
	if err != nil || changed {
		return nil, nil, err
	}
	if r, err = e.compareSource(ctx, m); s.Overwrite && errors.Is(err, errStale) {
		return nil, e.intact, nil
	}
	return r, e.intact, err
}

// differences names what distinguishes the plan from the plan of the output with the manifest m. others lists the
// differing files without weights.
func (e *execution) differences(m *manifest.Manifest, others []problem.Problem) []problem.Problem {
	list := manifest.Differences(m.Options, m.Sources, e.plan)
	if len(list) == 0 && m.Weights != e.plan.Weights {
		list = append(list, problem.Problem{Cause: "its weights would be written otherwise"})
	}
	list = append(list, others...)
	sameName := func(a, b plan.File) bool { return a.Name == b.Name }
	if m.Weights == e.plan.Weights && slices.EqualFunc(m.Files, e.plan.Files, sameName) {
		for i, f := range e.plan.Files {
			if f.Header != m.Files[i].Header {
				list = append(list, problem.Problem{File: f.Name, Cause: "would have other bytes before its weights"})
			}
		}
	}
	return list
}

// otherDifferences lists the files without weights that differ between the plan and the output with the manifest m. It
// hashes the source's, for the manifest too.
func (e *execution) otherDifferences(ctx context.Context, m *manifest.Manifest) (list []problem.Problem, err error) {
	planned, written := map[string]plan.Other{}, map[string]plan.Other{}
	for _, f := range m.Others {
		written[f.Name] = f
	}
	e.startCarried("comparing other files")
	for _, f := range e.plan.Others {
		if f.Carried {
			if f.Hash, err = e.copyCarried(ctx, io.Discard, f); err != nil {
				return nil, err
			}
			e.carried[f.Name] = f.Hash
		}
		planned[f.Name] = f
	}
	all := maps.Clone(written)
	maps.Copy(all, planned)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		now, old, cause := planned[name].Hash, written[name].Hash, ""
		switch {
		case now == old:
			continue
		case !all[name].Carried:
			cause = "would have other content"
		case old == "":
			cause = "is new in the source"
		case now == "":
			cause = "is no longer in the source"
		default:
			cause = "is " + now + " now, not " + old
		}
		list = append(list, problem.Problem{File: name, Cause: cause})
	}
	return list, nil
}

// compareSource compares the target with the source if the manifest may be outdated or does
// not say verified.
func (e *execution) compareSource(ctx context.Context, m *manifest.Manifest) (*Result, error) {
	others, err := e.otherDifferences(ctx, m)
	if err != nil {
		return nil, err
	}
	if len(others) > 0 {
		return nil, e.stale("files that went along changed in the source since", "--overwrite makes it anew", others...)
	}
	r := &Result{Already: true, Verified: m.Verified}
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
	return r, e.out.RemoveOrphan()
}

// errStale is behind the error for a finished output of this plan that is to be made anew.
var errStale = errors.New("stale")

// stale is that error; hint says how the output is made anew.
func (e *execution) stale(cause, hint string, problems ...problem.Problem) error {
	first := problem.Problem{Cause: "is the output of this very conversion, but " + cause, Hint: hint, Err: errStale}
	return problem.In(e.target.Path, append([]problem.Problem{first}, problems...)...)
}

// compareManifest compares the target with its manifest and takes over the losses. It reports
// a target that changed if that may be overwritten; otherwise the change is an error.
func (e *execution) compareManifest(ctx context.Context, m *manifest.Manifest) (changed bool, err error) {
	states, err := e.target.FileStates()
	if err != nil {
		return false, err
	}
	n := 0
	problems, err := checkManifest(ctx, e.target, m, e.plan, e.Settings, func(t *manifest.Tensor) {
		if n < len(e.States) && t.Lost != nil {
			e.States[n].Lost = progress.Losses{*t.Lost}
		}
		n++
	})
	if err != nil {
		return false, err
	}
	if n != len(e.States) {
		problems = append(problems, problem.Problem{File: e.target.ManifestName(),
			Cause: fmt.Sprintf("lists %s, not %d", text.Plural(n, "tensor"), len(e.States))})
	}
	if len(problems) == 0 {
		e.intact = states
		return false, nil
	}
	files, hint := problemsByFile(problems), "--overwrite makes it anew"
	lossy := e.target.HoldsAny(files)
	if lossy {
		hint = "--overwrite=changed makes it anew"
	}
	if e.Overwrite && (e.OverwriteChanged || !lossy) {
		return true, nil
	}
	return false, e.stale("was changed since", hint, files...)
}

// checkUnchanged refuses to replace an output with files that are not as its manifest records
// them. It hashes them, unless they have the states that they had when they were hashed.
func (e *execution) checkUnchanged(ctx context.Context) error {
	if e.OverwriteChanged {
		return nil
	}
	states, err := e.target.FileStates()
	if err != nil || maps.Equal(states, e.intact) {
		return err
	}
	m, err := e.target.ReadManifest(nil)
	if err != nil {
		return err
	}
	problems, err := checkManifest(ctx, e.target, m, nil, e.Settings, func(*manifest.Tensor) {})
	if err != nil {
		return err
	}
	if files := problemsByFile(problems); e.target.HoldsAny(files) {
		err := problem.New(e.target.Path, "cannot be overwritten: its files changed since they were written",
			"--overwrite=changed replaces them, too")
		err.Problems = append(err.Problems, files...)
		return err
	}
	e.intact = states
	return nil
}

// proveAgain compares the target's weights with the source in its present state, and
// records the proof in the manifest.
func (e *execution) proveAgain(ctx context.Context) error {
	e.Unverified = false
	_, total := e.plan.Bytes()
	e.StartPhase("verifying", total)
	for i := range e.States {
		e.States[i].Done = e.plan.Tensors[i].Bytes()
	}
	if err := e.out.OpenFinished(); err != nil {
		return err
	}
	defer e.out.Close()
	switch err := e.work(ctx); {
	case errors.Is(err, context.Canceled):
		return err
	case err != nil:
		return e.stale("of other weights: "+err.Error(), "--overwrite makes it anew")
	}
	err := e.out.ReplaceManifest(e.writeManifest)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return nil // the comparison holds without the manifest; the next run repeats it
	}
	return err
}
