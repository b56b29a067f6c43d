// Package verify compares a model with the golden tensors of a reference run.
//
// Run loads the weights of a source, runs the model
// over the pack's input, compares every stage and returns a Report, which
// WriteText and json.Marshal render. The package writes nothing and opens no
// checkpoint.
package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// unusedLimits refuses a limit that names no measured stage: a typo would leave the stage
// that was meant at its default.
func unusedLimits(limits map[string]float64, checks []report.Check) error {
	for _, stage := range slices.Sorted(maps.Keys(limits)) {
		if !slices.ContainsFunc(checks, func(c report.Check) bool { return c.RelRMS != nil && matches(c.Tensor, stage) }) {
			return fmt.Errorf("limit %s: no stage that was measured is named so", text.Quote(stage))
		}
	}
	return nil
}

// Run verifies the weights of src under the configuration c, with the pack's
// config_overrides in force, against pack. The error says why no comparison could
// be made: tensors that do not fit the config (*weights.MismatchError), an input
// that is not one, a broken pack.
func Run(ctx context.Context, c *config.Config, src weights.Source, golden *pack.Pack, o Options) (*report.Report,
	error) {
	stored := c
	s, err := scopeOf(c, golden, &o)
	if err != nil {
		return nil, err
	}
	c = s.config
	m, err := model.LoadPart(c, src, s.runs)
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(golden.CheckShape(c), checkRecorded(c, golden, &o)); err != nil {
		return nil, err
	}
	s.course.Predictions = min(s.course.Predictions, m.PredictionLayers())
	in, err := golden.Input()
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(s.checkProbes(in), s.checkChoices(in)); err != nil {
		return nil, err
	}
	r := newRun(s, stored, m, src, in, &o)
	if err := r.checkTied(); err != nil {
		return nil, err
	}
	if r.contradictions, err = r.beside(); err != nil {
		return nil, err
	}
	found, err := r.verify(ctx)
	if err != nil {
		return nil, err
	}
	verdict := found.report()
	if verdict.Verdict == report.Fail {
		if found, verdict, err = found.withRoundings(ctx, verdict); err == nil {
			found, verdict, err = found.observe(ctx, verdict)
		}
	}
	if err == nil && !o.Undiagnosed {
		err = found.diagnose(ctx, verdict)
	}
	if err == nil {
		err = found.advise(verdict)
	}
	return verdict, err
}

// Reads returns which weights Run reads of a checkpoint with the configuration c.
func Reads(c *config.Config, golden *pack.Pack, o Options) (func(*weights.Weight) bool, error) {
	s, err := scopeOf(c, golden, &o)
	if err != nil {
		return nil, err
	}
	return func(w *weights.Weight) bool { return s.needs(w.OwnerPlace()) }, nil
}

// scopeOf checks the options and the pack, and settles what is run.
func scopeOf(c *config.Config, golden *pack.Pack, o *Options) (*scope, error) {
	o.Mode = cmp.Or(o.Mode, report.Local)
	if err := cmp.Or(o.check(), golden.CheckFamily(c), golden.Spell(c), checkEngine(golden, o)); err != nil {
		return nil, err
	}
	c, err := golden.Config(c, o.Reference)
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(checkIndexed(c, golden), checkKept(c, golden)); err != nil {
		return nil, err
	}
	return newScope(c, golden, o)
}

// checkIndexed refuses packs of models with indexers whose references do what is not computed here.
func checkIndexed(c *config.Config, golden *pack.Pack) error {
	switch attention := golden.Manifest.Reference.Attention; {
	case !c.HasIndexer():
	case c.HCMult > mostStreams:
		return golden.Fault(fmt.Sprint("hc_mult ", c.HCMult), fmt.Sprintf(
			"the covariance of the weights of more than %d streams is not computed", mostStreams))
	case golden.Manifest.Mode == "train":
		return golden.Fault("model_type "+c.ModelType, "packs of training are not supported: no gradient passes an indexer")
	case golden.DType == tensor.F16:
		return golden.Fault("model_type "+c.ModelType, "F16 packs are not supported: the reference keeps weights_proj in "+
			"float32 then")
	case attention == pack.Sdpa:
		return golden.Fault("model_type "+c.ModelType, "packs of sdpa attention are not supported: record it with eager "+
			"attention")
	}
	return nil
}

// checkKept refuses packs whose references kept weights in float32 that are rounded to the compute dtype here.
func checkKept(c *config.Config, golden *pack.Pack) error {
	for s := range table.FamilyOf(c).Slots(c) {
		kind := pack.Parse(s.Name).Kind
		if slices.Contains(golden.Manifest.KeptFloat32, kind) && !model.InFloat32(c, s.Place) {
			return golden.Fault("kept_float32", fmt.Sprintf("the reference kept %s in float32, which is not computed for "+
				"model_type %s", kind, c.ModelType))
		}
	}
	return nil
}

// mostStreams is how many streams a model may have: the memory for each token grows with the fourth power, to 300 KB.
const mostStreams = 8

// verify runs the model once.
func (r *run) verify(ctx context.Context) (found outcome, err error) {
	t := newTracer(r)
	t.leaveOut()
	found = outcome{r, t.result}
	if err := t.trace(ctx); errors.Is(err, errStopped) {
		return found, nil
	} else if err != nil {
		return found, err
	}
	if t.o.Part == nil { // of a part, a merge sees which limits were of use
		if err := unusedLimits(t.o.Limits, t.checks); err != nil {
			return found, err
		}
	}
	return found, found.scan(ctx)
}

// withRoundings repeats a run that failed with report plain, if weights were rounded.
func (t outcome) withRoundings(ctx context.Context, plain *report.Report) (outcome, *report.Report, error) {
	rounded, err := t.roundings(t.o.Rounded)
	if err != nil {
		plain.Hints = append(plain.Hints, report.Cause{ID: "rounding", Text: "whether weights were rounded is not known: " +
			err.Error()})
	}
	if len(rounded) == 0 {
		return t, plain, ctx.Err()
	}
	o, all, whole := *t.o, t, plain
	o.Progress = nil
	if t.stopped { // all stages that fail are counted
		every := o
		every.FailFast = false
		if all, err = t.copyWith(&every, nil).verify(ctx); err != nil {
			return t, nil, err
		}
		whole = all.report()
	}
	maps.DeleteFunc(rounded, func(name string, _ tensor.Rounding) bool { return all.repacked(name) })
	if len(rounded) == 0 {
		return t, plain, ctx.Err()
	}
	again, err := t.copyWith(&o, rounded).verify(ctx)
	if err != nil {
		return t, nil, err
	}
	r := again.report()
	explain(r, rounded, whole)
	return again, r, nil
}

// trace runs the model over the input, and backward if the pack is one of training. In local mode
// that is a pass of its own.
func (t *tracer) trace(ctx context.Context) error {
	if t.o.Mode == report.Chained {
		return t.chained(ctx, &chainedTrace{tracer: t})
	}
	o := t.options()
	analysis := t.analysis(o, t.rounded)
	defer analysis.Close()
	net := t.local(t.in, o, analysis)
	_, err := net.Run(ctx, newCourse(t, bounds.Exact))
	err = cmp.Or(t.stepsErr, err) // without the steps, a failure says nothing
	if err != nil || !o.Training || !t.comparesTraining() {
		return err
	}
	if t.stageGradients() {
		return t.learn(ctx)
	}
	return t.chained(ctx, &replay{t})
}
