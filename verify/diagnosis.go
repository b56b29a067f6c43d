package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/diagnose"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// diagnose looks for the mistakes behind the first divergence: it runs that layer again,
// from the golden's inputs, with each candidate undone, and names all with which the stage
// is within its limits, in the order in which they were tried.
func (t outcome) diagnose(ctx context.Context, r *report.Report) error {
	if r.FirstDivergence == nil || t.o.Mode != report.Local {
		return nil
	}
	if *r.FirstDivergence == pack.Embedded {
		return t.diagnoseEmbedding(r)
	}
	f, err := t.failure(ctx, *r.FirstDivergence)
	if err != nil || f == nil {
		return err
	}
	f.Locate(&r.Checks[slices.IndexFunc(r.Checks, func(c report.Check) bool { return c.Tensor == f.Name })])
	var hints []report.Cause
	if r.Causes, hints, err = f.Diagnose(ctx); len(r.Causes) > 0 {
		r.Cause = &r.Causes[0]
	}
	r.Hints = append(r.Hints, hints...)
	return err
}

// diagnoseEmbedding looks for what the golden's rows of the embedding are.
func (t outcome) diagnoseEmbedding(r *report.Report) error {
	shape := []int{t.in.Batch, t.in.Seq, t.m.Config.HiddenSize}
	if !slices.Equal(t.pack.Manifest.Tensors[pack.Embedded].Shape, shape) {
		return nil // the check tells
	}
	values, err := t.pack.Float32s(pack.Embedded)
	if err != nil {
		return err
	}
	var ids []int
	var want []float32
	padded, width := pack.PaddedRows(t.in, pack.Embedded, shape), t.m.Config.HiddenSize
	for i, id := range t.in.InputIDs {
		if !padded.Has(i) {
			ids, want = append(ids, id), append(want, values[i*width:(i+1)*width]...)
		}
	}
	causes, hints := diagnose.Embedding(t.m, ids, want, t.pack.DType)
	if r.Causes = append([]report.Cause{}, causes...); len(causes) > 0 {
		r.Cause = &r.Causes[0]
	}
	r.Hints = append(r.Hints, hints...)
	return nil
}

// failure runs the failed stage once more and keeps what it gave. It is nil if the
// stage cannot be run alone or compared with the golden; a choice of experts has
// nothing to keep.
func (t outcome) failure(ctx context.Context, name string) (*diagnose.Failure, error) {
	f := &diagnose.Failure{Pack: t.pack, Model: t.m, Set: t.set, Source: t.src, In: t.in, Options: t.options(),
		Rounded: t.rounded, Checks: t.checks,
		Layers: t.scope.course.Layers, Name: name}
	f.Layer, f.Kind = pack.CutLayer(name)
	if f.Layer >= 0 && !slices.Contains(t.ran(), f.Layer) {
		return nil, nil // a layer that the model has not, or that was not run
	}
	var err error
	if f.Layer >= 0 {
		if err = t.m.Hold(f.Layer); err != nil {
			return nil, err
		}
	}
	again := &rerun{outcome: t, failure: f}
	if again.hidden, err = again.input(); err != nil || again.hidden == nil || !t.pack.Has(name) {
		return nil, err
	}
	f.Rerun = again.run
	first := f.NewTrial()
	first.Around = func(a bounds.Arithmetic) bounds.Arithmetic {
		again.products = &products{Arithmetic: a}
		return again.products
	}
	if _, err = f.Rerun(ctx, first, nil, false); err != nil || f.Got == nil || f.Kind == pack.TopKIdx ||
		pack.CutIndexer(f.Kind) == pack.IndexerTopK {
		if f.Got == nil {
			f = nil
		}
		return f, err
	}
	if f.Want == nil {
		return nil, nil // ids, or another shape: what is wrong is plain
	}
	if routing := fmt.Sprintf("model.layers.%d.%s", f.Layer, pack.TopKIdx); f.Kind == pack.ExpertsOutput &&
		t.pack.Has(routing) {
		f.Idx, err = again.choices(routing)
	}
	return f, err
}

// rerun runs the layer of a failure again, from the golden's input.
type rerun struct {
	outcome
	failure *diagnose.Failure
	hidden  *model.Activation // golden input of the layer, or of the head; empty for RoPE's tables

	products *products // of the first run
}

// products is an arithmetic that keeps what the last product multiplied.
type products struct {
	bounds.Arithmetic
	input *model.Activation
	y     *bounds.Value // the product
}

// Linear implements model.Arithmetic.
func (p *products) Linear(x *bounds.Value, l *model.Linear) *bounds.Value {
	p.input = &model.Activation{Shape: x.Shape, Values: make([]float32, len(x.Values)), DType: x.DType}
	for i := range x.Values {
		p.input.Values[i] = x.Rounded(i)
	}
	p.y = p.Arithmetic.Linear(x, l)
	return p.y
}

// choices are the golden's choices of experts of the compared rows.
func (t *rerun) choices(routing string) (idx []int, err error) {
	all, err := t.pack.Ints(routing)
	k := t.m.Config.NumExpertsPerTok
	for _, row := range t.failure.Rows {
		if last := (row + 1) * k; last <= len(all) {
			idx = append(idx, all[last-k:last]...)
		}
	}
	return idx, err
}

// input returns the golden input of the layer or head; nil if the pack lacks it.
func (t *rerun) input() (*model.Activation, error) {
	f, m, golden := t.failure, t.m, t.pack
	before, kind := f.Layer-1, pack.LayerOutput
	if f.Layer < 0 {
		before = len(m.Model.Layers) - 1
	}
	if before >= len(m.Model.Layers) {
		kind = pack.PredictedNorm
	}
	name := pack.StageOf(before, kind)
	switch {
	case f.Layer >= 0 && f.Layer < len(m.Model.Layers) && golden.Has(pack.OwnInput(f.Layer)):
		name = pack.OwnInput(f.Layer)
	case before < 0:
		name = pack.Embedded
	case f.Layer == len(m.Model.Layers):
		name = pack.LastNorm
	}
	if pack.IsTable(f.Name) {
		return &model.Activation{}, nil // of no layer
	}
	if f.Name == pack.Embedded || !golden.Has(name) {
		return nil, nil
	}
	shape := t.scope.inputShape(name, f.In.Batch, f.Seq())
	values, err := golden.Float32s(name)
	if err != nil || !slices.Equal(golden.Manifest.Tensors[name].Shape, shape) {
		return nil, err
	}
	values = pack.ClearPadding(values, m.Config.HiddenSize, pack.PaddedRows(t.rows, name, shape))
	return t.scope.asInput(shape, values), nil
}

// errKnown ends the run of a trial: nothing more has to be seen.
var errKnown = errors.New("known")

// run runs the trial's layer or head, and returns of the watched stages that it shows whether they pass. It ends
// when all of them are known, or at the first of them that fails if firstOnly.
func (t *rerun) run(ctx context.Context, x *diagnose.Trial, watched []string, firstOnly bool) (passes map[string]bool,
	err error) {
	f, o := t.failure, *t.o
	o.Progress, o.FailFast = nil, false
	r := t.with(&o, x.Rounded)
	r.m, r.trial = &x.Model, true
	again := newTracer(r)
	x.Options.Probes = t.scope.probes(func(name string) bool { return name == f.Name || slices.Contains(watched, name) })
	analysis := again.analysis(x.Options, again.rounded)
	defer analysis.Close()
	net := again.local(&x.In, x.Options, analysis, analysis)
	w := &witness{net.Trace.(*localTrace), t, watched, firstOnly, map[string]bool{}, x.Proves}
	net.Arithmetic, net.Trace = x.Around(net.Arithmetic), w
	hidden := bounds.Exact(&model.Activation{Shape: t.hidden.Shape, Values: slices.Clone(t.hidden.Values),
		DType: again.pack.DType})
	switch k := f.Predicts(); {
	case k >= 0:
		_, err = net.PredictionLayer(ctx, k, hidden)
	case f.Layer >= 0:
		_, err = net.Layer(ctx, f.Layer, hidden)
	case pack.IsTable(f.Name):
		_, err = net.Run(ctx, &model.Course[*bounds.Value]{})
	default:
		_, err = net.Head(ctx, hidden)
	}
	if errors.Is(err, errKnown) {
		err = nil
	}
	return w.passes, err
}

// witness hands all stages on to a trace until those watched are known, and keeps what the
// failed one gave at first.
type witness struct {
	*localTrace
	rerun     *rerun
	watched   []string
	firstOnly bool                                  // the first of these that fails ends the run
	passes    map[string]bool                       // verdict on each watched stage that was shown
	proves    func(x *bounds.Value, first int) bool // of the trial
}

// Stage implements model.Trace.
func (w *witness) Stage(name string, x *bounds.Value) error {
	if !w.looksAt(name) {
		return w.substitute(name, x)
	}
	keep := func() { w.keep(x.Shape, 0, x, w.goldenOf) }
	proven := func() bool { return w.proves(x, 0) }
	return w.see(name, keep, proven, func() error { return w.localTrace.Stage(name, x) })
}

// StageRows implements model.RowTrace. Of the failed stage it keeps the block that is worst.
func (w *witness) StageRows(name string, shape []int, part func(first, n int) *bounds.Value) (bool, error) {
	b := newLogits(w.run, name, shape, part)
	if b == nil || !w.looksAt(name) {
		return b != nil, nil
	}
	f := w.rerun.failure
	keep := func() {
		row := 0
		if i := slices.IndexFunc(f.Checks, func(c report.Check) bool { return c.Tensor == name }); len(f.Checks[i].Index) > 1 {
			at := f.Checks[i].Index
			row = at[0]*shape[1] + at[1]
		}
		first, x, want, err := b.block(row)
		w.keep(shape, first, x, func(x *bounds.Value) ([]float32, *bounds.Rows, error) {
			_, rows, wrong := b.begin(w.tracer, x.DType)
			return want, rows, cmp.Or(err, wrong)
		})
	}
	proven := func() bool {
		first, x, _, err := b.block(f.Rows[0])
		return err == nil && w.proves(x, first)
	}
	return true, w.see(name, keep, proven, func() error {
		return showLogits(w.tracer, w.attribution, b, func() (report.Check, error) { return w.compareLogits(b) })
	})
}

// looksAt reports whether a stage is the failed one, or watched.
func (w *witness) looksAt(name string) bool {
	return name == w.rerun.failure.Name || slices.Contains(w.watched, name)
}

// see has show judge a stage, and keeps the failed one at first; later it has to be proven.
func (w *witness) see(name string, keep func(), proven func() bool, show func() error) error {
	f := w.rerun.failure
	if f.Got != nil {
		if w.proves != nil && name == f.Name && !proven() {
			return errKnown
		}
		if err := show(); err != nil {
			return err
		}
		return w.judged(name)
	}
	keep()
	w.lastDistances = nil
	err := show()
	if w.lastDistances != nil && w.lastDistances.Finite {
		for _, row := range f.Rows {
			f.Beyond = append(f.Beyond, w.lastDistances.Rows[row])
		}
		f.BeyondColumns = w.lastDistances.Columns
	}
	return err
}

// goldenOf returns the golden of the failed stage x, and its rows that are compared.
func (w *witness) goldenOf(x *bounds.Value) ([]float32, *bounds.Rows, error) {
	return w.goldenRows(w.rerun.failure.Name, x.Activation)
}

// keep keeps what the failed stage gave, of which x has the rows from first on, and what golden returns of these if it
// can be compared.
func (w *witness) keep(shape []int, first int, x *bounds.Value,
	golden func(x *bounds.Value) ([]float32, *bounds.Rows, error)) {
	f, t, products := w.rerun.failure, w.localTrace, w.rerun.products
	f.Weights, f.Shape, f.Got = t.attribution.weights(x), shape, &model.Activation{}
	elements := x.Width()
	for _, n := range shape[:len(shape)-1] {
		elements *= n
	}
	if e := t.pack.Manifest.Tensors[f.Name]; e.DType == tensor.I64 || e.Elements() != elements {
		return
	}
	want, rows, err := golden(x)
	if err != nil {
		return // the check tells
	}
	width := x.Width()
	from, _ := slices.BinarySearch(rows.Compared, first)
	to, _ := slices.BinarySearch(rows.Compared, first+x.Rows())
	f.Rows, f.RowWeights = rows.Compared[from:to], rows.Weights[from:to]
	gather := func(values []float32, width int) []float32 {
		gathered := make([]float32, 0, len(f.Rows)*width)
		for _, row := range f.Rows {
			gathered = append(gathered, values[(row-first)*width:(row-first+1)*width]...)
		}
		return gathered
	}
	f.Want, f.Unrounded = gather(want, width), gather(x.Values, width)
	f.Got = &model.Activation{Shape: []int{len(f.Rows), width}, Values: slices.Clone(f.Unrounded), DType: x.DType}
	for i, v := range f.Got.Values {
		f.Got.Values[i] = tensor.Rounded(v, x.DType)
	}
	if products.y == x {
		in := products.input
		f.Input = &model.Activation{Shape: []int{len(f.Rows), in.Width()}, Values: gather(in.Values, in.Width())}
	}
	for _, row := range f.Rows {
		for i := (row - first) * width; i < (row-first+1)*width; i++ {
			f.Deviations = append(f.Deviations, bounds.Unit*math.Sqrt(x.Variance(i)))
		}
	}
}

// TopK implements model.Trace.
func (w *witness) TopK(name string, ours *choice) error {
	if f := w.rerun.failure; name == f.Name && f.Scores == nil {
		f.Scores = ours.Scores.Values
		if ours.Groups != nil {
			f.Scores = ours.Groups.Scores.Values
		}
		compared := bounds.SelectRows(f.Scores, ours.Scores.Width(), pack.PaddedTokens(w.rows, ours.Scores.Rows()))
		f.Scores = slices.Clone(compared.Gather(f.Scores, ours.Scores.Width()))
		f.Got = &model.Activation{}
	}
	if err := w.localTrace.TopK(name, ours); err != nil {
		return err
	}
	return w.judged(name)
}

// judged keeps the verdict on a watched stage, the last that was seen, and ends the run if nothing more is to be
// known.
func (w *witness) judged(name string) error {
	if !slices.Contains(w.watched, name) {
		return nil
	}
	n := len(w.checks)
	passes := n > 0 && w.checks[n-1].Tensor == name && w.checks[n-1].Verdict == report.Pass
	w.passes[name] = passes
	if len(w.passes) == len(w.watched) || w.firstOnly && !passes {
		return errKnown
	}
	return nil
}
