package verify

import (
	"context"
	"fmt"
	"slices"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
)

// failure is the first divergence of a local run, and what it takes to run its
// stage again.
type failure struct {
	tracer  *tracer
	in      *model.Input
	hidden  []float32 // golden input of the layer, or of the head
	layer   int       // -1 for the final norm and the head
	name    string    // of the golden tensor
	kind    string    // of the stage
	got     *model.Activation
	weights []string // that took part in got
	beyond  []bool   // rows of got with elements beyond their limits
	want    []float32
	idx     []int // golden choice of experts, if the routed sum failed and the pack has it
}

// diagnose looks for the mistake behind the first divergence: it runs that layer
// again, from the golden's inputs, with each candidate undone, and names the first
// with which the stage is within its limits.
func (t *tracer) diagnose(ctx context.Context, in *model.Input, r *Report) error {
	if r.FirstDivergence == nil || t.o.Mode != Local {
		return nil
	}
	f, err := t.failure(ctx, in, *r.FirstDivergence)
	if err != nil || f == nil {
		return err
	}
	if r.Cause, err = f.notFiniteWeight(); err != nil || r.Cause != nil {
		return err
	}
	for _, m := range mistakes(f) {
		if !slices.Contains(m.kinds, f.kind) {
			continue
		}
		if r.Cause, err = f.try(ctx, m); err != nil || r.Cause != nil {
			return err
		}
	}
	r.Cause, err = f.zeroWeight()
	return err
}

// failure runs the failed stage once more and keeps what it gave. It is nil if the
// stage cannot be run alone or compared with the golden; a choice of experts has
// nothing to keep.
func (t *tracer) failure(ctx context.Context, in *model.Input, name string) (*failure, error) {
	f := &failure{tracer: t, in: in, name: name}
	f.layer, f.kind = split(name)
	if f.layer >= t.layers() {
		return nil, nil // a layer that the model has not, or that was not run
	}
	var err error
	if f.layer >= 0 {
		if err = t.m.Hold(f.layer); err != nil {
			return nil, err
		}
	}
	if f.hidden, err = f.input(); err != nil || f.hidden == nil || !t.pack.Has(name) {
		return nil, err
	}
	if f.kind == topKIdx {
		f.got = &model.Activation{}
		if !slices.ContainsFunc(t.checks, func(c Check) bool { return c.Tensor == name }) {
			return nil, nil // a dense layer
		}
		return f, nil
	}
	if _, err = f.run(ctx, f.trial()); err != nil || f.got == nil {
		return nil, err
	}
	if f.want, err = t.pack.Float32s(name); err != nil || len(f.want) != len(f.got.Values) {
		return nil, nil // ids, or another shape: what is wrong is plain
	}
	if routing := fmt.Sprintf("model.layers.%d.%s", f.layer, topKIdx); f.kind == expertsOutput && t.pack.Has(routing) {
		f.idx, err = t.pack.Ints(routing)
	}
	return f, err
}

// input returns the golden input of the layer or head; nil if the pack lacks it.
func (f *failure) input() ([]float32, error) {
	m, pack := f.tracer.m, f.tracer.pack
	before, kind := f.layer-1, layerOutput
	if f.layer < 0 {
		before = len(m.Model.Layers) - 1
	}
	if before >= len(m.Model.Layers) {
		kind = predictedNorm
	}
	name := fmt.Sprintf("model.layers.%d.%s", before, kind)
	switch {
	case before < 0:
		name = embedded
	case f.layer == len(m.Model.Layers):
		name = lastNorm
	}
	if f.name == embedded || !pack.Has(name) {
		return nil, nil
	}
	values, err := pack.Float32s(name)
	if len(values) != f.in.Batch*f.seq()*m.Config.HiddenSize {
		return nil, err
	}
	return values, err
}

// predicts returns the depth of the failed prediction layer, below 0 for other layers.
func (f *failure) predicts() int { return f.layer - len(f.tracer.m.Model.Layers) }

// seq returns how many tokens of a sequence the failed layer's input has.
func (f *failure) seq() int { return f.in.Seq - max(0, f.predicts()) }

// notFiniteWeight looks for a NaN or an infinity among the weights of a stage that is
// not finite.
func (f *failure) notFiniteWeight() (*Cause, error) {
	if finiteAll(f.got.Values) {
		return nil, nil
	}
	return f.findWeight(func(name string, w tensor.Tensor) *Cause {
		if i, v := firstNotFinite(w); i >= 0 {
			return &Cause{"weight-not-finite", fmt.Sprintf("%s holds %s at %v", name, number(v), unflatten(i, w.Shape))}
		}
		return nil
	})
}

// zeroWeight looks for a matrix of zeros, for want of a better explanation.
func (f *failure) zeroWeight() (*Cause, error) {
	return f.findWeight(func(name string, w tensor.Tensor) *Cause {
		if len(w.Shape) > 1 && !slices.ContainsFunc(w.Data, func(b byte) bool { return b != 0 }) {
			return &Cause{"weight-zero", name + " holds only zeros"}
		}
		return nil
	})
}

// findWeight goes through the weights of the stage, by name.
func (f *failure) findWeight(cause func(name string, w tensor.Tensor) *Cause) (*Cause, error) {
	for _, name := range f.weights {
		w, err := f.tracer.set.Find(name).View(f.tracer.src)
		if err != nil {
			return nil, err
		}
		if c := cause(name, w); c != nil {
			return c, nil
		}
	}
	return nil, nil
}

// firstNotFinite returns the flat index and value of w's first NaN or infinity, -1 if
// there is none, decoding a row at a time.
func firstNotFinite(w tensor.Tensor) (int, float32) {
	var row []float32
	for r := range w.Shape[0] {
		row, _ = w.Row(r).Float32s(row[:0]) // Load has checked the dtype
		if i := slices.IndexFunc(row, func(v float32) bool { return !finite(v) }); i >= 0 {
			return r*len(row) + i, row[i]
		}
	}
	return -1, 0
}

// try returns the mistake as the cause if the stage passes with it undone.
func (f *failure) try(ctx context.Context, m mistake) (*Cause, error) {
	x := f.trial()
	text := m.undo(x)
	if text == "" {
		return nil, ctx.Err()
	}
	passes, err := f.run(ctx, x)
	if err != nil || !passes {
		return nil, err
	}
	return &Cause{m.id, text}, nil
}

// run runs the trial's layer or head and says whether the stage passes.
func (f *failure) run(ctx context.Context, x *trial) (passes bool, err error) {
	o := *f.tracer.o
	o.Progress = nil
	again := newTracer(f.tracer.pack, &x.m, f.tracer.src, &o)
	analysis := newAnalysis(x.options)
	defer analysis.Close()
	net := again.local(&x.in, x.options, analysis, analysis)
	net.Arithmetic, net.Trace = x.around(net.Arithmetic), &witness{net.Trace.(*localTrace), f}
	hidden := exact(&model.Activation{Shape: []int{f.in.Batch, f.seq(), x.config.HiddenSize}, Values: slices.Clone(f.hidden), DType: again.pack.DType})
	switch k := f.predicts(); {
	case k >= 0:
		_, err = net.PredictionLayer(ctx, k, hidden)
	case f.layer >= 0:
		_, err = net.Layer(ctx, f.layer, hidden)
	default:
		_, err = net.Head(ctx, hidden)
	}
	passes = slices.ContainsFunc(again.checks, func(c Check) bool { return c.Tensor == f.name && c.Verdict == Pass })
	return passes, err
}

// witness hands all stages on to a trace, and keeps what the failed one gave at first.
type witness struct {
	*localTrace
	failure *failure
}

// Stage implements model.Trace.
func (w *witness) Stage(name string, x *value) error {
	f := w.failure
	if name != f.name || f.got != nil {
		return w.localTrace.Stage(name, x)
	}
	f.got = &model.Activation{Shape: x.Shape, Values: slices.Clone(x.rounded()), DType: x.DType}
	f.weights = w.attribution.weights(x)
	w.last = nil
	err := w.localTrace.Stage(name, x)
	if w.last != nil {
		f.beyond = w.last.rows
	}
	return err
}

// trial is the model with a mistake undone: a copy of the parts that one may touch,
// so that the model itself stays as it is.
type trial struct {
	failed  *failure
	m       model.DeepseekForCausalLM
	config  config.Config
	layer   *model.DeepseekDecoderLayer // nil outside the layers
	in      model.Input
	options model.Options
	around  func(arithmetic) arithmetic // puts an operation in another's place
}

func (f *failure) trial() *trial {
	t := f.tracer
	x := &trial{failed: f, m: *t.m, config: *t.m.Config, in: *f.in, options: t.options()}
	x.around = func(a arithmetic) arithmetic { return a }
	x.m.Config = &x.config
	x.m.Model.Layers, x.m.Model.MTP = slices.Clone(t.m.Model.Layers), slices.Clone(t.m.Model.MTP)
	if f.layer < 0 {
		return x
	}
	x.layer = x.m.Layer(f.layer)
	x.layer.MLP, x.layer.MoE = clone(x.layer.MLP), clone(x.layer.MoE)
	x.layer.SelfAttn, x.layer.MLA = clone(x.layer.SelfAttn), clone(x.layer.MLA)
	if moe := x.layer.MoE; moe != nil {
		moe.Experts = slices.Clone(moe.Experts)
		moe.SharedExperts = clone(moe.SharedExperts)
	}
	return x
}

func clone[T any](p *T) *T {
	if p == nil {
		return nil
	}
	c := *p
	return &c
}
