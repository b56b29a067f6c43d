package verify

import (
	"context"
	"maps"
	"slices"
	"strings"

	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// Recognition: where an engine in a 16-bit dtype rounds is read off its numbers. For each kind of operations one way of
// rounding is taken for the whole run, HuggingFace's eager one if all elements fit it, else the one that most elements
// fit.

// recogniseFused looks for the ways in which the reference's fused operations round, which are not known. If they are
// recognised, and no stage of another kind of operation fails, it returns the run with these ways.
func recogniseFused(ctx context.Context, e *evidence, r *report.Report) (*evidence, *report.Report, error) {
	if !e.job.unknownRoundings().fused || e.job.options.Mode != report.Local || !slices.ContainsFunc(r.Checks, excused) {
		return e, r, nil
	}
	strict := *e.job
	strict.recognises = true
	sampled, err := strict.recogniseSample(ctx, sampleElements)
	if err != nil {
		return e, r, err
	}
	again, err := sampled.gather(ctx)
	if err != nil {
		return e, r, err
	}
	again, found, err := recognise(ctx, again, conclude(again.project()))
	unknown := func(f recognised) bool { return !f.decided }
	other := func(c report.Check) bool { return c.Verdict == report.Fail && again.job.kindsOf(c.Tensor) == nil }
	if err != nil || slices.ContainsFunc(again.job.found, unknown) || slices.ContainsFunc(found.Checks, other) {
		return e, r, err
	}
	return again, found, nil
}

// recognise looks for an engine's ways of rounding if stages of a trace in a 16-bit dtype fail. It returns the run with the
// ways that were found.
func recognise(ctx context.Context, e *evidence, r *report.Report) (*evidence, *report.Report, error) {
	if !e.job.recognises || r.Verdict != report.Fail {
		return e, r, nil
	}
	again, user := *e.job, e.job.options
	j := &again
	all, seen, ran := *user, r, e
	if all.FailFast = false; e.stopped { // all stages that fail are looked at
		var err error
		if ran, err = j.with(&all, j.rounded).gather(ctx); err != nil {
			return e, r, err
		}
		seen = conclude(ran.project())
	}
	ran, seen, err := recogniseInputs(ctx, ran, seen)
	if err != nil {
		return e, r, err
	}
	if ran.job.engine != j.engine {
		j.engine, e, r = ran.job.engine, ran, seen
	}
	for _, everywhere := range []bool{false, true} {
		tries := &trials{j, seen.Checks, everywhere}
		open := slices.DeleteFunc(tries.open(), func(k *kind) bool { // what the first layers said to be wrong is wrong
			return slices.ContainsFunc(j.found, func(f recognised) bool {
				return f.kind.name == k.name && f.decided && f.missed > 0
			})
		})
		if len(open) == 0 {
			break
		}
		for _, k := range open {
			k.leaveOut(j.tried[k.name])
		}
		if !everywhere && j.in.Batch*j.in.Seq <= sharedTokens {
			j.seen = &bounds.Seen{}
		}
		if j, err = tries.kinds(ctx, open); err != nil {
			return e, r, err
		}
		j.seen = nil
		if e, err = j.with(&all, j.rounded).gather(ctx); err != nil {
			return e, r, err
		}
		if r = conclude(e.project()); r.Verdict != report.Fail {
			break
		}
		seen = r
	}
	if r.Verdict == report.Fail && user.FailFast && !e.stopped {
		if e, err = j.gather(ctx); err != nil {
			return e, r, err
		}
		r = conclude(e.project())
	}
	return e, r, nil
}

// sharedTokens is of how many tokens trials keep their products: of DeepSeek-V3's widths they take 170 MB for each layer.
const sharedTokens = 64

// sampleElements is how many elements of a stage tell ways of rounding apart. Measured: two ways that differ at all differ in
// at least .002 of the elements.
const sampleElements = 1 << 16

// recogniseSample returns the job with the ways of rounding that explain all of the first tokens in one MoE layer, one dense
// layer and the head, in about so many elements of a stage. Most of an engine's ways are known then before all is run. It
// looks at no trace of fewer than twice these tokens, nor where tokens see others than all before them.
func (j *job) recogniseSample(ctx context.Context, elements int) (*job, error) {
	c := j.model.Config
	n := 1 + elements/(c.HiddenSize*j.in.Batch)
	if !j.recognises || 2*n > j.in.Seq || j.in.AttentionMask != nil || c.HasIndexer() || c.Windowed() {
		return j, nil
	}
	layers := []int{-1} // the first MoE layer, the first dense one, and what is outside the layers
	for _, moe := range []bool{false, true} {
		for l, u := range j.scope.units[1 : 1+c.NumHiddenLayers] {
			if u.compares && c.IsMoE(l) == moe {
				layers = slices.Insert(layers, 0, l)
				break
			}
		}
	}
	sample, o, shown := *j, *j.options, map[string]bool{}
	o.Progress, o.FailFast, o.Part, o.Layers, o.Stages = nil, false, nil, nil, nil
	for _, l := range layers { // each kind in one of them
		var of []string
		for name := range j.pack.Manifest.Tensors {
			all := j.kindsOf(name)
			if pack.Parse(name).Layer == l && j.scope.compares(name) &&
				(slices.ContainsFunc(all, func(k string) bool { return !shown[k] }) || j.scaledForm(name) != "") {
				o.Stages, of = append(o.Stages, name), append(of, all...)
			}
		}
		for _, k := range of {
			shown[k] = true
		}
	}
	if o.Stages == nil {
		return j, nil
	}
	var err error
	if sample.pack, err = j.pack.First(c, n, func(s pack.Stage) bool {
		return slices.Contains(layers, s.Layer) || slices.Contains(layers, s.Layer+1) || s.Layer == c.NumHiddenLayers-1
	}); err != nil {
		return nil, err
	}
	if sample.in, err = sample.pack.Input(); err != nil {
		return nil, err
	}
	sample.rows, sample.options, sample.trial, sample.counts, sample.seen = sample.in, &o, true, true, &bounds.Seen{}
	if sample.scope, err = newScope(c, sample.pack, &o); err != nil {
		return nil, err
	}
	e, err := sample.gather(ctx)
	if err != nil {
		return nil, err
	}
	e, r, err := recogniseInputs(ctx, e, conclude(e.project()))
	if err != nil {
		return nil, err
	}
	tries := &trials{job: e.job, checks: r.Checks}
	found, err := tries.kinds(ctx, tries.open())
	if err != nil {
		return nil, err
	}
	whole := *j
	whole.engine = e.job.engine
	j = whole.recognising(slices.DeleteFunc(found.found, func(f recognised) bool { return !f.decided || f.missed > 0 }))
	j.tried = nil // in few tokens
	return j, nil
}

// trials are runs of a job with ways of rounding whose kinds fail, everywhere or in the first layers.
type trials struct {
	job        *job
	checks     []report.Check // of the whole job
	everywhere bool
}

// kinds returns the job with what the ways of the open kinds say.
func (t *trials) kinds(ctx context.Context, open []*kind) (*job, error) {
	for len(open) > 0 {
		now, later := t.separable(open)
		found, err := t.ways(ctx, now, later)
		if err == nil && !t.job.trial {
			err = t.recorded(ctx, found, later)
		}
		if err != nil {
			return nil, err
		}
		t.job, open = t.job.recognising(found), later
	}
	return t.job, nil
}

// recorded tries the ways of the kinds that were not recognised again, with the config that the trace holds, if that
// is another one. A way that explains all elements then is the engine's: what it does not explain with the checkpoint's
// config is wrong.
func (t *trials) recorded(ctx context.Context, found []recognised, later []*kind) error {
	j := t.job
	if len(meaningful(j.settings.Differ)) == 0 {
		return nil
	}
	var open []*kind
	for _, f := range found {
		if f.unexplained() {
			open = append(open, f.kind)
		}
	}
	recorded, err := j.pack.RecordedConfig(j.model.Config.Reference)
	if err != nil || open == nil {
		return err
	}
	other, m := *j, *j.model
	m.Config, other.model = recorded, &m
	with, err := (&trials{&other, t.checks, t.everywhere}).ways(ctx, open, later)
	for _, f := range with {
		if f.decided && f.missed == 0 {
			i := slices.IndexFunc(found, func(ours recognised) bool { return ours.kind == f.kind })
			f.missed, f.recorded = found[i].misses[f.way], true
			found[i] = f
		}
	}
	return err
}

// recognising returns the job with the ways of rounding that were found. Of kinds whose ways all explain the same part
// nothing was found.
func (j *job) recognising(found []recognised) *job {
	found = slices.DeleteFunc(slices.Clone(found), func(f recognised) bool { return f.decided && f.unexplained() })
	again := j.rounding(func(ways map[string]string) {
		for _, f := range found {
			maps.Copy(ways, f.ways())
		}
	})
	again.found = slices.DeleteFunc(slices.Clone(j.found), func(old recognised) bool {
		return slices.ContainsFunc(found, func(f recognised) bool { return f.kind.name == old.kind.name })
	})
	again.tried = maps.Clone(j.tried)
	if again.tried == nil {
		again.tried = map[string][]int{}
	}
	for _, f := range found {
		again.tried[f.kind.name] = f.misses
		if f.way > 0 || f.missed > 0 || len(f.layers) > 0 || f.decode >= 0 { // otherwise as HuggingFace's eager classes
			again.found = append(again.found, f)
		}
	}
	return again
}

// rounding returns the job with other ways of rounding, which set has set.
func (j *job) rounding(set func(ways map[string]string)) *job {
	again, engine := *j, *j.engine
	engine.Rounding = maps.Clone(j.engine.Rounding)
	if engine.Rounding == nil {
		engine.Rounding = map[string]string{}
	}
	set(engine.Rounding)
	again.engine = &engine
	return &again
}

// open returns the kinds of the stages that fail, with the ways that agree with what is declared, if there are several.
func (t *trials) open() (open []*kind) {
	failing, declared, reference := map[string]bool{}, map[string]string{}, t.job.referenceWays()
	for _, c := range t.checks {
		if c.Verdict == report.Fail {
			for _, name := range t.job.kindsOf(c.Tensor) {
				failing[name] = true
			}
		}
	}
	if a := t.job.pack.Manifest.Arithmetic; a != nil {
		declared = a.Rounding
	}
	for _, k := range kinds {
		if k = k.with(declared).referenceFirst(reference); failing[k.name] && len(k.ways) > 1 {
			open = append(open, &k)
		}
	}
	return open
}

// separable splits the open kinds. A kind can be tried now if a stage fails that shows this kind alone. The stages of the
// others show several kinds: they are tried later, when the former are known. If all failing stages show several kinds, the
// first kind is tried now.
func (t *trials) separable(open []*kind) (now, later []*kind) {
	for _, k := range open {
		others := slices.DeleteFunc(slices.Clone(open), func(other *kind) bool { return other == k })
		alone := func(c report.Check) bool {
			return c.Verdict == report.Fail && t.shows(c.Tensor, []*kind{k}) && !t.shows(c.Tensor, others)
		}
		if slices.ContainsFunc(t.checks, alone) {
			now = append(now, k)
		} else {
			later = append(later, k)
		}
	}
	if now == nil {
		return open[:1], open[1:]
	}
	return now, later
}

// shows reports whether a stage shows the roundings of one of some kinds.
func (t *trials) shows(stage string, some []*kind) bool {
	names := t.job.kindsOf(stage)
	return slices.ContainsFunc(some, func(k *kind) bool { return slices.Contains(names, k.name) })
}

// stages returns the stages of the open kinds that are compared: everywhere, or in the first layers in which one fails. If
// some show none of the later kinds, these alone.
func (t *trials) stages(open, later []*kind) (stages []string) {
	j := t.job
	for _, k := range open {
		of := func(stage string) bool { return t.shows(stage, []*kind{k}) && !t.shows(stage, later) }
		layers := map[int]bool{}
		for _, c := range t.checks {
			if c.Verdict == report.Fail && of(c.Tensor) && len(layers) < recognisedLayers {
				layers[c.Layer()] = true
			}
		}
		for name := range j.pack.Manifest.Tensors {
			if of(name) && j.scope.compares(name) && (t.everywhere || layers[pack.Parse(name).Layer]) {
				stages = append(stages, name)
			}
		}
	}
	if slices.Sort(stages); stages == nil && later != nil {
		return t.stages(open, nil)
	}
	return slices.Compact(stages)
}

// recognisedLayers is the number of layers of a kind in which its ways are tried; the way that is found is confirmed in
// all.
const recognisedLayers = 2

// ways runs the layers in which stages of the open kinds fail with each of their ways, all kinds at once: each is
// computed from goldens, so that they do not depend on one another. A kind whose first way explains all is tried in no other.
func (t *trials) ways(ctx context.Context, open, later []*kind) ([]recognised, error) {
	j, by := t.job, map[string][]map[string]misses{}
	for i := 0; ; i++ {
		left := slices.DeleteFunc(slices.Clone(open), func(k *kind) bool {
			return i >= len(k.ways) || i > 0 && total(by[k.name][0]) == 0
		})
		if len(left) == 0 {
			break
		}
		part := j.rounding(func(ways map[string]string) {
			for _, k := range left {
				maps.Copy(ways, k.waysOf(i))
			}
		})
		part.found = slices.DeleteFunc(slices.Clone(j.found), func(f recognised) bool { // their layers have no way of their own
			return slices.ContainsFunc(open, func(k *kind) bool { return k.name == f.kind.name })
		})
		missed, err := part.missesOf(ctx, t.stages(left, later))
		if err != nil {
			return nil, err
		}
		for _, k := range left {
			of := map[string]misses{}
			for stage, m := range missed {
				if t.shows(stage, []*kind{k}) {
					of[stage] = m
				}
			}
			by[k.name] = append(by[k.name], of)
		}
	}
	var found []recognised
	for _, k := range open {
		found = append(found, j.decide(k, by[k.name]))
	}
	return found, nil
}

// missesOf returns which elements of some stages miss, each computed from goldens.
func (j *job) missesOf(ctx context.Context, stages []string) (map[string]misses, error) {
	o := *j.options
	o.Progress, o.FailFast, o.Part, o.Stages = nil, false, nil, stages
	s, err := newScope(j.model.Config, j.pack, &o)
	if err != nil {
		return nil, err
	}
	part := *j
	part.options, part.scope, part.trial, part.counts = &o, s, true, true
	found, err := part.gather(ctx)
	if err != nil {
		return nil, err
	}
	return found.misses, nil
}

// recogniseInputs looks for what an engine that declares nothing rounds the inputs of products with FP8 weights to, where
// such products fail whose sums are rounded in one way alone. It returns the run with what it found.
func recogniseInputs(ctx context.Context, e *evidence, r *report.Report) (*evidence, *report.Report, error) {
	j, stages := *e.job, map[string][]string{}
	for _, c := range r.Checks {
		form := j.scaledForm(c.Tensor)
		if form != "" && c.Verdict == report.Fail && j.engine.Activations[form] == "" && len(stages[form]) < recognisedProducts {
			stages[form] = append(stages[form], c.Tensor)
		}
	}
	for _, form := range slices.Sorted(maps.Keys(stages)) {
		k, by := kind{ways: [][]string{{"f32"}}}, []map[string]misses{}
		for _, to := range usualRoundings(form) {
			k.ways = append(k.ways, []string{to})
		}
		tried := func(way int) *job {
			other, engine := j, *j.engine
			engine.Activations = maps.Clone(engine.Activations)
			if engine.Activations == nil {
				engine.Activations = map[string]string{}
			}
			engine.Activations[form] = k.ways[way][0]
			other.engine = &engine
			return &other
		}
		for i := range k.ways {
			missed, err := tried(i).missesOf(ctx, stages[form])
			if err != nil {
				return nil, nil, err
			}
			by = append(by, missed)
		}
		if f := decide(&k, by); f.decided && f.way > 0 {
			j = *tried(f.way)
		}
	}
	if j.engine == e.job.engine {
		return e, r, nil
	}
	found, err := j.gather(ctx)
	if err != nil {
		return nil, nil, err
	}
	return found, conclude(found.project()), nil
}

// scaledForm returns the form of the weight with scales whose product a stage is, if sums of it are rounded in one way
// alone; else "".
func (j *job) scaledForm(stage string) string {
	for _, form := range j.weights.forms(strings.TrimSuffix(stage, ".output") + ".weight") {
		if d, _ := tensor.ParseDType(form); d.Scaled() && j.kindsOf(stage) == nil {
			return form
		}
	}
	return ""
}

// recognisedProducts is the number of failing products in which roundings of their inputs are tried.
const recognisedProducts = 4
