package verify

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// What verification computes with, and what a trace of it sees.
type (
	value      = *model.Activation
	arithmetic = model.Arithmetic[value]
	network    = model.Network[value]
	choice     = model.Choice[value]
)

// tracer compares each stage of a forward pass with the pack. In local mode it puts
// the golden tensor in the stage's place. It implements model.Trace.
type tracer struct {
	pack        *Pack
	m           *model.DeepseekForCausalLM
	src         weights.Source // of m's weights
	set         *weights.Set   // the same under the names of the table
	o           *Options
	attribution *attribution[value] // of the pass under way
	checks      []Check
	expected    int             // golden tensors beside the inputs
	seen        map[string]bool // golden tensors
	kinds       map[string]bool // stages that the pack has in some layer
	used        weightSet       // weights behind a checked stage

	routing   Routing
	chosen    []int                // by the last gate
	reached   map[int]map[int]bool // layer -> expert
	logitsErr []float64            // of the last gate, per token: max |logit - golden|
}

func newTracer(pack *Pack, m *model.DeepseekForCausalLM, src weights.Source, o *Options) *tracer {
	t := &tracer{
		pack: pack, m: m, src: src, set: weights.New(m.Config, src), o: o,
		seen:    map[string]bool{"input_ids": true, "attention_mask": true},
		kinds:   map[string]bool{},
		used:    weightSet{},
		reached: map[int]map[int]bool{},
	}
	for name := range pack.Manifest.Tensors {
		_, kind := split(name)
		t.kinds[kind] = true
		if !t.seen[name] {
			t.expected++
		}
	}
	return t
}

// run runs the model over in, and backward if the pack is one of training.
func (t *tracer) run(ctx context.Context, in *model.Input) error {
	o := t.options()
	plain := model.NewPlain(o)
	defer plain.Close(nil)
	if !o.Training {
		_, err := t.network(in, o, plain).Forward(ctx)
		return err
	}
	tape := model.NewTape(plain, func(weight string) bool { return t.pack.Has(weight + grad) })
	_, err := model.Train(ctx, t.network(in, o, tape), tape)
	return err
}

// options are those of a pass.
func (t *tracer) options() model.Options {
	return model.Options{
		DType:       t.pack.DType,
		RotaryDType: t.o.RotaryDType,
		Training:    t.pack.Manifest.Mode == "train",
		Accumulate:  t.o.Accumulate,
		Parallelism: t.o.Parallelism,
		Pages:       t.o.Pages,
	}
}

// network is the model over what computes, watched by t.
func (t *tracer) network(in *model.Input, o model.Options, computes arithmetic) *network {
	t.attribution = newAttribution(computes, func(x value) *model.Activation { return x })
	return &network{Model: t.m, Input: in, Options: o, Arithmetic: t.attribution, Trace: t}
}

// golden says whether the pack has the stage. If it lacks the stage in this layer
// only, that is a failed check.
func (t *tracer) golden(name string) bool {
	if t.pack.Has(name) {
		t.seen[name] = true
		return true
	}
	if layer, kind := split(name); t.kinds[kind] {
		t.add(Check{Tensor: name, Verdict: Fail, layer: layer, Reason: "the pack has no such tensor for this layer, though it has for others"})
	}
	return false
}

func (t *tracer) add(c Check) {
	t.checks = append(t.checks, c)
	if t.o.Progress != nil {
		t.o.Progress(len(t.checks), t.expected)
	}
}

// Stage compares one stage's output.
func (t *tracer) Stage(name string, a *model.Activation) error {
	if t.golden(name) {
		c, err := t.compare(name, a)
		if err != nil {
			return err
		}
		t.add(c)
		if c.Verdict != Skipped {
			for _, w := range t.attribution.weights(a) {
				t.used[w] = struct{}{}
			}
			t.attribution.checked(a)
		}
	}
	if layer, kind := split(name); kind == topKWeight {
		t.reach(layer, a)
	}
	return nil
}

// compare checks a against the golden tensor and, in local mode, replaces it.
func (t *tracer) compare(name string, a *model.Activation) (Check, error) {
	layer, kind := split(name)
	e := t.pack.Manifest.Tensors[name]
	c := Check{Tensor: name, DType: e.DType.String(), Shape: e.Shape, layer: layer}
	if reason := unfit(e, a.Shape, a.DType); reason != "" {
		c.Verdict, c.Reason = Fail, reason
		return c, nil
	}
	want, err := t.pack.Float32s(name)
	if err != nil {
		return c, err
	}
	if kind == gateLogits {
		t.logitsErr = rowErrors(a, want)
	}
	m := Compare(a.Values, want, a.Width(), a.DType)
	c.measure(m, a, want)
	c.judge(m, t.limits(name, a.DType), t.unjudged(name))
	if t.o.Mode == Local && finiteAll(want) {
		copy(a.Values, want)
	}
	return c, nil
}

// unfit says why a golden tensor cannot be compared at all. Axes of length 1 do not
// count: hooks see them where a reference reshapes on the way.
func unfit(e Entry, shape []int, d tensor.DType) string {
	one := func(n int) bool { return n == 1 }
	switch {
	case !slices.Equal(slices.DeleteFunc(slices.Clone(e.Shape), one), slices.DeleteFunc(slices.Clone(shape), one)):
		return fmt.Sprintf("shape: golden %v, model %v", e.Shape, shape)
	case e.DType != d:
		return fmt.Sprintf("dtype: golden %s, computed in %s", e.DType, d)
	}
	return ""
}

// unjudged says why a stage is measured but not judged in this mode, if so.
func (t *tracer) unjudged(name string) string {
	if t.o.Mode == Local {
		return ""
	}
	if t.pack.DType != tensor.F32 {
		return "chained mode has no usable limit in " + t.pack.DType.String()
	}
	_, kind := split(name)
	switch kind {
	case layerOutput, logits, lastNorm, embedded, auxLoss, loss:
		return ""
	}
	if strings.HasSuffix(name, grad) {
		return ""
	}
	return "chained mode checks the layers' outputs"
}

// measure records m.
func (c *Check) measure(m Metrics, a *model.Activation, want []float32) {
	c.Index = unflatten(m.Worst, c.Shape)
	c.Got, c.Want = number(a.Values[m.Worst]), number(want[m.Worst])
	if !m.Finite {
		return
	}
	c.RelRMS, c.RowRMS, c.MaxRMS, c.MaxAbs = known(m.RelRMS), known(m.RowRMS), known(m.MaxRMS), known(m.MaxAbs)
	c.BitEqual, c.OneULP, c.WorstRow = known(m.BitEqual), known(m.OneULP), m.WorstRow
}

// judge sets the verdict of m under l; skip is why there is none.
func (c *Check) judge(m Metrics, l Limits, skip string) {
	if skip != "" {
		c.Verdict, c.Reason = Skipped, skip
		return
	}
	c.Limit, c.Limits, c.Verdict = &l.RelRMS, &l, Fail
	if !m.Finite {
		c.Reason = "not finite"
		return
	}
	margin := l.margin(m, tensor.Info{Shape: c.Shape}.Len())
	c.Margin = known(margin)
	if margin <= 1 {
		c.Verdict = Pass
	}
}

// known returns a pointer to v, nil if JSON has no number for it.
func known(v float64) *float64 {
	if math.IsInf(v, 0) || math.IsNaN(v) {
		return nil
	}
	return &v
}

// number prints a float32 with all its digits, NaN and infinities by name.
func number(v float32) string { return strconv.FormatFloat(float64(v), 'g', -1, 32) }

func unflatten(i int, shape []int) []int {
	index := make([]int, len(shape))
	for d := len(shape) - 1; d >= 0; d-- {
		index[d], i = i%shape[d], i/shape[d]
	}
	return index
}

func finiteAll(x []float32) bool {
	return !slices.ContainsFunc(x, func(v float32) bool { return !finite(v) })
}

// rowErrors returns the largest difference of each row, but no more than chained mode
// lets pass: what is beyond is no noise.
func rowErrors(a *model.Activation, want []float32) []float64 {
	worst := make([]float64, a.Rows())
	for r := range worst {
		golden := want[r*a.Width() : (r+1)*a.Width()]
		for i, v := range a.Row(r) {
			worst[r] = max(worst[r], math.Abs(float64(v)-float64(golden[i])))
		}
		worst[r] = min(worst[r], 10*chainedCeiling*rms(golden))
	}
	return worst
}
