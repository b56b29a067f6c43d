// Package verify compares a model with the golden tensors of a reference run.
//
// Run loads the weights of a source, runs the model
// over the pack's input, compares every stage and returns a Report, which
// WriteText and json.Marshal render. The package writes nothing and opens no
// checkpoint.
package verify

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// Options are how to verify. The zero value is local mode with float64 sums.
type Options struct {
	Mode       report.Mode       // how stages are fed; "" is Local
	Accumulate model.Accumulator // of our own dot products
	// RotaryDType is the dtype in which the reference kept RoPE's inv_freq and angles:
	// Invalid means what the pack's manifest says (made_by), and where it says nothing the
	// compute dtype, as model.to(dtype) leaves them.
	RotaryDType tensor.DType
	// Reference overrides what the pack's manifest says of whose behaviour to follow.
	Reference config.Reference
	// Limits multiplies the standard deviations of the stages that a key names, or in
	// chained mode and of losses and gradients their limits, by a factor above 0. A key is
	// a stage's whole name, or what follows a dot in it; the longest one counts.
	Limits map[string]float64
	// Layers and Stages select what is compared: stages of these layers, prediction layers
	// among them, that one of these globs of package path matches, by their whole name or by
	// what stands behind "model.layers.N.". Empty ones select all. Of the layers, and of the
	// embedding and the head, only those with something selected are run; other stages of
	// these are taken from the pack and not compared. RoPE's tables always are.
	Layers      text.Spans
	Stages      []string
	FailFast    bool // the run ends with the first stage that fails
	Undiagnosed bool // the cause of a failure is not looked for
	// Rounded tells which stored tensors hold what a conversion rounded to their dtype, and
	// by which operation. It is asked if a stage fails in local mode: the run is then
	// repeated with the error that this rounding allows. It may be nil.
	Rounded     func() (map[string]tensor.Rounding, error)
	ConfigHash  string                // "sha256:…" of the checkpoint's config.json; "" if it has none
	Decoded     Decoded               // what src knows of weights that it decodes; may be nil
	Pages       model.Pages           // what src is mapped into; may be nil
	Parallelism int                   // goroutines; 0 means GOMAXPROCS
	Progress    func(done, total int) // called after each golden tensor; may be nil
}

// Decoded knows the weights that a source decodes to the dtype that they seem to have.
type Decoded interface {
	// DecodedFrom returns the dtypes that the elements of a stored tensor are decoded from, such
	// as "F16 and Q8_0", if one of them is a block type, and else "".
	DecodedFrom(name string) string
	// HalfSteps returns, for each element of such a tensor, half the distance between the
	// numbers that those dtypes have there.
	HalfSteps(name string) ([]float32, error)
}

// check says what is wrong with the options.
func (o *Options) check() error {
	if o.Mode != report.Local && o.Mode != report.Chained {
		return fmt.Errorf("mode %q: not local or chained", o.Mode)
	}
	for _, stage := range slices.Sorted(maps.Keys(o.Limits)) {
		if l := o.Limits[stage]; !(l > 0) || math.IsInf(l, 0) {
			return fmt.Errorf("limit %s=%g: not a number above 0", text.Quote(stage), l)
		}
	}
	return nil
}

// unusedLimits refuses a limit that names no measured stage: a typo would leave the stage
// that was meant at its default.
func (t *tracer) unusedLimits() error {
	for _, stage := range slices.Sorted(maps.Keys(t.o.Limits)) {
		if !slices.ContainsFunc(t.checks, func(c report.Check) bool { return c.RelRMS != nil && matches(c.Tensor, stage) }) {
			return fmt.Errorf("limit %s: no stage that was measured is named so", text.Quote(stage))
		}
	}
	return nil
}

// Run verifies the weights of src under the configuration c, with the pack's
// config_overrides in force, against pack. The error says why no comparison could
// be made: tensors that do not fit the config (*weights.MismatchError), an input
// that is not one, a broken pack.
func Run(ctx context.Context, c *config.Config, src weights.Source, golden *pack.Pack, o Options) (*report.Report, error) {
	if o.Mode == "" {
		o.Mode = report.Local
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	if err := golden.CheckFamily(c); err != nil {
		return nil, err
	}
	stored := c
	c, err := golden.Config(c, o.Reference)
	if err != nil {
		return nil, err
	}
	s, err := newScope(c, golden, &o)
	if err != nil {
		return nil, err
	}
	m, err := model.LoadPart(c, src, s.runs)
	if err != nil {
		return nil, err
	}
	if err := golden.CheckShape(c); err != nil {
		return nil, err
	}
	s.course.Predictions = min(s.course.Predictions, m.PredictionLayers())
	in, err := golden.Input()
	if err != nil {
		return nil, err
	}
	if err := s.checkProbes(in); err != nil {
		return nil, err
	}
	r := newRun(s, stored, m, src, in, &o)
	if err := r.checkTied(); err != nil {
		return nil, err
	}
	found, err := r.verify(ctx)
	if err != nil {
		return nil, err
	}
	verdict := found.report()
	if verdict.Verdict == report.Fail {
		found, verdict, err = found.withRoundings(ctx, verdict)
	}
	if err != nil || o.Undiagnosed {
		return verdict, err
	}
	return verdict, found.diagnose(ctx, verdict)
}

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
	if err := t.unusedLimits(); err != nil {
		return found, err
	}
	return found, found.scan(ctx)
}

// withRoundings repeats a run that failed with report plain, if weights were rounded.
func (t outcome) withRoundings(ctx context.Context, plain *report.Report) (outcome, *report.Report, error) {
	rounded, err := t.roundings(t.o.Rounded)
	if err != nil {
		plain.Hints = append(plain.Hints, report.Cause{ID: "rounding", Text: "whether weights were rounded is not known: " + err.Error()})
	}
	if len(rounded) == 0 {
		return t, plain, ctx.Err()
	}
	o := *t.o
	o.Progress = nil
	if t.stopped { // all stages that fail are counted
		whole := o
		whole.FailFast = false
		all, err := t.with(&whole, nil).verify(ctx)
		if err != nil {
			return t, nil, err
		}
		plain = all.report()
	}
	again, err := t.with(&o, rounded).verify(ctx)
	if err != nil {
		return t, nil, err
	}
	r := again.report()
	explain(r, rounded, plain)
	return again, r, nil
}
