package verify

import (
	"fmt"
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// What local mode computes with, and what its trace sees.
type (
	arithmetic = model.Arithmetic[*value]
	network    = model.Network[*value]
	choice     = model.Choice[*value]
)

// localTrace holds each stage against the pack, and puts the golden tensor in the stage's
// place: what follows is computed from that.
type localTrace struct {
	*tracer
	analysis    *analysis
	attribution *attribution[*value]
	last        *distances // of the last stage that was compared
}

// local is the model over what computes, an analysis or one with a mistake around it,
// watched by t.
func (t *tracer) local(in *model.Input, o model.Options, a *analysis, computes arithmetic) *network {
	watched := newAttribution(computes, t.in, func(x *value) *model.Activation { return x.Activation })
	return &network{Model: t.m, Input: in, Options: o, Arithmetic: watched, Trace: &localTrace{tracer: t, analysis: a, attribution: watched}}
}

// Stage implements model.Trace.
func (t *localTrace) Stage(name string, x *value) error {
	has, err := t.golden(name)
	switch {
	case err != nil:
		return err
	case !has:
		if t.onPurpose(name) {
			setAside(t.tracer, t.attribution, x)
		}
	case !t.scope.compares(name):
		setAside(t.tracer, t.attribution, x)
		if err := t.feed(name, x); err != nil {
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
	if layer, kind := pack.CutLayer(name); kind == pack.TopKWeight {
		t.reach(layer, x.Activation)
	}
	return nil
}

// feed puts the golden tensor in x's place, without comparing the two.
func (t *localTrace) feed(name string, x *value) error {
	if !t.pack.Has(name) || pack.Misfit(t.pack.Manifest.Tensors[name], x.Shape, x.DType) != "" {
		return nil
	}
	want, _, err := t.goldenRows(name, x.Activation)
	if err == nil {
		x.become(want)
		t.attribution.checked(x)
	}
	return err
}

// compare checks x against the golden tensor, and replaces it.
func (t *localTrace) compare(name string, x *value) (report.Check, error) {
	c, want, rows, err := t.begin(name, x.Activation)
	if err != nil || c.Verdict == report.Fail {
		return c, err
	}
	if c.Verdict != report.Skipped {
		rounded := x.rounded()
		m := rows.metrics(rounded, want, x.Width(), x.DType)
		measureCheck(&c, m, rounded, want)
		if pack.IsLossOrGradient(name) {
			judge(&c, m, t.metricLimits(name), "")
		} else {
			t.hold(&c, x, want, rows)
		}
	}
	x.become(want)
	return c, nil
}

// become puts golden values in x's place, if they are finite.
func (x *value) become(want []float32) {
	if finiteAll(want) {
		*x = value{Activation: x.Activation}
		copy(x.Values, want)
	}
}

// rounded are x's values as the reference holds them: its own, if they are these.
func (x *value) rounded() []float32 {
	if !x.unrounded || x.DType == tensor.F32 {
		return x.Values
	}
	rounded := make([]float32, len(x.Values))
	for i, v := range x.Values {
		rounded[i] = tensor.Rounded(v, x.DType)
	}
	return rounded
}

// hold judges the selected rows of x by the error analysis.
func (t *localTrace) hold(c *report.Check, x *value, want []float32, rows *rowSet) {
	factor, key := t.factor(c.Tensor)
	rounded := t.roundedTo(x)
	l := report.Limits{Z: bounds.Lambda, From: limitsInWords(x.DType, rounded != x.DType)}
	if key != "" {
		l.Factor, l.From = factor, fmt.Sprintf("--limit %s=%g: 8 σ, each times that", key, factor)
	}
	x.spread()
	d := measure(x, want, rows, factor)
	t.last = d
	c.Limit, c.Limits, c.Verdict = &l.Z, &l, report.Fail
	c.Index = unflatten(d.worst, c.Shape)
	c.Want = number(want[d.worst])
	c.Got = number(x.Values[d.worst])
	if !d.finite {
		c.Got = number(x.rounded()[d.worst])
		c.Reason = "not finite"
		c.Pattern = t.localPattern(x, want, rows, factor)
		return
	}
	c.Z, c.RMSZ, c.Sees, c.Beyond = known(d.largest), known(d.rms), known(d.sees), d.beyond
	c.Sigma = known(factor * unit * math.Sqrt(x.v(d.worst)))
	c.Blind = d.saysNothing(rounded)
	margin := d.largest / bounds.Lambda
	if x.DType == tensor.F32 {
		margin = max(margin, lines(c, d, &l, x.Width(), rows.distinct, rounded != x.DType, x.together))
	} else {
		c.Ambiguous = known(d.ambiguous)
		roundsTo(c, x, d.worst, factor)
	}
	if isMLP(c.Tensor) && x.products != nil && d.finite {
		n, z := t.analysis.neurons(x, want, rows, factor)
		if c.ProbeRows != nil {
			n.Expert = pack.ProbedExpert(c.Tensor)
		}
		c.NeuronZ, l.NeuronZ, c.Neuron = known(z), bounds.NeuronLimit, n
		margin = max(margin, z/bounds.NeuronLimit)
	}
	c.Margin = known(margin)
	if margin <= 1 {
		c.Verdict, c.Neuron = report.Pass, nil
	} else {
		c.Where = d.where(len(rows.compared))
		c.Pattern = t.localPattern(x, want, rows, factor)
	}
}

// limitsInWords are those of a stage of dtype d, with weights that were rounded or not.
func limitsInWords(d tensor.DType, rounded bool) string {
	switch {
	case rounded && d == tensor.F32:
		return "8 σ of rounding errors, those of the weights included, for each element, 6 for a neuron; float32: a row's RMS ≤ 3; of at least 8 distinct rows RMS ≤ √3 + 4/√width"
	case rounded:
		return "8 σ of rounding errors, those of the weights included, for each element, 6 for a neuron"
	case d == tensor.F32:
		return "8 σ of rounding errors for each element, 6 for a neuron; float32: a row's RMS ≤ 3; of at least 8 distinct rows RMS ≤ 1, a column's ≤ 1 + 4/√rows"
	}
	return "8 σ of rounding errors for each element, 6 for a neuron"
}

// roundedTo is the dtype to which weights of x were rounded, the one that says least if there
// are several; x's own if none were.
func (t *localTrace) roundedTo(x *value) tensor.DType {
	d := x.DType
	if len(t.rounded) == 0 {
		return d
	}
	for _, name := range t.attribution.weights(x) {
		w := t.set.Find(name)
		to := w.DType
		if t.decodedFrom(w) != "" {
			to = tensor.Q8_0 // of block types one says what another does
		}
		if t.rounded[name].By != "" && (d == x.DType || blindness(to) > blindness(d)) {
			d = to
		}
	}
	return d
}

// lines holds the RMS of the tensor, its rows of width elements and its columns to their limits,
// and returns the largest share of a limit. Of few distinct rows only the rows' RMS is judged.
// Where weights were rounded, the elements of a column share that error, and columns have no
// limit.
func lines(c *report.Check, d *distances, l *report.Limits, width, distinct int, rounded, together bool) (margin float64) {
	if width >= leastRow {
		c.RowZ, l.RowZ = known(d.rowRMS), rowRMS
		margin = d.rowRMS / rowRMS
	}
	if distinct < leastRows {
		return margin
	}
	l.RMSZ = tensorRMS
	if rounded {
		l.RMSZ = roundedRMS(width)
	} else {
		c.ColumnZ, l.ColumnZ = known(d.columnRMS), columnRMS(distinct)
		if together { // they share an operand's error, as those of a row do
			l.ColumnZ = max(l.ColumnZ, rowRMS)
			l.From += ", at most 3 where its elements share errors"
		}
		margin = max(margin, d.columnRMS/l.ColumnZ)
	}
	return max(margin, d.rms/l.RMSZ)
}

// roundsTo says what element i of x may round to.
func roundsTo(c *report.Check, x *value, i int, factor float64) {
	p, y, s := precisionOf(x.DType), float64(x.Values[i]), factor*unit*math.Sqrt(x.v(i))
	for _, r := range []float64{p.round(y - bounds.Lambda*s), p.round(y), p.round(y + bounds.Lambda*s)} {
		if n := number(float32(r)); !slices.Contains(c.Rounds, n) {
			c.Rounds = append(c.Rounds, n)
		}
	}
}

// few is how many rows, columns or experts are named.
const few = 3

// where says in which columns, or which of so many compared rows, the elements beyond the limit
// lie, if they are few.
func (d *distances) where(rows int) string {
	for _, axis := range []struct {
		name   string
		marked []bool
		of     int
	}{{"column", d.columns, len(d.columns)}, {"row", d.rows, rows}} {
		at := indices(axis.marked)
		switch {
		case len(at) == 1:
			return "all in " + axis.name + " " + text.Ranges(at)
		case len(at) > 1 && len(at) <= few && 2*len(at) < axis.of:
			return "all in " + axis.name + "s " + text.Ranges(at)
		}
	}
	return ""
}

// isMLP says whether a stage is the output of an MLP, such as a probe of an expert, or of the
// routed experts.
func isMLP(name string) bool {
	_, kind := pack.CutLayer(name)
	kind, _ = pack.CutExpert(kind)
	return kind == pack.ProbeOutput || kind == "mlp.output" || kind == pack.ExpertsOutput || kind == pack.SharedOutput
}

// spread spreads what rows share over their elements.
func (x *value) spread() {
	for i, y := range x.Values {
		if x.shared == nil {
			return
		}
		x.set(i, float64(y), x.v(i)+float64(sq(float64(y))*x.shared[i/x.Width()]))
	}
	x.shared = nil
}

// TopK implements model.Trace.
func (t *localTrace) TopK(name string, ours *choice) error { return t.topK(name, ours) }

// indices are those of what is marked.
func indices(marked []bool) (at []int) {
	for i, m := range marked {
		if m {
			at = append(at, i)
		}
	}
	return at
}
