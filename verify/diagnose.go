package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// failure is the first divergence of a local run, and what it takes to run its
// stage again.
type failure struct {
	tracer  outcome
	in      *model.Input
	hidden  []float32         // golden input of the layer, or of the head
	layer   int               // -1 for the final norm and the head
	name    string            // of the golden tensor
	kind    string            // of the stage
	got     *model.Activation // compared rows of the stage [compared, width], with its DType
	rows    []int             // number in the stage of each row of got
	shape   []int             // of the stage
	weights []string          // that took part in got
	beyond  []bool            // rows of got with elements beyond their limits

	beyondColumns []bool    // the same of columns
	want          []float32 // golden tensor, as got
	idx           []int     // golden choice of experts of got's rows, if the routed sum failed and the pack has it
	scores        []float32 // that experts are chosen by, if their choice failed
	k             int       // experts per token, likewise
}

// diagnose looks for the mistakes behind the first divergence: it runs that layer again,
// from the golden's inputs, with each candidate undone, and names all with which the stage
// is within its limits, in the order in which they were tried.
func (t outcome) diagnose(ctx context.Context, r *report.Report) error {
	if r.FirstDivergence == nil || t.o.Mode != report.Local {
		return nil
	}
	f, err := t.failure(ctx, *r.FirstDivergence)
	if err != nil || f == nil {
		return err
	}
	locate(r, f)
	if r.Causes, err = f.causes(ctx); err != nil {
		return err
	}
	if len(r.Causes) > 0 {
		r.Cause = &r.Causes[0]
	}
	zeros, err := f.zeroWeights()
	r.Hints = append(r.Hints, zeros...)
	return err
}

// causes are all that explain the failure: numbers that are none, then mistakes.
func (f *failure) causes(ctx context.Context) ([]report.Cause, error) {
	found, err := f.notFiniteWeights()
	if err != nil || len(found) > 0 {
		return found, err
	}
	found = append(found, f.overflows()...)
	for _, m := range mistakes(f) {
		if kind, _ := pack.CutExpert(f.kind); !slices.Contains(m.kinds, kind) || m.unless != "" && has(found, m.unless) {
			continue
		}
		c, err := f.try(ctx, m)
		if err != nil {
			return nil, err
		}
		if c != nil && !slices.Contains(found, *c) {
			found = append(found, *c)
		}
	}
	return found, nil
}

// has says whether one of the causes is the mistake id.
func has(causes []report.Cause, id string) bool {
	return slices.ContainsFunc(causes, func(c report.Cause) bool { return c.ID == id })
}

// failure runs the failed stage once more and keeps what it gave. It is nil if the
// stage cannot be run alone or compared with the golden; a choice of experts has
// nothing to keep.
func (t outcome) failure(ctx context.Context, name string) (*failure, error) {
	f := &failure{tracer: t, in: t.in, name: name}
	f.layer, f.kind = pack.CutLayer(name)
	if f.layer >= 0 && !slices.Contains(t.ran(), f.layer) {
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
	if _, err = f.run(ctx, f.trial(), nil); err != nil || f.got == nil || f.kind == pack.TopKIdx {
		if f.got == nil {
			f = nil
		}
		return f, err
	}
	if f.want == nil {
		return nil, nil // ids, or another shape: what is wrong is plain
	}
	if routing := fmt.Sprintf("model.layers.%d.%s", f.layer, pack.TopKIdx); f.kind == pack.ExpertsOutput && t.pack.Has(routing) {
		f.idx, err = f.choices(routing)
	}
	return f, err
}

// choices are the golden's choices of experts of the compared rows.
func (f *failure) choices(routing string) (idx []int, err error) {
	all, err := f.tracer.pack.Ints(routing)
	k := f.tracer.m.Config.NumExpertsPerTok
	for _, row := range f.rows {
		if last := (row + 1) * k; last <= len(all) {
			idx = append(idx, all[last-k:last]...)
		}
	}
	return idx, err
}

// input returns the golden input of the layer or head; nil if the pack lacks it.
func (f *failure) input() ([]float32, error) {
	m, golden := f.tracer.m, f.tracer.pack
	before, kind := f.layer-1, pack.LayerOutput
	if f.layer < 0 {
		before = len(m.Model.Layers) - 1
	}
	if before >= len(m.Model.Layers) {
		kind = pack.PredictedNorm
	}
	name := pack.StageOf(before, kind)
	switch {
	case f.layer >= 0 && f.layer < len(m.Model.Layers) && golden.Has(pack.OwnInput(f.layer)):
		name = pack.OwnInput(f.layer)
	case before < 0:
		name = pack.Embedded
	case f.layer == len(m.Model.Layers):
		name = pack.LastNorm
	}
	if pack.IsTable(f.name) {
		return []float32{}, nil // of no layer
	}
	if f.name == pack.Embedded || !golden.Has(name) {
		return nil, nil
	}
	values, err := golden.Float32s(name)
	if len(values) != f.in.Batch*f.seq()*m.Config.HiddenSize {
		return nil, err
	}
	return pack.ClearPadding(values, m.Config.HiddenSize, pack.PaddedTokens(f.in, f.in.Batch*f.seq())), err
}

// predicts returns the depth of the failed prediction layer, below 0 for other layers.
func (f *failure) predicts() int { return f.layer - len(f.tracer.m.Model.Layers) }

// seq returns how many tokens of a sequence the failed layer's input has.
func (f *failure) seq() int { return f.in.Seq - max(0, f.predicts()) }

// locate says in the check of the failure which experts, and which rows of the weight, it
// lies in, if these are few.
func locate(r *report.Report, f *failure) {
	i := slices.IndexFunc(r.Checks, func(c report.Check) bool { return c.Tensor == f.name })
	c := &r.Checks[i]
	if together, oneOf := f.culprits(); len(together)+len(oneOf) <= bounds.Few {
		c.Experts, c.ExpertOneOf = together, oneOf
	}
	if rows := bounds.Marked(f.beyondColumns); len(rows) > 0 && len(rows) <= bounds.Few && f.isProduct() {
		c.WeightRows, c.Weights = rows, f.weights
	}
}

// isProduct says whether the stage is a product with one weight, which may have a bias, and
// nothing else took part in it.
func (f *failure) isProduct() bool {
	linear := strings.HasSuffix(f.kind, "_proj.output") || f.name == pack.Logits || f.kind == pack.GateLogits
	modules := map[string]bool{}
	for _, w := range f.weights {
		modules[strings.TrimSuffix(strings.TrimSuffix(w, ".weight"), ".bias")] = true
	}
	return linear && len(modules) == 1
}

// notFiniteWeights looks for a NaN or an infinity among the weights of a stage that is not
// finite.
func (f *failure) notFiniteWeights() ([]report.Cause, error) {
	if bounds.AllFinite(f.got.Values) {
		return []report.Cause{}, nil
	}
	return f.findWeights(func(name string, w tensor.Tensor) *report.Cause {
		if i, v := firstNotFinite(w); i >= 0 {
			return &report.Cause{ID: "weight-not-finite", Text: fmt.Sprintf("%s holds %s at %v", name, number(v), unflatten(i, w.Shape))}
		}
		return nil
	})
}

// overflows says that a number became too large, here or in the reference: no weight and no
// input of the stage is infinite.
func (f *failure) overflows() (causes []report.Cause) {
	find := func(x []float32) int { return slices.IndexFunc(x, func(v float32) bool { return !bounds.Finite(v) }) }
	if i := find(f.got.Values); i >= 0 {
		causes = append(causes, report.Cause{ID: "overflow", Text: fmt.Sprintf("what is computed from finite weights and inputs exceeds %s: %s at %v", f.tracer.pack.DType, number(f.got.Values[i]), f.place(i))})
	}
	if i := find(f.scores); i >= 0 {
		causes = append(causes, report.Cause{ID: "overflow", Text: fmt.Sprintf("the scores that experts are chosen by are not finite, the first is %s: no choice can be compared", number(f.scores[i]))})
	}
	if i := find(f.want); i >= 0 {
		causes = append(causes, report.Cause{ID: "reference-overflow", Text: fmt.Sprintf("the golden holds %s: the reference exceeded %s", number(f.want[i]), f.tracer.pack.DType)})
	}
	return causes
}

// zeroWeights looks for matrices of zeros: pruned, or not filled by a conversion.
func (f *failure) zeroWeights() ([]report.Cause, error) {
	return f.findWeights(func(name string, w tensor.Tensor) *report.Cause {
		if len(w.Shape) > 1 && !slices.ContainsFunc(w.Data, func(b byte) bool { return b != 0 }) {
			return &report.Cause{ID: "weight-zero", Text: name + " holds only zeros"}
		}
		return nil
	})
}

// findWeights goes through the weights of the stage, by name, each followed by its FP8 scales.
func (f *failure) findWeights(cause func(name string, w tensor.Tensor) *report.Cause) ([]report.Cause, error) {
	found := []report.Cause{}
	for _, name := range f.weights {
		stored := f.tracer.set.Find(name)
		for _, w := range []*weights.Weight{stored, stored.Scales} {
			if w == nil {
				continue
			}
			x, err := w.View(f.tracer.src)
			if err != nil {
				return nil, err
			}
			if c := cause(w.Name, x); c != nil {
				found = append(found, *c)
			}
		}
	}
	return found, nil
}

// firstNotFinite returns the flat index and value of w's first NaN or infinity, -1 if
// there is none, decoding a row at a time.
func firstNotFinite(w tensor.Tensor) (int, float32) {
	var row []float32
	for r := range w.Shape[0] {
		row, _ = w.Row(r).Float32s(row[:0]) // Load has checked the dtype
		if i := slices.IndexFunc(row, func(v float32) bool { return !bounds.Finite(v) }); i >= 0 {
			return r*len(row) + i, row[i]
		}
	}
	return -1, 0
}

// try returns the mistake as the cause if the stage passes with it undone, and all others
// that it must explain.
func (f *failure) try(ctx context.Context, m mistake) (*report.Cause, error) {
	x := f.trial()
	text := m.undo(x)
	if text == "" {
		return nil, ctx.Err()
	}
	needed := []string{f.name}
	for _, c := range f.tracer.checks {
		_, name := pack.CutLayer(c.Tensor)
		kind, _ := pack.CutExpert(name)
		if c.Layer() == f.layer && c.Tensor != f.name && f.tracer.pack.Has(c.Tensor) && (m.whole || slices.Contains(m.also, kind)) {
			needed = append(needed, c.Tensor)
		}
	}
	passes, err := f.run(ctx, x, needed)
	if err != nil || !passes {
		return nil, err
	}
	return &report.Cause{ID: m.id, Text: text}, nil
}

// errKnown ends the run of a trial: nothing more has to be seen.
var errKnown = errors.New("known")

// run runs the trial's layer or head and says whether all stages that are needed pass.
func (f *failure) run(ctx context.Context, x *trial, needed []string) (passes bool, err error) {
	o := *f.tracer.o
	o.Progress, o.FailFast = nil, false
	r := f.tracer.with(&o, x.rounded)
	r.m = &x.m
	again := newTracer(r)
	x.options.Probes = f.probesOf(needed)
	analysis := again.analysis(x.options, again.rounded)
	defer analysis.Close()
	net := again.local(&x.in, x.options, analysis, analysis)
	w := &witness{net.Trace.(*localTrace), f, needed}
	net.Arithmetic, net.Trace = x.around(net.Arithmetic), w
	hidden := bounds.Exact(&model.Activation{Shape: []int{f.in.Batch, f.seq(), x.config.HiddenSize}, Values: slices.Clone(f.hidden), DType: again.pack.DType})
	switch k := f.predicts(); {
	case k >= 0:
		_, err = net.PredictionLayer(ctx, k, hidden)
	case f.layer >= 0:
		_, err = net.Layer(ctx, f.layer, hidden)
	case pack.IsTable(f.name):
		_, err = net.Run(ctx, &model.Course[*bounds.Value]{})
	default:
		_, err = net.Head(ctx, hidden)
	}
	if errors.Is(err, errKnown) {
		err = nil
	}
	return err == nil && len(w.needed) == 0, err
}

// witness hands all stages on to a trace until those needed are known, and keeps what the
// failed one gave at first.
type witness struct {
	*localTrace
	failure *failure
	needed  []string // stages that have yet to pass
}

// Stage implements model.Trace.
func (w *witness) Stage(name string, x *bounds.Value) error {
	f := w.failure
	if name != f.name && !slices.Contains(w.needed, name) {
		return w.feed(name, x)
	}
	if f.got != nil {
		if err := w.localTrace.Stage(name, x); err != nil {
			return err
		}
		return w.judged(name)
	}
	if err := f.keep(w.localTrace, x); err != nil {
		return err
	}
	w.last = nil
	err := w.localTrace.Stage(name, x)
	if w.last != nil && w.last.Finite {
		for _, row := range f.rows {
			f.beyond = append(f.beyond, w.last.Rows[row])
		}
		f.beyondColumns = w.last.Columns
	}
	return err
}

// keep keeps what the failed stage gave, and the golden if it can be compared with that.
func (f *failure) keep(t *localTrace, x *bounds.Value) error {
	f.weights, f.shape, f.got = t.attribution.weights(x), x.Shape, &model.Activation{}
	if e := t.pack.Manifest.Tensors[f.name]; e.DType == tensor.I64 || e.Elements() != len(x.Values) {
		return nil
	}
	want, rows, err := t.goldenRows(f.name, x.Activation)
	if err != nil {
		return nil // the check tells
	}
	width := x.Width()
	f.rows, f.want = rows.Compared, slices.Clone(rows.Gather(want, width))
	f.got = &model.Activation{Shape: []int{len(f.rows), width}, Values: slices.Clone(rows.Gather(x.Rounded(), width)), DType: x.DType}
	return nil
}

// place is where in the stage element i of got is.
func (f *failure) place(i int) []int {
	width := f.got.Width()
	return unflatten(f.rows[i/width]*width+i%width, f.shape)
}

// TopK implements model.Trace.
func (w *witness) TopK(name string, ours *choice) error {
	if f := w.failure; name == f.name && f.scores == nil {
		f.scores = ours.Scores.Values
		if ours.Groups != nil {
			f.scores = ours.Groups.Scores.Values
		}
		compared := bounds.SelectRows(f.scores, ours.Scores.Width(), pack.PaddedTokens(w.in, ours.Scores.Rows()))
		f.scores, f.k = slices.Clone(compared.Gather(f.scores, ours.Scores.Width())), len(ours.Idx)/ours.Scores.Rows()
		f.got = &model.Activation{}
	}
	if err := w.localTrace.TopK(name, ours); err != nil {
		return err
	}
	return w.judged(name)
}

// judged ends the run if the stage, the last that was seen, is the last of those needed, or
// failed though it is needed.
func (w *witness) judged(name string) error {
	i := slices.Index(w.needed, name)
	if i < 0 {
		return nil
	}
	if n := len(w.checks); n == 0 || w.checks[n-1].Tensor != name || w.checks[n-1].Verdict != report.Pass {
		return errKnown
	}
	if w.needed = slices.Delete(slices.Clone(w.needed), i, i+1); len(w.needed) == 0 {
		return errKnown
	}
	return nil
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
	around  func(bounds.Arithmetic) bounds.Arithmetic // puts an operation in another's place
	rounded bounds.Roundings                          // weights that the reference had before they were rounded
}

func (f *failure) trial() *trial {
	t := f.tracer
	x := &trial{failed: f, m: *t.m, config: *t.m.Config, in: *f.in, options: t.options(), rounded: t.rounded}
	x.around = func(a bounds.Arithmetic) bounds.Arithmetic { return a }
	x.m.Config = &x.config
	x.m.Model.Layers, x.m.Model.MTP = slices.Clone(t.m.Model.Layers), slices.Clone(t.m.Model.MTP)
	if f.layer < 0 {
		return x
	}
	x.layer = x.m.Layer(f.layer)
	*x.layer = ownLayer(x.layer)
	return x
}

// ownLayer is a copy of a layer that shares no module with it.
func ownLayer(d *model.DeepseekDecoderLayer) model.DeepseekDecoderLayer {
	c := *d
	c.MLP, c.MoE, c.SelfAttn, c.MLA = clone(d.MLP), clone(d.MoE), clone(d.SelfAttn), clone(d.MLA)
	if c.MoE != nil {
		c.MoE.Experts, c.MoE.SharedExperts = slices.Clone(c.MoE.Experts), clone(c.MoE.SharedExperts)
	}
	return c
}

func clone[T any](p *T) *T {
	if p == nil {
		return nil
	}
	c := *p
	return &c
}
