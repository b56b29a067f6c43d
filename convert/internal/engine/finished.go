package engine

// A target that is already a finished output: which checks call it complete.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"syscall"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/manifest"
	"dsmoe/convert/internal/progress"
	"dsmoe/convert/plan"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// finished describes a target that is the finished output of the plan; otherwise its Result is
// nil. An output that was changed, or that the source no longer gives, is an error unless
// it is to be overwritten. intact are the states of its files if they were found unchanged.
func finished(ctx context.Context, t *target, p *plan.Plan, src Source, s Settings) (r *Result,
	intact map[string]string, err error) {
	e, err := newExecution(t, p, src, s)
	if err != nil {
		return nil, nil, err
	}
	r, err = e.finished(ctx)
	return r, e.intact, err
}

func (e *execution) finished(ctx context.Context) (*Result, error) {
	begun, filling := e.out.unfinished()
	if filling { // a run was interrupted while it filled dst
		return nil, nil
	}
	m, err := e.target.readManifest(nil)
	switch {
	case err != nil, m.Plan != e.plan.Hash && (e.Overwrite || begun):
		return nil, nil
	case m.Plan != e.plan.Hash && !e.updates(m) && e.out.checkReplaceable() != nil:
		return nil, nil
	case m.Plan != e.plan.Hash:
		others, err := e.otherFiles(ctx, m)
		if err != nil {
			return nil, err
		}
		return nil, e.another(m, e.differences(m, others))
	}
	changed, err := e.compareManifest(ctx, m)
	if err != nil || changed && e.Overwrite {
		return nil, err
	}
	r, err := e.compareSource(ctx, m)
	var stale *checkpoint.Error
	if e.Overwrite && errors.As(err, &stale) {
		return nil, nil
	}
	return r, err
}

// updates reports whether the output with the manifest m, on the disk, has the plan's weights, in files of
// the same names.
func (e *execution) updates(m *manifest.Manifest) bool {
	same := func(a, b plan.File) bool { return a.Name == b.Name }
	return !e.target.inStore() && m.Weights == e.plan.Weights && slices.EqualFunc(m.Files, e.plan.Files, same)
}

// another is the error for a finished output of another plan.
func (e *execution) another(m *manifest.Manifest, different []checkpoint.Problem) error {
	hint := "--overwrite replaces it"
	switch {
	case e.updates(m):
		hint = "--update replaces the files that differ, and keeps the weights"
	case e.out.checkReplaceable() != nil:
		hint = ""
	}
	const most = 20
	why := text.Some(different, most, "; ")
	if different == nil {
		why = "written by " + text.Quote(m.Tool) + ", which planned it otherwise"
	}
	err := e.target.isAnother(hint)
	err.Problems[0].Cause += ": " + why
	return err
}

// differences names what distinguishes the plan from that of the output with the manifest m.
func (e *execution) differences(m *manifest.Manifest, others []otherFile) []checkpoint.Problem {
	list := append(manifest.OptionDifferences(m.Options, e.plan.Options),
		manifest.SourceDifferences(m.Sources, e.plan.Sources)...)
	if len(list) == 0 && m.Weights != e.plan.Weights {
		list = append(list, checkpoint.Problem{Cause: "its weights would be written otherwise"})
	}
	list = append(list, otherDifferences(others)...)
	for i, f := range e.plan.Files {
		if e.updates(m) && f.Header != m.Files[i].Header {
			list = append(list, checkpoint.Problem{File: f.Name, Cause: "would have other bytes before its weights"})
		}
	}
	return list
}

// otherDifferences lists the files without weights that differ.
func otherDifferences(others []otherFile) (list []checkpoint.Problem) {
	for _, o := range others {
		if cause := o.difference(); cause != "" {
			list = append(list, checkpoint.Problem{File: o.name, Cause: cause})
		}
	}
	return list
}

// otherFiles lists the files without weights of the output with the manifest m and of the plan. It
// hashes the source's, for the manifest too.
func (e *execution) otherFiles(ctx context.Context, m *manifest.Manifest) ([]otherFile, error) {
	files := map[string]otherFile{}
	for _, f := range m.Others {
		files[f.Name] = otherFile{name: f.Name, old: f.Hash, carried: f.Carried}
	}
	e.startCarried("comparing other files")
	for _, f := range e.plan.Others {
		hash := f.Hash
		if f.Carried {
			var err error
			if hash, err = e.copyCarried(ctx, io.Discard, f); err != nil {
				return nil, err
			}
			e.carried[f.Name] = hash
		}
		files[f.Name] = otherFile{f.Name, files[f.Name].old, hash, f.Carried}
	}
	var list []otherFile
	for _, name := range slices.Sorted(maps.Keys(files)) {
		list = append(list, files[name])
	}
	return list, nil
}

// compareSource compares the target with the source if the manifest may be outdated or does
// not say verified.
func (e *execution) compareSource(ctx context.Context, m *manifest.Manifest) (*Result, error) {
	others, err := e.otherFiles(ctx, m)
	if err != nil {
		return nil, err
	}
	if different := otherDifferences(others); len(different) > 0 {
		hint := "--update replaces them, and keeps the weights"
		if e.target.inStore() {
			hint = "--overwrite makes it anew"
		}
		return nil, e.stale("files that went along changed in the source since", hint, different...)
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
	return r, e.out.removeOrphan()
}

// stale is the error for a finished output of this plan that is to be made anew, as hint says.
func (e *execution) stale(cause, hint string, problems ...checkpoint.Problem) error {
	err := checkpoint.Refusal(e.target.dst, "is the output of this very conversion, but "+cause, hint)
	err.Problems = append(err.Problems, problems...)
	return err
}

// compareManifest compares the target with its manifest and takes over the losses. It reports
// a target that changed if that may be overwritten; otherwise the change is an error.
func (e *execution) compareManifest(ctx context.Context, m *manifest.Manifest) (changed bool, err error) {
	states, err := e.target.fileStates()
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
		problems = append(problems, checkpoint.Problem{File: e.target.manifestName(),
			Cause: fmt.Sprintf("lists %s, not %d", text.Plural(n, "tensor"), len(e.States))})
	}
	if len(problems) == 0 {
		e.intact = states
		return false, nil
	}
	files, hint := problemsByFile(problems), "--overwrite makes it anew"
	lossy := e.target.holdsAny(files)
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
	states, err := e.target.fileStates()
	if err != nil || maps.Equal(states, e.intact) {
		return err
	}
	m, err := e.target.readManifest(nil)
	if err != nil {
		return err
	}
	problems, err := checkManifest(ctx, e.target, m, nil, e.Settings, func(*manifest.Tensor) {})
	if err != nil {
		return err
	}
	if files := problemsByFile(problems); e.target.holdsAny(files) {
		err := checkpoint.Refusal(e.target.dst, "cannot be overwritten: its files changed since they were written",
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
	if err := e.out.openFinished(); err != nil {
		return err
	}
	defer e.out.close()
	switch err := e.work(ctx); {
	case errors.Is(err, context.Canceled):
		return err
	case err != nil:
		return e.stale("of other weights: "+err.Error(), "--overwrite makes it anew")
	}
	err := e.out.replaceManifest(e.writeManifest)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return nil // the comparison holds without the manifest; the next run repeats it
	}
	return err
}

// Checked is the result of Check.
type Checked struct {
	Plan     string               // hash of the output's plan
	Verified bool                 // the output was compared with its source
	Tensors  int                  // tensors in the manifest
	Bytes    int64                // bytes of their data
	Problems []checkpoint.Problem // differences from the manifest
}

// Check hashes every byte of the output at path and compares it with its manifest, which it
// reads one tensor at a time. An error means that the comparison was not possible.
func Check(ctx context.Context, path string, s Settings) (*Checked, error) {
	t, err := outputAt(path)
	if err != nil {
		return nil, err
	}
	m, err := t.readManifest(nil)
	if err != nil {
		return nil, err
	}
	r := &Checked{Plan: m.Plan, Verified: m.Verified}
	r.Problems, err = checkManifest(ctx, t, m, nil, s.withDefaults(), func(t *manifest.Tensor) {
		r.Tensors++
		r.Bytes += t.Info().Bytes()
	})
	return r, err
}

// checkManifest compares the output at a target with its manifest, as manifest.Output.Compare does.
func checkManifest(ctx context.Context, out *target, m *manifest.Manifest, p *plan.Plan, s Settings,
	each func(*manifest.Tensor)) ([]checkpoint.Problem, error) {
	dir, err := out.files()
	if err != nil {
		return nil, err
	}
	o := manifest.Output{Dir: dir, Name: out.manifestName(), Alone: out.isFile(), Compute: s.Compute, Progress: s.Progress}
	return o.Compare(ctx, m, p, each)
}

// problemsByFile keeps the first problem of the tensors of each file, which counts the others.
func problemsByFile(problems []checkpoint.Problem) (files []checkpoint.Problem) {
	count := map[string]int{}
	for _, p := range problems {
		if p.Tensor != "" {
			count[p.File]++
		}
		if p.Tensor == "" || count[p.File] == 1 {
			files = append(files, p)
		}
	}
	for i := range files {
		if more := count[files[i].File] - 1; files[i].Tensor != "" && more > 0 {
			files[i].Cause += fmt.Sprintf(", and of %s in the file", text.Plural(more, "more tensor"))
		}
	}
	return files
}

// Rounded returns the tensors of the output at path that were rounded to their dtype, and how,
// by its manifest. It omits tensors whose bytes changed; without a manifest it returns nil.
func Rounded(ctx context.Context, path string, s Settings) (map[string]tensor.Rounding, error) {
	out, err := outputAt(path)
	if err != nil {
		return nil, err
	}
	m, err := out.readManifest(nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if edited := m.Edited(); edited != "" {
		return nil, fmt.Errorf("%s: %s", text.Quote(out.manifest), edited)
	}
	rounded := map[string]tensor.Rounding{}
	problems, err := checkManifest(ctx, out, m, nil, s.withDefaults(), func(t *manifest.Tensor) {
		if r := t.Rounds(); r.By != "" {
			rounded[t.Name] = r
		}
	})
	if err != nil {
		return nil, err
	}
	for _, p := range problems {
		delete(rounded, tensor.OwnerOf(p.Tensor)) // scales change their weight
	}
	return rounded, nil
}
