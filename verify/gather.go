package verify

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// gather runs the model once, and looks for NaNs and infinities where that showed none.
func (j *job) gather(ctx context.Context) (*evidence, error) {
	t := newPass(j)
	e := t.evidence
	if !j.scope.units[0].runs { // prediction layers without one of their own look tokens up in it
		e.leaveOut(embeddingName)
	}
	for _, name := range []string{pack.LastNorm, pack.Logits} {
		if !j.scope.units[1+j.model.Config.NumHiddenLayers].runs && j.scope.wantsEnd(name) { // behind a layer that is absent
			e.lacked[name] = true
		}
	}
	if err := t.run(ctx); errors.Is(err, errStopped) {
		return e, nil
	} else if err != nil {
		return e, err
	}
	if j.counts { // a trial: only misses are looked at
		return e, nil
	}
	return e, e.scan(ctx)
}

// run runs the model over the input, and backward if the pack is one of training. In local mode
// that is a pass of its own.
func (t *pass) run(ctx context.Context) error {
	j := t.job
	if j.options.Mode == report.Chained {
		return t.chained(ctx, false)
	}
	o := j.modelOptions()
	analysis := t.analysis(o)
	defer analysis.Close()
	net, _ := t.local(j.in, o, analysis)
	_, err := net.Run(ctx, newCourse(t, j.exactStart))
	err = cmp.Or(t.evidence.stepsErr, err) // without the steps, a failure says nothing
	comparesLoss := func(name string) bool { return pack.Parse(name).IsLoss() && j.scope.compares(name) }
	if err != nil || !o.Training || !slices.ContainsFunc(slices.Collect(maps.Keys(j.pack.Manifest.Tensors)), comparesLoss) {
		return err
	}
	if j.pack.HasStageGradients(j.model.Config.NumHiddenLayers) {
		return t.learn(ctx)
	}
	return t.chained(ctx, true)
}

// withRoundings repeats a run that failed with report plain, if weights were rounded.
func withRoundings(ctx context.Context, e *evidence, plain *report.Report) (*evidence, *report.Report, error) {
	j := e.job
	rounded, err := j.roundings(j.options.Rounded)
	if err != nil {
		plain.Hints = append(plain.Hints, report.Cause{ID: "rounding", Text: "whether weights were rounded is not known: " +
			err.Error()})
	}
	if len(rounded) == 0 {
		return e, plain, ctx.Err()
	}
	o, all, allFailed := *j.options, e, plain
	o.Progress = nil
	if e.stopped { // all stages that fail are counted
		every := o
		every.FailFast = false
		if all, err = j.with(&every, nil).gather(ctx); err != nil {
			return e, nil, err
		}
		allFailed = conclude(all.project())
	}
	// Blocks may hold the reference's own numbers, as those that FP4 was repacked to: then every stage behind them
	// passed.
	maps.DeleteFunc(rounded, func(name string, _ tensor.Rounding) bool {
		w := j.weights.Find(name)
		_, exercised := all.exercised[name]
		_, failed := all.failed[name]
		return exercised && !failed && (w.DType.Blocked() || j.weights.decodedFrom(w) != "")
	})
	if len(rounded) == 0 {
		return e, plain, ctx.Err()
	}
	again, err := j.with(&o, rounded).gather(ctx)
	if err != nil {
		return e, nil, err
	}
	r := conclude(again.project())
	explain(r, rounded, allFailed)
	return again, r, nil
}

// withTF32 repeats a run that failed, if the manifest says that a GPU may have rounded the operands of float32 products to
// TF32. It returns the first run that does not fail: with all of them rounded to nearest, all cut off, or some rounded. If
// all fail, it returns the run in which most stages pass.
func withTF32(ctx context.Context, e *evidence, r *report.Report) (*evidence, *report.Report, error) {
	j := e.job
	if r.Verdict != report.Fail || !j.pack.Manifest.Reference.TF32() || j.pack.IsTrace() || j.options.Mode != report.Local {
		return e, r, nil
	}
	passing := func(r *report.Report) (n int) {
		for _, c := range r.Checks {
			if c.Verdict == report.Pass {
				n++
			}
		}
		return n
	}
	for _, how := range []bounds.Operands{bounds.Nearest, bounds.CutOff, bounds.SomeRounded} {
		again := *j
		again.operands, again.rounded = how, nil
		found, err := again.gather(ctx)
		if err != nil {
			return e, r, err
		}
		found, with, err := withRoundings(ctx, found, conclude(found.project()))
		if err != nil || with.Verdict != report.Fail {
			return found, with, err
		}
		if passing(with) > passing(r) {
			e, r = found, with
		}
	}
	return e, r, nil
}
