package verify

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"weak"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// localTrace holds each stage against the pack, and puts the golden tensor in the stage's
// place: what follows is computed from that.
type localTrace struct {
	pass          *pass
	analysis      *bounds.Analysis
	attribution   *attribution[bounds.Value]
	lastDistances *bounds.Distances // of the last stage that was compared
}

// local is the model over an analysis, with an engine's arithmetic around it, watched by the trace.
func (t *pass) local(in *model.Input, o model.Options, a *bounds.Analysis) (*network, *localTrace) {
	j := t.job
	trace := &localTrace{pass: t, analysis: a, attribution: newAttribution[bounds.Value]()}
	trace.attribution.unknown = j.unknownRoundings()
	watched := &attributed[bounds.Value]{j.arithmetic(a), trace.attribution, j.rows,
		func(x *bounds.Value) *model.Activation { return x.Activation }}
	return &network{Model: j.model, Input: in, Options: o, Arithmetic: watched, Keys: j.sharedKeys, Given: t.goldenSection,
		Trace: trace}, trace
}

// goldenSection returns the golden output of a part of a layer in which no stage is compared that the user selects: not
// in this layer, nor would be if the pack had it here, as it has in another layer. The weights of the part take part in
// nothing.
func (t *pass) goldenSection(p *model.Section) (*bounds.Value, bool, error) {
	j := t.job
	if len(j.options.Stages) == 0 || j.pack.Manifest.Mode == "train" ||
		pack.Misfit(j.pack.Manifest.Tensors[p.Output], p.Shape, j.pack.DType) != "" {
		return nil, false, nil
	}
	for name := range j.pack.Manifest.Tensors {
		if here := pack.StageOf(p.Layer, pack.Parse(name).Within); p.Has(here) && j.scope.compares(here) {
			return nil, false, nil
		}
	}
	values, err := j.pack.Float32s(p.Output)
	if err != nil || !bounds.AllFinite(values) {
		return nil, false, err
	}
	for at := range table.FamilyOf(j.model.Config).LayerPlaces(j.model.Config, p.Layer) {
		if name := at.Row.NameIn(at.Layer, at.Expert); p.Has(name) {
			t.evidence.leaveOut(name)
		}
	}
	return bounds.Exact(&model.Activation{Shape: p.Shape, Values: values, DType: j.pack.DType}), true, nil
}

// Stage implements model.Trace.
func (t *localTrace) Stage(name string, x *bounds.Value) error {
	defer t.attribution.forget(x)
	s, j, e := pack.Parse(name), t.pass.job, t.pass.evidence
	e.noteClamped(s, x.Values)
	has, err := e.golden(name)
	switch {
	case err != nil:
		return err
	case !has:
		if s.Within == pack.GateLogits && x.DType == tensor.F32 && j.roundsUnknown(name) {
			t.analysis.RoundTo(x, bounds.Router)
		}
		t.trustReadings(name, x)
		if j.pack.MayLack(name) {
			e.leaveOut(t.attribution.weights(x)...)
		}
	case !j.scope.compares(name):
		e.leaveOut(t.attribution.weights(x)...)
		if err := t.substitute(name, x); err != nil {
			return err
		}
	default:
		if s.Within == pack.GateLogits {
			t.chooseInFloat32(name, x)
			if x.DType == tensor.F32 && j.roundsUnknown(name) {
				t.analysis.RoundTo(x, bounds.Router)
			}
		} else if s.Within == pack.TopKWeight && x.DType == tensor.F32 && j.pack.DType != tensor.F32 {
			t.analysis.RoundWeights(x)
		}
		c, err := t.compare(name, x)
		if err != nil {
			return err
		}
		cover(t.pass, c, t.attribution, x)
		if err := e.add(c); err != nil {
			return err
		}
	}
	switch {
	case s.Within == pack.GateLogits && !j.trial:
		t.pass.rechoose = func(c *config.Config, g *model.MoEGate, look func(*choice)) {
			t.analysis.Try(func() { look(model.ChooseBy(t.analysis, c, g, x)) })
		}
	case s.Within == pack.TopKWeight:
		t.pass.markReached(s.Layer, x.Activation)
	}
	return nil
}

// chooseInFloat32 notes which experts the gate with logits x chooses in float32, if an engine rounds its logits or the
// scores that choose to 16 bits. Logits that the model's own class rounds are not known in float32.
func (t *localTrace) chooseInFloat32(name string, x *bounds.Value) {
	j := t.pass.job
	gate := &j.model.Layer(pack.Parse(name).Layer).MoE.Gate
	narrow := j.pack.IsTrace() && x.DType == tensor.F32 && j.pack.DType != tensor.F32 && gate.TID2EID == nil
	t.pass.roundsLogits = narrow && !j.model.Config.Rules().Router.WidensLogits &&
		(j.pack.Manifest.Tensors[name].DType == j.pack.DType || j.engine.Rounding[bounds.Router] == bounds.InT)
	t.pass.inFloat32 = nil
	if t.pass.roundsLogits || narrow && j.engine.Rounding[bounds.ChoiceScore] == bounds.InT {
		t.pass.inFloat32 = slices.Clone(model.Choose(j.model.Config, gate, x.Activation).Idx)
	}
}

// substitute puts the golden tensor in x's place without comparing them.
func (t *localTrace) substitute(name string, x *bounds.Value) error {
	if t.pass.job.misfit(name, x.Activation) != "" {
		return nil
	}
	want, _, err := t.pass.goldenRows(name, x.Activation)
	if err == nil {
		x.Replace(want)
		t.attribution.checked(x)
	}
	return err
}

// compare checks x against the golden tensor, and replaces it. It leaves a failed stage open if an operation took part
// in it that rounds in a way that is not known, and such a rounding explains the stage.
func (t *localTrace) compare(name string, x *bounds.Value) (report.Check, error) {
	defer func(d tensor.DType) { x.DType = d }(x.DType)
	if err := t.pass.adopt(name, x); err != nil {
		return report.Check{}, err
	}
	c, want, rows, err := t.pass.begin(name, x.Activation)
	if err != nil || c.Verdict == report.Fail {
		return c, err
	}
	if c.Verdict != report.Skipped {
		x, want, rows := t.unmasked(name, x, want, rows)
		if pack.Parse(name).IsLossOrGradient() {
			m := rows.Metrics(x.Values, want, x.Width(), x.DType)
			record(&c, m)
			if judge(&c, m, t.pass.metricLimits(name), ""); c.Verdict == report.Fail {
				c.Rows = t.pass.failingRows(name, x.Shape, rows.Compared, m.FailingRows(rows, c.Limits.RelRMS))
			}
		} else {
			t.judgeErrors(&c, x, want, rows)
			_, unknown := t.attribution.sets[weak.Make(x)][unknownRounding]
			// of unknown experts nothing is known inside an expert either
			unknown = unknown || t.attribution.unknown.experts && c.Stage().Expert >= 0
			if c.Verdict == report.Fail && unknown && roundingExplains(x, want, rows) {
				c.Skip(report.UnknownRounding)
				c.Margin = nil
				t.attribution.checked(x) // no later stage proves these weights
			}
			if !t.pass.job.trial {
				t.tryReadings(&c, x, want, rows)
			}
		}
	}
	x.Replace(want)
	return c, nil
}

// unmasked returns what is measured of a stage: of an indexer's scores those that the mask does not hide.
func (t *localTrace) unmasked(name string, x *bounds.Value, want []float32, rows *bounds.Rows) (*bounds.Value,
	[]float32, *bounds.Rows) {
	if pack.Parse(name).OfIndexer() != pack.IndexerScores {
		return x, want, rows
	}
	values, golden := visibleScores(x.Values, want)
	visible := *x
	visible.Activation = &model.Activation{Shape: x.Shape, Values: values, DType: x.DType}
	return t.attribution.carry(&visible, x), golden,
		bounds.SelectRows(golden, x.Width(), t.pass.paddedRows(name, x.Activation))
}

// judgeErrors measures the selected rows of x, and judges them by their errors' standard deviations.
func (t *localTrace) judgeErrors(c *report.Check, x *bounds.Value, want []float32, rows *bounds.Rows) {
	factor, _ := t.pass.job.options.factor(c.Tensor)
	x.DistributeShared()
	if t.pass.job.counts {
		beyond, distance := make(misses, len(want)/64+1), deviations(x, want, factor)
		for _, row := range rows.Compared {
			for i := row * x.Width(); i < (row+1)*x.Width(); i++ {
				if distance(i) > bounds.Lambda {
					beyond.set(i)
				}
			}
		}
		t.pass.evidence.misses[c.Tensor] = beyond
		if c.Verdict = report.Pass; beyond.count() > 0 {
			c.Verdict = report.Fail
		}
		return
	}
	m, d := t.analysis.Measure(x, want, rows, factor)
	record(c, m)
	if t.pass.job.watch != nil {
		t.pass.job.watch(c.Tensor, x, rows)
	}
	if x = t.judgeMeasured(c, x, d, want, rows); c.Verdict == report.Fail {
		c.Rows = t.failingRows(c, x.Shape, d, m, rows)
		c.Pattern = t.pass.evidence.pattern(x.Rows(), x.Width(), rows, report.Sigmas, deviations(x, want, factor))
	}
}

// judgeMeasured is judgeErrors for distances d. It returns what was judged: x, or x of scores in float32.
func (t *localTrace) judgeMeasured(c *report.Check, x *bounds.Value, d *bounds.Distances, want []float32,
	rows *bounds.Rows) *bounds.Value {
	factor, _ := t.pass.job.options.factor(c.Tensor)
	of := ""
	if n := x.Float32Scores; n != nil {
		if narrow := bounds.Measure(n, want, rows, factor); narrow.Finite && narrow.Largest <= bounds.Lambda {
			x, d, of = n, narrow, report.ScoresInFloat32
		}
	}
	margin := t.judgeDistances(c, x, d, rows, x.Width(), of)
	if margin > 1 && d.Finite && d.Largest <= bounds.Lambda && x.DType == tensor.F32 {
		if n := t.analysis.Independent(x, want, d.WorstRow); n < x.Width() {
			margin = t.judgeDistances(c, x, d, rows, n, fmt.Sprintf("%s; %s to a row", of, text.Plural(n, "independent error")))
		}
	}
	kind := c.Stage().Kind // of an MLP's output, an expert's on a probe among them
	if (kind == pack.ProbeOutput || slices.Contains(pack.MLPOutputs, kind)) && x.Products != nil && d.Finite {
		n, z := t.analysis.Neurons(x, want, rows, factor)
		if c.ProbeRows != nil {
			n.Expert = c.Stage().Expert
		}
		c.NeuronZ, c.Limits.NeuronZ, c.Neuron = report.JSONFloat(z), bounds.NeuronLimit, n
		margin = max(margin, z/bounds.NeuronLimit)
	}
	if d.Finite && t.pass.job.roundsUnknown(c.Tensor) {
		rms, slope := bounds.Slopes(x, want, rows, factor)
		c.RoundingRMS, c.Limits.RoundingRMS = report.JSONFloat(rms), bounds.RoundingRMSLimit
		c.Slope, c.Limits.Slope = report.JSONFloat(slope), bounds.SlopeLimit
		margin = max(margin, rms/bounds.RoundingRMSLimit, slope/bounds.SlopeLimit)
	}
	setVerdict(c, d, margin)
	if c.ProbeRows != nil && c.Verdict == report.Pass && c.Blind && bounds.AllBelow(want, report.DeadOutput) {
		c.Dead, c.Blind = true, false
	}
	return x
}

// judgeDistances records the distances of x, or of a stage that x is a block of, and their limits, and returns the
// largest share of a limit. Rows have so many independent errors. What they are distances of goes into the limits'
// words.
func (t *localTrace) judgeDistances(c *report.Check, x *bounds.Value, d *bounds.Distances, rows *bounds.Rows,
	independent int, of string) (margin float64) {
	factor, key := t.pass.job.options.factor(c.Tensor)
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
	c.Blind = d.SaysNothing(x.DType, t.blindAs(c.Tensor, x, rounded))
	margin = d.Largest / bounds.Lambda
	if x.DType == tensor.F32 {
		return max(margin, judgeLines(c, d, &l, x.Width(), independent, rows.Distinct, rounded != x.DType, x.ColumnsShare))
	}
	c.Ambiguous = report.JSONFloat(d.Ambiguous)
	p, y, most := bounds.PrecisionOf(x.DType), float64(d.At.Got), bounds.Lambda*d.At.Sigma
	for _, r := range []float64{p.Round(y - most), p.Round(y), p.Round(y + most)} {
		if n := report.Number(float32(r)); !slices.Contains(c.Rounds, n) {
			c.Rounds = append(c.Rounds, n)
		}
	}
	return margin
}

// setVerdict sets the verdict of a stage whose distances reach a share of a limit.
func setVerdict(c *report.Check, d *bounds.Distances, margin float64) {
	c.Verdict = report.Fail
	if !d.Finite {
		return
	}
	c.Margin = report.JSONFloat(margin)
	if margin <= 1 {
		c.Verdict, c.Neuron = report.Pass, nil
	} else {
		c.Where = d.Where()
	}
}

// failingRows describes the rows of a failed stage of a shape that are beyond a limit or not finite, given its distances and
// metrics; of a neuron beyond its limit the row of its token.
func (t *localTrace) failingRows(c *report.Check, shape []int, d *bounds.Distances, m bounds.Metrics, rows *bounds.Rows) string {
	failing := m.FailingRows(rows, math.MaxFloat64) // not finite
	if d.Finite {
		failing = d.FailingRows(c.Limits.RowZ)
	}
	if n := c.Neuron; failing == nil && n != nil && n.Z > bounds.NeuronLimit {
		failing = []int{n.Token}
	}
	return t.pass.failingRows(c.Tensor, shape, rows.Compared, failing)
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
	d, j := x.DType, t.pass.job
	if len(j.rounded) == 0 {
		return d
	}
	for _, name := range t.attribution.weights(x) {
		for _, form := range j.weights.forms(name) {
			to, _ := tensor.ParseDType(form)
			if j.rounded[name].By != "" && (d == x.DType || bounds.Blindness(to) > bounds.Blindness(d)) {
				d = to
			}
		}
	}
	return d
}

// blindAs is the dtype whose blindness holds for the bounds of x, a stage's: the coarsest of the dtype to which weights were
// rounded, that of logits before they are widened, and the forms to which an engine rounds the inputs of products.
func (t *localTrace) blindAs(stage string, x *bounds.Value, rounded tensor.DType) tensor.DType {
	if j := t.pass.job; j.model.Config.Rules().Router.WidensLogits && pack.Parse(stage).Kind == pack.GateLogits &&
		rounded == tensor.F32 && j.engine.Rounding[bounds.Router] != bounds.InF32 {
		rounded = j.pack.DType
	}
	if !t.pass.job.pack.IsTrace() {
		if t.pass.job.operands != bounds.Whole && rounded == tensor.F32 {
			return tensor.F16 // which has as many bits as TF32
		}
		return rounded
	}
	is := func(to string) {
		d := map[string]tensor.DType{"bf16": tensor.BF16, "f16": tensor.BF16, "q8_0": tensor.Q8_0, "q8_1": tensor.Q8_0, "q8_k": tensor.Q8_0}[to]
		if strings.HasPrefix(to, "fp8") {
			d = tensor.F8E4M3
		}
		if d != tensor.Invalid && bounds.Blindness(d) > bounds.Blindness(rounded) {
			rounded = d
		}
	}
	if is(t.pass.job.engine.Cache); t.pass.job.engine.Sums == pack.F16Sums {
		is("f16")
	}
	for _, w := range t.attribution.weights(x) {
		for _, form := range t.pass.job.weights.forms(w) {
			is(t.pass.job.engine.Activations[form])
		}
	}
	return rounded
}

// judgeLines holds the RMS of the tensor, its rows of width elements, which have so many independent errors, and its
// columns to their limits, and returns the largest share of a limit. One error may be Lambda in all of its row. Of few
// distinct rows only the rows' RMS is judged. Where weights were rounded, the elements of a column share that error,
// and columns have no limit.
func judgeLines(c *report.Check, d *bounds.Distances, l *report.Limits, width, independent, distinct int, rounded,
	together bool) (margin float64) {
	if width >= leastRow {
		c.RowZ, l.RowZ = report.JSONFloat(d.RowRMS), max(rowRMS, bounds.Lambda/math.Sqrt(float64(independent)))
		margin = d.RowRMS / l.RowZ
	}
	if distinct < leastRows {
		return margin
	}
	l.RMSZ = lineRMS(distinct * independent)
	if rounded {
		// No error of a weight exceeds √3 of its standard deviation. The errors of all rows share the weights': they do not
		// average out.
		l.RMSZ = math.Sqrt(3) + 4/math.Sqrt(float64(independent))
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

// TopK implements model.Trace.
func (t *localTrace) TopK(name string, ours *choice) error { return t.pass.topK(name, ours) }

// tryReadings notes which numbers the stage of a check, x, tells from others: with those it fails, if it did not fail
// without.
func (t *localTrace) tryReadings(c *report.Check, x *bounds.Value, want []float32, rows *bounds.Rows) {
	if ignoresEps(c.Tensor) {
		return
	}
	e := t.pass.evidence
	for _, r := range t.attribution.readings(x) {
		for _, by := range halfAndTwice {
			at, other := tell{c.Layer(), r.key, by}, *c
			if from, told := e.tells[at]; told && from == "" {
				continue
			}
			if c.Verdict == report.Pass {
				t.analysis.Try(func() {
					y := r.again(by)
					y.DistributeShared()
					factor, _ := t.pass.job.options.factor(c.Tensor)
					t.judgeMeasured(&other, y, bounds.Measure(y, want, rows, factor), want, rows)
				})
			}
			if other.Verdict == report.Fail {
				e.tell(c, at)
			}
		}
	}
}

// trustReadings notes that a later stage tells the numbers from others: the pack lacks the stage of the operation.
func (t *localTrace) trustReadings(name string, x *bounds.Value) {
	if ignoresEps(name) {
		return
	}
	layer := pack.Parse(name).Layer
	for _, r := range t.attribution.readings(x) {
		for _, by := range halfAndTwice {
			t.pass.evidence.tells[tell{layer, r.key, by}] = ""
		}
	}
}
