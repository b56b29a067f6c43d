package verify

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// tracer gathers what is found of a pack while the model runs.
type tracer struct {
	pack     *Pack
	m        *model.DeepseekForCausalLM
	src      weights.Source // of m's weights
	set      *weights.Set   // the same under the names of the table
	predicts int            // prediction layers that are run: those that the pack has stages of, if m can run them
	o        *Options
	rounded  roundings // what the reference had before it was rounded; nil takes weights as they are
	checks   []Check
	expected int             // golden tensors beside the inputs
	seen     map[string]bool // golden tensors
	kinds    map[string]bool // stages that the pack has in some layer
	free     map[string]bool // kinds of stages that the model has and the pack has not
	zeros    []string        // golden tensors that are all zero
	// notFinite says which weights that took part in no checked stage hold a NaN or an
	// infinity.
	notFinite []string
	used      weightSet // weights behind a checked stage

	settings  Settings
	routing   Routing
	chosen    []int                // by the last gate
	reached   map[int]map[int]bool // layer -> expert
	logitsErr []float64            // of the last gate in chained mode, per token: max |logit - golden|
}

func newTracer(pack *Pack, m *model.DeepseekForCausalLM, src weights.Source, o *Options) *tracer {
	t := &tracer{
		pack: pack, m: m, src: src, set: weights.New(m.Config, src), o: o,
		seen:    map[string]bool{"input_ids": true, "attention_mask": true},
		kinds:   map[string]bool{},
		free:    map[string]bool{},
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
	t.predicts = min(predictions(m.Config, pack), m.PredictionLayers())
	return t
}

// predictions returns how many prediction layers there are up to the last that the pack has a
// stage of.
func predictions(c *config.Config, pack *Pack) (n int) {
	for name := range pack.Manifest.Tensors {
		if layer, _ := split(name); layer < c.NumHiddenLayers+c.NumNextNPredictLayers {
			n = max(n, layer-c.NumHiddenLayers+1)
		}
	}
	return n
}

// layers returns how many layers are run, prediction layers among them.
func (t *tracer) layers() int { return len(t.m.Model.Layers) + t.predicts }

// again is a tracer of the same pack and weights for another run, with a model that may
// differ.
func (t *tracer) again(m *model.DeepseekForCausalLM, o *Options) *tracer {
	return &tracer{
		pack: t.pack, m: m, src: t.src, set: t.set, predicts: t.predicts, o: o, kinds: t.kinds, expected: t.expected,
		seen: map[string]bool{}, free: map[string]bool{}, used: weightSet{}, reached: map[int]map[int]bool{},
	}
}

// run runs the model over in, and backward if the pack is one of training. In local mode
// that is a pass of its own.
func (t *tracer) run(ctx context.Context, in *model.Input) error {
	if t.o.Mode == Chained {
		return t.chained(ctx, in, &chainedTrace{tracer: t})
	}
	o := t.options()
	analysis := newAnalysis(o, t.rounded)
	defer analysis.Close()
	net := t.local(in, o, analysis, analysis)
	if _, err := net.ForwardMTP(ctx, t.predicts); err != nil || !o.Training {
		return err
	}
	return t.chained(ctx, in, &replay{t})
}

// options are those of a pass.
func (t *tracer) options() model.Options {
	return model.Options{
		DType:       t.pack.DType,
		RotaryDType: cmp.Or(t.o.RotaryDType, t.pack.Manifest.rotaryDType()),
		Training:    t.pack.Manifest.Mode == "train",
		Accumulate:  t.o.Accumulate,
		Parallelism: t.o.Parallelism,
		Pages:       t.o.Pages,
	}
}

// golden says whether the pack has the stage. If it lacks the stage in this layer
// only, that is a failed check.
func (t *tracer) golden(name string) bool {
	layer, kind := split(name)
	switch {
	case t.pack.Has(name):
		t.seen[name] = true
		return true
	case t.kinds[kind]:
		t.add(Check{Tensor: name, Verdict: Fail, layer: layer, Reason: "the pack has no such tensor for this layer, though it has for others"})
	default:
		t.free[kind] = true
	}
	return false
}

func (t *tracer) add(c Check) {
	t.checks = append(t.checks, c)
	if t.o.Progress != nil {
		t.o.Progress(len(t.checks), t.expected)
	}
}

// begin returns a check of a stage, failed if it cannot be compared, and the golden tensor.
func (t *tracer) begin(name string, a *model.Activation) (c Check, want []float32, err error) {
	layer, _ := split(name)
	e := t.pack.Manifest.Tensors[name]
	c = Check{Tensor: name, DType: e.DType.String(), Shape: e.Shape, layer: layer}
	if c.Reason = unfit(e, a.Shape, a.DType); c.Reason != "" {
		c.Verdict = Fail
		return c, nil, nil
	}
	want, err = t.pack.Float32s(name)
	if !isLoss(name) && !slices.ContainsFunc(want, func(v float32) bool { return v != 0 }) {
		t.zeros = append(t.zeros, name)
	}
	return c, want, err
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

// cover notes the weights behind a stage that was checked, by the arithmetic that knows them.
func cover[V comparable](t *tracer, c Check, by *attribution[V], x V) {
	if c.Verdict == Skipped {
		return
	}
	for _, w := range by.weights(x) {
		t.used[w] = struct{}{}
	}
	by.checked(x)
}

// measure records m.
func (c *Check) measure(m Metrics, got, want []float32) {
	c.Index = unflatten(m.Worst, c.Shape)
	c.Got, c.Want = number(got[m.Worst]), number(want[m.Worst])
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
	margin := l.margin(m)
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

// isLoss says whether a stage is one of training, forward or backward.
func isLoss(name string) bool { return name == loss || strings.HasSuffix(name, grad) }
