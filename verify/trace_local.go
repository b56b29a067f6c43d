package verify

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// localTrace holds each stage against the pack, and puts the golden tensor in the stage's
// place: what follows is computed from that.
type localTrace struct {
	*tracer
	analysis      *bounds.Analysis
	attribution   *attribution[bounds.Value]
	lastDistances *bounds.Distances // of the last stage that was compared
}

// local is the model over an analysis, with an engine's arithmetic around it, watched by t.
func (t *tracer) local(in *model.Input, o model.Options, a *bounds.Analysis) *network {
	watched := newAttribution(t.arithmetic(a), t.rows, func(x *bounds.Value) *model.Activation { return x.Activation })
	return &network{Model: t.m, Input: in, Options: o, Arithmetic: watched, Keys: t.sharedKeys, Given: t.given,
		Trace: &localTrace{tracer: t, analysis: a, attribution: watched}}
}

// given returns the golden output of a part of a layer in which the user selects no stage. The weights of the part are
// set aside: they take part in nothing.
func (t *tracer) given(p *model.Section) (*bounds.Value, bool, error) {
	if len(t.o.Stages) == 0 || t.pack.Manifest.Mode == "train" || t.comparesIn(p) ||
		pack.Misfit(t.pack.Manifest.Tensors[p.Output], p.Shape, t.pack.DType) != "" {
		return nil, false, nil
	}
	values, err := t.pack.Float32s(p.Output)
	if err != nil || !bounds.AllFinite(values) {
		return nil, false, err
	}
	x := &model.Activation{Shape: p.Shape, Values: values, DType: t.pack.DType}
	for s := range table.FamilyOf(t.m.Config).Required(t.m.Config, t.set.Has) {
		if p.Has(s.Name) {
			t.leftOut[s.Name] = struct{}{}
		}
	}
	return bounds.Exact(x), true, nil
}

// comparesIn reports whether stages of a part are compared that the pack has in this layer, or in another one:
// there their absence is an error.
func (t *tracer) comparesIn(p *model.Section) bool {
	for name := range t.pack.Manifest.Tensors {
		kind := pack.Parse(name).Within
		if here := pack.StageOf(p.Layer, kind); p.Has(here) && t.scope.compares(here) {
			return true
		}
	}
	return false
}

// Stage implements model.Trace.
func (t *localTrace) Stage(name string, x *bounds.Value) error {
	defer t.attribution.forget(x)
	s := pack.Parse(name)
	t.noteClamped(s, x.Values)
	has, err := t.golden(name)
	switch {
	case err != nil:
		return err
	case !has:
		t.trustReadings(name, x)
		if t.onPurpose(name) {
			setAside(t.tracer, t.attribution, x)
		}
	case !t.scope.compares(name):
		setAside(t.tracer, t.attribution, x)
		if err := t.substitute(name, x); err != nil {
			return err
		}
	default:
		c, err := t.compare(name, x)
		if err != nil {
			return err
		}
		cover(t.tracer, c, t.attribution, x)
		if err := t.add(c); err != nil {
			return err
		}
	}
	switch s.Within {
	case pack.GateLogits:
		if !t.trial {
			t.rechoose = t.rechoosing(x)
		}
	case pack.TopKWeight:
		t.markReached(s.Layer, x.Activation)
	}
	return nil
}

// substitute puts the golden tensor in x's place without comparing them.
func (t *localTrace) substitute(name string, x *bounds.Value) error {
	if !t.pack.Has(name) || pack.Misfit(t.pack.Manifest.Tensors[name], x.Shape, x.DType) != "" {
		return nil
	}
	want, _, err := t.goldenRows(name, x.Activation)
	if err == nil {
		x.Replace(want)
		t.attribution.checked(x)
	}
	return err
}

// compare checks x against the golden tensor, and replaces it.
func (t *localTrace) compare(name string, x *bounds.Value) (report.Check, error) {
	c, want, rows, err := t.begin(name, x.Activation)
	if err != nil || c.Verdict == report.Fail {
		return c, err
	}
	if c.Verdict != report.Skipped {
		x, want, rows := t.shown(name, x, want, rows)
		if pack.Parse(name).IsLossOrGradient() {
			m := rows.Metrics(x.Values, want, x.Width(), x.DType)
			record(&c, m)
			judge(&c, m, t.metricLimits(name), "")
		} else {
			t.judgeErrors(&c, x, want, rows)
			if !t.trial {
				t.tryReadings(&c, x, want, rows)
			}
		}
	}
	x.Replace(want)
	return c, nil
}

// shown returns what is measured of a stage: of an indexer's scores those that the mask does not hide.
func (t *localTrace) shown(name string, x *bounds.Value, want []float32, rows *bounds.Rows) (*bounds.Value,
	[]float32, *bounds.Rows) {
	if pack.Parse(name).OfIndexer() != pack.IndexerScores {
		return x, want, rows
	}
	values, golden := visibleScores(x.Values, want)
	visible := *x
	visible.Activation = &model.Activation{Shape: x.Shape, Values: values, DType: x.DType}
	return t.attribution.inherit(&visible, x), golden,
		bounds.SelectRows(golden, x.Width(), t.paddedRows(name, x.Activation))
}

// judgeErrors measures the selected rows of x, and judges them by their errors' standard deviations.
func (t *localTrace) judgeErrors(c *report.Check, x *bounds.Value, want []float32, rows *bounds.Rows) {
	factor, _ := t.factor(c.Tensor)
	x.DistributeShared()
	m, d := t.analysis.Measure(x, want, rows, factor)
	record(c, m)
	if x = t.judgeMeasured(c, x, d, want, rows); c.Verdict == report.Fail {
		c.Pattern = t.pattern(x.Rows(), x.Width(), rows, report.Sigmas, deviations(x, want, factor))
	}
}

// judgeMeasured is judgeErrors for distances d. It returns what was judged: x, or x of scores in float32.
func (t *localTrace) judgeMeasured(c *report.Check, x *bounds.Value, d *bounds.Distances, want []float32,
	rows *bounds.Rows) *bounds.Value {
	factor, _ := t.factor(c.Tensor)
	of := ""
	if n := x.Float32Scores; n != nil {
		if narrow := bounds.Measure(n, want, rows, factor); narrow.Finite && narrow.Largest <= bounds.Lambda {
			x, d, of = n, narrow, "; of scores in float32"
		}
	}
	margin := t.judgeDistances(c, x, d, rows, of)
	if isMLP(c.Tensor) && x.Products != nil && d.Finite {
		n, z := t.analysis.Neurons(x, want, rows, factor)
		if c.ProbeRows != nil {
			n.Expert = c.Stage().Expert
		}
		c.NeuronZ, c.Limits.NeuronZ, c.Neuron = report.JSONFloat(z), bounds.NeuronLimit, n
		margin = max(margin, z/bounds.NeuronLimit)
	}
	settle(c, d, rows, margin)
	if c.ProbeRows != nil && c.Verdict == report.Pass && c.Blind && bounds.AllBelow(want, report.DeadOutput) {
		c.Dead, c.Blind = true, false
	}
	return x
}

// judgeDistances records the distances of x, or of a stage that x is a block of, and their limits, and returns the
// largest share of a limit. What they are distances of goes into the limits' words.
func (t *localTrace) judgeDistances(c *report.Check, x *bounds.Value, d *bounds.Distances, rows *bounds.Rows,
	of string) (margin float64) {
	factor, key := t.factor(c.Tensor)
	rounded := t.roundedTo(x)
	l := report.Limits{Z: bounds.Lambda, From: limitsInWords(x.DType, rounded != x.DType)}
	if key != "" {
		l.Factor, l.From = factor, fmt.Sprintf("--limit %s=%g: 8 σ, each times that", key, factor)
	}
	l.From += of
	t.lastDistances = d
	c.Limit, c.Limits = &l.Z, &l
	c.Index = report.Unflatten(d.Worst, c.Shape)
	c.Want, c.Got = report.Number(d.At.Want), report.Number(d.At.Got)
	if !d.Finite {
		c.Got = report.Number(tensor.Rounded(d.At.Got, x.DType))
		c.Reason = "not finite"
		return math.Inf(1)
	}
	c.Z, c.RMSZ, c.Sees, c.Beyond = report.JSONFloat(d.Largest), report.JSONFloat(d.Rms), report.JSONFloat(d.Sees),
		d.Beyond
	c.Sigma = report.JSONFloat(d.At.Sigma)
	c.Blind = d.SaysNothing(x.DType, t.blindAs(x, rounded))
	margin = d.Largest / bounds.Lambda
	if x.DType == tensor.F32 {
		return max(margin, lines(c, d, &l, x.Width(), rows.Distinct, rounded != x.DType, x.ColumnsShare))
	}
	c.Ambiguous = report.JSONFloat(d.Ambiguous)
	roundsTo(c, x.DType, d.At)
	return margin
}

// settle sets the verdict of a stage whose distances reach a share of a limit.
func settle(c *report.Check, d *bounds.Distances, rows *bounds.Rows, margin float64) {
	c.Verdict = report.Fail
	if !d.Finite {
		return
	}
	c.Margin = report.JSONFloat(margin)
	if margin <= 1 {
		c.Verdict, c.Neuron = report.Pass, nil
	} else {
		c.Where = d.Where(len(rows.Compared))
	}
}

// limitsInWords are those of a stage of dtype d, with weights that were rounded or not.
func limitsInWords(d tensor.DType, rounded bool) string {
	switch {
	case rounded && d == tensor.F32:
		return "8 σ of rounding errors, those of the weights included, for each element, 6 for a neuron; float32: a row's " +
			"RMS ≤ 3; of at least 8 distinct rows RMS ≤ √3 + 4/√width"
	case rounded:
		return "8 σ of rounding errors, those of the weights included, for each element, 6 for a neuron"
	case d == tensor.F32:
		return "8 σ of rounding errors for each element, 6 for a neuron; float32: a row's RMS ≤ 3; of at least 8 distinct " +
			"rows RMS ≤ 1.12 + 3.5/√elements, a column's ≤ 1.12 + 3.5/√rows"
	}
	return "8 σ of rounding errors for each element, 6 for a neuron"
}

// roundedTo is the dtype to which weights of x were rounded, the one that says least if there
// are several; x's own if none were.
func (t *localTrace) roundedTo(x *bounds.Value) tensor.DType {
	d := x.DType
	if len(t.rounded) == 0 {
		return d
	}
	for _, name := range t.attribution.weights(x) {
		w := t.set.Find(name)
		for _, from := range strings.Split(cmp.Or(t.decodedFrom(w), w.DType.String()), " and ") {
			to, _ := tensor.ParseDType(from)
			if t.rounded[name].By != "" && (d == x.DType || bounds.Blindness(to) > bounds.Blindness(d)) {
				d = to
			}
		}
	}
	return d
}

// lines holds the RMS of the tensor, its rows of width elements and its columns to their limits,
// and returns the largest share of a limit. Of few distinct rows only the rows' RMS is judged.
// Where weights were rounded, the elements of a column share that error, and columns have no
// limit.
func lines(c *report.Check, d *bounds.Distances, l *report.Limits, width, distinct int, rounded,
	together bool) (margin float64) {
	if width >= leastRow {
		c.RowZ, l.RowZ = report.JSONFloat(d.RowRMS), rowRMS
		margin = d.RowRMS / rowRMS
	}
	if distinct < leastRows {
		return margin
	}
	l.RMSZ = lineRMS(distinct * width)
	if rounded {
		l.RMSZ = roundedRMS(width)
	} else {
		c.ColumnZ, l.ColumnZ = report.JSONFloat(d.ColumnRMS), lineRMS(distinct)
		if together { // they share an operand's error, as those of a row do
			l.ColumnZ = max(l.ColumnZ, rowRMS)
			l.From += ", at most 3 where its elements share errors"
		}
		margin = max(margin, d.ColumnRMS/l.ColumnZ)
	}
	return max(margin, d.Rms/l.RMSZ)
}

// roundsTo lists the values that an element may round to in d.
func roundsTo(c *report.Check, d tensor.DType, at bounds.At) {
	p, y := bounds.PrecisionOf(d), float64(at.Got)
	for _, r := range []float64{p.Round(y - bounds.Lambda*at.Sigma), p.Round(y), p.Round(y + bounds.Lambda*at.Sigma)} {
		if n := report.Number(float32(r)); !slices.Contains(c.Rounds, n) {
			c.Rounds = append(c.Rounds, n)
		}
	}
}

// isMLP reports whether a stage is the output of an MLP, such as a probe of an expert, or of the
// routed experts.
func isMLP(name string) bool {
	kind := pack.Parse(name).Kind
	return kind == pack.ProbeOutput || slices.Contains(pack.MLPOutputs, kind)
}

// TopK implements model.Trace.
func (t *localTrace) TopK(name string, ours *choice) error { return t.topK(name, ours) }

// rechoosing returns how a gate with these logits chooses otherwise.
func (t *localTrace) rechoosing(logits *bounds.Value) rechoose {
	return func(c *config.Config, g *model.MoEGate, look func(*choice)) {
		t.analysis.Try(func() { look(model.ChooseBy(t.analysis, c, g, logits)) })
	}
}

// tryReadings notes which numbers the stage of a check, x, tells from others: with those it fails, if it did not fail
// without.
func (t *localTrace) tryReadings(c *report.Check, x *bounds.Value, want []float32, rows *bounds.Rows) {
	if ignoresEps(c.Tensor) {
		return
	}
	for _, r := range t.attribution.readings(x) {
		for _, by := range halfAndTwice {
			at, other := tell{c.Layer(), r.key, by}, *c
			if !t.told[at] && c.Verdict == report.Pass {
				t.analysis.Try(func() {
					y := r.again(by)
					y.DistributeShared()
					factor, _ := t.factor(c.Tensor)
					t.judgeMeasured(&other, y, bounds.Measure(y, want, rows, factor), want, rows)
				})
			}
			t.told[at] = t.told[at] || other.Verdict == report.Fail
		}
	}
}

// trustReadings takes numbers for told where the pack lacks the stage of the operation: they show in a later stage.
func (t *localTrace) trustReadings(name string, x *bounds.Value) {
	layer := pack.Parse(name).Layer
	for _, r := range t.attribution.readings(x) {
		for _, by := range halfAndTwice {
			t.told[tell{layer, r.key, by}] = !ignoresEps(name)
		}
	}
}
