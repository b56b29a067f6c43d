package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/diagnose"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// findCauses looks for the mistakes behind the first divergence: it runs that layer again,
// from the golden's inputs, with each candidate undone, and names all with which the stage
// is within its limits, in the order in which they were tried.
func findCauses(ctx context.Context, e *evidence, r *report.Report) error {
	if r.FirstDivergence == nil || e.job.options.Mode != report.Local {
		return nil
	}
	switch first := *r.FirstDivergence; {
	case first == pack.Embedded:
		return diagnoseEmbedding(e.job, r)
	case e.job.replays(first):
		return e.replayCauses(r)
	}
	f, err := rerunFailure(ctx, e, *r.FirstDivergence)
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
func diagnoseEmbedding(j *job, r *report.Report) error {
	c := j.model.Config
	shape := []int{j.in.Batch, j.in.Seq, c.HiddenSize}
	if !slices.Equal(j.pack.Manifest.Tensors[pack.Embedded].Shape, shape) {
		return nil // the check tells
	}
	values, err := j.pack.Float32s(pack.Embedded)
	if err != nil {
		return err
	}
	var ids []int
	var want []float32
	padded, width := pack.PaddedRows(c, j.in, pack.Embedded, shape), c.HiddenSize
	for i, id := range j.in.InputIDs {
		if !padded.Has(i) {
			ids, want = append(ids, id), append(want, values[i*width:(i+1)*width]...)
		}
	}
	causes, hints := diagnose.Embedding(j.model, ids, want, j.pack.DType)
	if r.Causes = append([]report.Cause{}, causes...); len(causes) > 0 {
		r.Cause = &r.Causes[0]
	}
	r.Hints = append(r.Hints, hints...)
	return nil
}

// rerunFailure runs the failed stage once more and keeps what it gave. It is nil if the
// stage cannot be run alone or compared with the golden; a choice of experts has
// nothing to keep.
func rerunFailure(ctx context.Context, e *evidence, name string) (*diagnose.Failure, error) {
	j := e.job
	f := &diagnose.Failure{Pack: j.pack, Model: j.model, Set: j.weights.Set, Source: j.weights.source, In: j.in,
		Options: j.modelOptions(), Rounded: j.rounded, Checks: e.checks, Layers: j.scope.course().Layers, Name: name}
	if j.pack.IsTrace() {
		f.How = j.engine
		for _, w := range e.behind[name] {
			f.Forms = append(f.Forms, j.weights.forms(w)...)
		}
		slices.Sort(f.Forms)
		f.Forms = slices.Compact(f.Forms)
	}
	s := pack.Parse(name)
	f.Layer, f.Kind = s.Layer, s.Within
	shared := pack.StageOf(s.Layer, pack.SharedOutput)
	besideShared := j.pack.IsTrace() && f.Kind == "mlp.output" && j.model.Config.IsMoE(s.Layer) &&
		!j.pack.Has(pack.StageOf(s.Layer, pack.ExpertsOutput)) && j.pack.Has(shared)
	if besideShared {
		f.Kind = pack.ExpertsOutput
	}
	if f.Layer >= 0 && !slices.Contains(j.scope.layersRun(), f.Layer) {
		return nil, nil // a layer that the model has not, or that was not run
	}
	var err error
	if f.Layer >= 0 {
		if err = j.model.Hold(f.Layer); err != nil {
			return nil, err
		}
	}
	again := &rerun{job: j, failure: f}
	if again.hidden, err = again.input(); err != nil || again.hidden == nil || !j.pack.Has(name) {
		return nil, err
	}
	f.Rerun, f.Sample = again.run, again.sample
	first := f.NewTrial()
	first.Around = func(a bounds.Arithmetic) bounds.Arithmetic {
		again.products = &products{Arithmetic: a}
		return again.products
	}
	if _, err = f.Rerun(ctx, first, []string{name}); err != nil || f.Got == nil || f.Kind == pack.TopKIdx ||
		s.OfIndexer() == pack.IndexerTopK {
		if f.Got == nil {
			f = nil
		}
		return f, err
	}
	if f.Want == nil {
		return nil, nil // ids, or another shape: what is wrong is plain
	}
	if routing := fmt.Sprintf("model.layers.%d.%s", f.Layer, pack.TopKIdx); f.Kind == pack.ExpertsOutput &&
		j.pack.Has(routing) {
		f.Idx, err = again.choices(routing)
	}
	if besideShared && err == nil {
		f.Beside, err = again.rowsOf(shared)
	}
	return f, err
}

// rerun runs the layer of a failure again, from the golden's input.
type rerun struct {
	job     *job
	failure *diagnose.Failure
	hidden  *model.Activation // golden input of the layer, or of the head; empty for RoPE's tables

	products *products // of the first run
	from, to int       // tokens that sample runs on, of which it judges the last
	sampled  *bool     // whether they tell; nil if that is not known yet
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

// Float32 implements model.Arithmetic: a product that is widened stays the product.
func (p *products) Float32(x *bounds.Value) *bounds.Value {
	y := p.Arithmetic.Float32(x)
	if x == p.y {
		p.y = y
	}
	return y
}

// choices are the golden's choices of experts of the compared rows.
func (t *rerun) choices(routing string) (idx []int, err error) {
	all, err := t.job.pack.Ints(routing)
	k := t.job.model.Config.MoE.NumExpertsPerTok
	for _, row := range t.failure.Rows {
		if last := (row + 1) * k; last <= len(all) {
			idx = append(idx, all[last-k:last]...)
		}
	}
	return idx, err
}

// rowsOf are the compared rows of a golden tensor that has the shape of the failed stage.
func (t *rerun) rowsOf(name string) (rows []float32, err error) {
	values, err := t.job.pack.Float32s(name)
	width := t.failure.Got.Width()
	for _, row := range t.failure.Rows {
		if last := (row + 1) * width; last <= len(values) {
			rows = append(rows, values[last-width:last]...)
		}
	}
	return rows, err
}

// input returns the golden input of the layer or head; nil if the pack lacks it.
func (t *rerun) input() (*model.Activation, error) {
	f, m, golden := t.failure, t.job.model, t.job.pack
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
	case t.job.scope.startsBehindAttention(f.Layer):
		name = pack.StageOf(f.Layer, pack.AttentionNorm)
	case before < 0:
		name = pack.Embedded
	case f.Layer == len(m.Model.Layers):
		name = pack.LastNorm
	}
	if pack.Parse(f.Name).IsTable() {
		return &model.Activation{}, nil // of no layer
	}
	if f.Name == pack.Embedded || !golden.Has(name) {
		return nil, nil
	}
	shape := t.job.scope.inputShape(name, f.In.Batch, f.Seq())
	values, err := golden.Float32s(name)
	if err != nil || !slices.Equal(golden.Manifest.Tensors[name].Shape, shape) {
		return nil, err
	}
	values = pack.ClearPadding(values, m.Config.HiddenSize, pack.PaddedRows(m.Config, t.job.rows, name, shape))
	if t.job.scope.startsBehindAttention(f.Layer) {
		return &model.Activation{Shape: shape, Values: values, DType: golden.DType}, nil
	}
	return t.job.scope.asInput(shape, values), nil
}

// errKnown ends the run of a trial: nothing more has to be seen.
var errKnown = errors.New("known")

// run runs the trial's layer or head, and returns of the watched stages that it shows whether they pass. It ends
// when all of them are known, when the failed stage fails again, or when one fails that did not.
func (t *rerun) run(ctx context.Context, x *diagnose.Trial, watched []string) (passes map[string]bool, err error) {
	w := &witness{rerun: t, watched: watched, own: x.Own, passes: map[string]bool{}, proves: x.Proves,
		rounds: x.How != t.failure.How || t.failure.Strict}
	err = t.watch(ctx, x, &x.In, t.hidden, watched, func(net *network, trace *localTrace) {
		w.local, net.Trace = trace, w
		net.Arithmetic = &knownProducts{net.Arithmetic, t.job.pack, x.Projections(), watched}
	})
	return w.passes, err
}

// watch runs the trial's layer or head on an input, without the parts that none of the watched stages depends on.
func (t *rerun) watch(ctx context.Context, x *diagnose.Trial, in *model.Input, hidden *model.Activation, watched []string,
	prepare func(net *network, trace *localTrace)) (err error) {
	f, o, selected := t.failure, *t.job.options, *t.job.scope
	o.Progress, o.FailFast, o.Stages, selected.stages = nil, false, watched, watched
	j := t.job.with(&o, x.Rounded)
	j.model, j.trial, j.scope, j.engine = &x.Model, true, &selected, cmp.Or(x.How, j.engine)
	j.seen = nil // products of weights that the trial may have changed
	if f.Layer >= 0 && len(j.engine.Rounding) > 0 {
		j.places = map[*model.Weight]table.Place{}
		for at, w := range j.model.LayerWeights(f.Layer) {
			j.places[w] = at
		}
	}
	if in != &x.In {
		j.in, j.rows = in, in
	}
	again := newPass(j)
	x.Options.Probes = t.job.scope.probes(func(name string) bool { return slices.Contains(watched, name) })
	analysis := again.analysis(x.Options)
	defer analysis.Close()
	net, trace := again.local(in, x.Options, analysis)
	net.Arithmetic = x.Around(net.Arithmetic)
	prepare(net, trace)
	starts := f.Layer // of the layers and, behind them, the head
	if starts < 0 {
		starts = len(j.model.Model.Layers)
	}
	begin := j.exactStart(starts,
		&model.Activation{Shape: hidden.Shape, Values: slices.Clone(hidden.Values), DType: j.pack.DType})
	for i, row := range x.Rows {
		copy(begin.Values[i*begin.Width():(i+1)*begin.Width()], hidden.Row(row))
	}
	switch k := f.Predicts(); {
	case k >= 0:
		_, err = net.PredictionLayer(ctx, k, begin)
	case t.job.scope.isRouter(f.Layer):
		_, err = net.Router(ctx, f.Layer, begin)
	case f.Layer >= 0:
		_, err = net.Layer(ctx, f.Layer, begin)
	case pack.Parse(f.Name).IsTable():
		_, err = net.Run(ctx, &model.Course[*bounds.Value]{})
	default:
		_, err = net.Head(ctx, begin)
	}
	if errors.Is(err, errKnown) {
		err = nil
	}
	return err
}

// sample runs the trial's layer on one row that is wrong, from the golden's input and with the golden's attention, and
// reports whether the failed stage is within its limits there; known is false if a row does not tell. Where a row
// depends on earlier tokens, as trials say that are Causal, these run with it.
func (t *rerun) sample(ctx context.Context, x *diagnose.Trial) (known, passes bool, err error) {
	f := t.failure
	if f.Want == nil || !f.OfRows() && !x.Causal {
		return false, false, nil
	}
	if t.sampled == nil { // the model as it is gives the row what it gave before, and fails
		t.sampled = new(bool)
		row := max(0, slices.Index(f.Beyond, true))
		if f.OfRows() {
			t.from = f.Rows[row]
		} else {
			const keys = 8 // that a query should see to tell
			for i, beyond := range f.Beyond {
				if beyond && f.Rows[row]%f.Seq() < keys && f.Rows[i]%f.Seq() > f.Rows[row]%f.Seq() {
					row = i
				}
			}
			t.from = f.Rows[row] / f.Seq() * f.Seq()
		}
		t.to = f.Rows[row] + 1
		s, err := t.sampling(ctx, f.NewTrial())
		if err != nil {
			return false, false, err
		}
		n := f.Got.Width()
		*t.sampled = s.got != nil && !s.passes && slices.Equal(s.got, f.Unrounded[row*n:(row+1)*n])
	}
	if !*t.sampled {
		return false, false, nil
	}
	s, err := t.sampling(ctx, x)
	return true, err == nil && s.passes, err
}

// sampling runs a trial on the tokens that are sampled.
func (t *rerun) sampling(ctx context.Context, x *diagnose.Trial) (*sampling, error) {
	f, tokens := t.failure, len(x.In.InputIDs)
	if tokens == 0 || t.to > tokens || len(t.hidden.Shape) < 3 {
		return &sampling{}, nil
	}
	s := &sampling{name: f.Name, own: x.Own, from: t.from, to: t.to, rows: tokens}
	in := &model.Input{Batch: 1, Seq: t.to - t.from, InputIDs: x.In.InputIDs[t.from:t.to]}
	if x.In.AttentionMask != nil && !f.OfRows() {
		in.AttentionMask = x.In.AttentionMask[t.from:t.to]
	}
	hidden := &model.Activation{Shape: slices.Concat([]int{1, in.Seq}, t.hidden.Shape[2:]), Values: s.sampled(t.hidden.Values)}
	return s, t.watch(ctx, x, in, hidden, []string{f.Name}, func(net *network, trace *localTrace) {
		s.local, net.Trace = trace, s
		net.Given = func(p *model.Section) (*bounds.Value, bool, error) {
			if p.Has(f.Name) || !t.job.pack.Has(p.Output) {
				return nil, false, nil
			}
			values, err := t.job.pack.Float32s(p.Output)
			return bounds.Exact(&model.Activation{Shape: p.Shape, Values: s.sampled(values), DType: t.job.pack.DType}), true, err
		}
	})
}

// sampling is a trace of a run on some rows of the input: it puts the golden's rows in the place of each stage, and judges
// the last of the failed one.
type sampling struct {
	local    *localTrace
	name     string   // of the failed stage
	own      []string // of the trial
	from, to int      // the sampled rows, of so many
	rows     int
	got      []float32 // last row of the failed stage, before its last rounding
	passes   bool
}

// sampled returns the sampled rows of an activation.
func (s *sampling) sampled(values []float32) []float32 {
	n := len(values) / s.rows
	return slices.Clone(values[s.from*n : s.to*n])
}

// Stage implements model.Trace.
func (s *sampling) Stage(name string, x *bounds.Value) error {
	j := s.local.pass.job
	e := j.pack.Manifest.Tensors[name]
	if slices.Contains(s.own, name) || !j.pack.Has(name) || e.Elements()*(s.to-s.from) != s.rows*len(x.Values) {
		return nil
	}
	values, err := j.pack.Float32s(name)
	if err != nil {
		return err
	}
	want := s.sampled(values)
	if name != s.name {
		x.Replace(want)
		s.local.attribution.checked(x)
		return nil
	}
	last, n := s.to-s.from-1, len(want)/(s.to-s.from)
	s.got = slices.Clone(x.Values[last*n:])
	factor, _ := j.options.factor(name)
	before := slices.Repeat([]bool{true}, len(want)/x.Width())
	clear(before[last*n/x.Width():])
	d := bounds.Measure(x, want, bounds.SelectRows(want, x.Width(), before), factor)
	s.passes = d.Finite && d.Largest <= bounds.Lambda
	return errKnown
}

// TopK implements model.Trace.
func (s *sampling) TopK(name string, ours *choice) error {
	golden := s.local.pass.job.pack
	if !golden.Has(name) {
		return nil
	}
	want, err := golden.Ints(name)
	if n := s.to - s.from; len(want)*n == s.rows*len(ours.Idx) {
		copy(ours.Idx, want[s.from*len(ours.Idx)/n:])
	}
	return err
}

// knownProducts is an arithmetic that leaves out the projections of attention in whose place the golden is put.
type knownProducts struct {
	bounds.Arithmetic
	pack    *pack.Pack
	stages  map[*model.Linear]string // that projections give
	watched []string
}

// Linear implements model.Arithmetic.
func (o *knownProducts) Linear(x *bounds.Value, l *model.Linear) *bounds.Value {
	y := &model.Activation{Shape: slices.Clone(x.Shape), DType: x.DType}
	y.Shape[len(y.Shape)-1] = l.Weight.Shape[0]
	name, ok := o.stages[l]
	if !ok || slices.Contains(o.watched, name) || pack.Misfit(o.pack.Manifest.Tensors[name], y.Shape, y.DType) != "" {
		return o.Arithmetic.Linear(x, l)
	}
	y.Values = make([]float32, x.Rows()*l.Weight.Shape[0])
	return bounds.Exact(y)
}

// witness hands all stages on to a trace until those watched are known, and keeps what the
// failed one gave at first.
type witness struct {
	local   *localTrace
	rerun   *rerun
	watched []string
	own     []string                              // of the trial
	passes  map[string]bool                       // verdict on each watched stage that was shown
	proves  func(x *bounds.Value, first int) bool // of the trial
	rounds  bool                                  // the trial's engine rounds otherwise: no stage passes whose bounds say nothing
}

// Stage implements model.Trace.
func (w *witness) Stage(name string, x *bounds.Value) error {
	if slices.Contains(w.own, name) {
		return nil
	}
	if !slices.Contains(w.watched, name) {
		return w.local.substitute(name, x)
	}
	keep := func() {
		defer func(d tensor.DType) { x.DType = d }(x.DType)
		var want []float32
		var rows *bounds.Rows
		if err := w.local.pass.adopt(name, x); err != nil {
			return // the comparison returns it, too
		}
		if e := w.local.pass.job.pack.Manifest.Tensors[name]; e.DType != tensor.I64 && e.Elements() == len(x.Values) {
			if golden, compared, err := w.local.pass.goldenRows(name, x.Activation); err == nil {
				want, rows = golden, compared
			}
		}
		w.keep(x.Shape, 0, x, want, rows)
	}
	proven := func() bool { return w.proves(x, 0) }
	return w.see(name, keep, proven, func() error { return w.local.Stage(name, x) })
}

// StageRows implements model.RowTrace. Of the failed stage it keeps the block that is worst.
func (w *witness) StageRows(name string, shape []int, part func(first, n int) *bounds.Value) (bool, error) {
	b := newLogits(w.local.pass.job, name, shape, part)
	if b == nil || !slices.Contains(w.watched, name) {
		return b != nil, nil
	}
	f := w.rerun.failure
	keep := func() {
		first, x, want := 0, b.first, []float32(nil)
		_, rows, err := b.begin(x.DType) // a golden of another shape has none
		if err == nil && rows != nil {
			row := rows.Compared[0]
			if i := slices.IndexFunc(f.Checks, func(c report.Check) bool { return c.Tensor == name }); len(f.Checks[i].Index) > 1 {
				at := f.Checks[i].Index
				row = at[0]*shape[1] + at[1]
			}
			if first, x, want, err = b.block(row); err != nil {
				rows = nil
			}
		}
		w.keep(shape, first, x, want, rows)
	}
	proven := func() bool {
		first, x, _, err := b.block(f.Rows[0])
		return err == nil && w.proves(x, first)
	}
	return true, w.see(name, keep, proven, func() error {
		return w.local.showLogits(b)
	})
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
	w.local.lastDistances = nil
	err := show()
	if w.local.lastDistances != nil && w.local.lastDistances.Finite {
		for _, row := range f.Rows {
			f.Beyond = append(f.Beyond, w.local.lastDistances.Rows[row])
		}
		f.BeyondColumns = w.local.lastDistances.Columns
	}
	return cmp.Or(err, errKnown)
}

// keep keeps what the failed stage gave, of which x has the rows from first on and want the golden ones. Without rows
// there is nothing that could be compared.
func (w *witness) keep(shape []int, first int, x *bounds.Value, want []float32, rows *bounds.Rows) {
	f, t, products := w.rerun.failure, w.local, w.rerun.products
	f.Weights, f.Shape, f.Got = t.attribution.weights(x), shape, &model.Activation{}
	if rows == nil {
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
	if slices.Contains(w.own, name) {
		return nil
	}
	if f := w.rerun.failure; name == f.Name && f.Scores == nil {
		f.Scores = ours.Scores.Values
		if ours.Groups != nil {
			f.Scores = ours.Groups.Scores.Values
		}
		compared := bounds.SelectRows(f.Scores, ours.Scores.Width(), pack.PaddedTokens(w.local.pass.job.rows, ours.Scores.Rows()))
		f.Scores = slices.Clone(compared.Gather(f.Scores, ours.Scores.Width()))
		f.Got = &model.Activation{}
	}
	if err := w.local.TopK(name, ours); err != nil {
		return err
	}
	return w.judged(name)
}

// nearer reports whether a trial's check of a stage is at most half as far off as the check that failed: other roundings are
// the engine's if they predict its numbers, not if they allow for any.
func nearer(trial *report.Check, checks []report.Check) bool {
	i := slices.IndexFunc(checks, func(c report.Check) bool { return c.Tensor == trial.Tensor })
	return i < 0 || checks[i].RelRMS == nil || trial.RelRMS == nil || *trial.RelRMS <= *checks[i].RelRMS/2
}

// judged keeps the verdict on a watched stage, the last that was seen, and ends the run if nothing more is to be
// known.
func (w *witness) judged(name string) error {
	if !slices.Contains(w.watched, name) {
		return nil
	}
	checks := w.local.pass.evidence.checks
	n := len(checks)
	f := w.rerun.failure
	passes := n > 0 && checks[n-1].Tensor == name && checks[n-1].Verdict == report.Pass
	if passes && w.rounds { // coarse roundings explain whatever is wrong
		passes = !checks[n-1].Blind && (name != f.Name || nearer(&checks[n-1], f.Checks))
	}
	w.passes[name] = passes
	spoils := !passes && slices.ContainsFunc(f.Checks, func(c report.Check) bool { return c.Tensor == name && c.Verdict != report.Fail })
	if len(w.passes) == len(w.watched) || name == f.Name && !passes || spoils {
		return errKnown
	}
	return nil
}
