package verify

import (
	"context"
	"math"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// chainedTrace compares the stages of a pass that runs end to end by their Metrics.
type chainedTrace struct {
	*tracer
	attribution *attribution[model.Activation]
}

// chained runs the model without the error analysis, and backward if the pack is one of
// training.
func (t *tracer) chained(ctx context.Context, trace model.Trace[*model.Activation]) error {
	o := t.options()
	plain := model.NewPlain(o)
	defer plain.Close(nil)
	tape := model.NewTape(plain, func(weight string) bool {
		return t.pack.Has(weight+pack.Grad) &&
			t.scope.compares(weight+pack.Grad)
	})
	var computes model.Arithmetic[*model.Activation] = plain
	if o.Training {
		computes = tape
	}
	watched := newAttribution(computes, t.rows, func(x *model.Activation) *model.Activation { return x })
	if c, ok := trace.(*chainedTrace); ok {
		c.attribution = watched
	}
	net := &model.Network[*model.Activation]{Model: t.m, Input: t.in, Options: o, Arithmetic: watched, Trace: trace,
		Keys: t.sharedKeys}
	var err error
	if o.Training {
		_, err = model.Train(ctx, net, tape)
	} else {
		_, err = net.Run(ctx, newCourse(t, func(x *model.Activation) *model.Activation { return x }))
	}
	return err
}

// Stage implements model.Trace.
func (t *chainedTrace) Stage(name string, a *model.Activation) error {
	s := pack.Parse(name)
	t.noteClamped(s, a.Values)
	has, err := t.golden(name)
	switch {
	case err != nil:
		return err
	case !has || !t.scope.compares(name):
		if has || t.onPurpose(name) {
			setAside(t.tracer, t.attribution, a)
		}
	default:
		c, want, rows, err := t.begin(name, a)
		if err != nil {
			return err
		}
		if c.Verdict == "" {
			a := a
			switch {
			case s.Within == pack.GateLogits:
				t.logitsErr = rowErrors(a, want)
			case s.OfIndexer() == pack.IndexerScores:
				visible := &model.Activation{Shape: a.Shape, DType: a.DType}
				visible.Values, want = visibleScores(a.Values, want)
				a, t.keysErr = visible, rowErrors(visible, want)
			}
			t.compare(&c, name, a, want, rows)
		}
		cover(t.tracer, c, t.attribution, a)
		if err := t.add(c); err != nil {
			return err
		}
	}
	switch s.Within {
	case pack.GateLogits:
		t.rechoose = t.rechoosing(a)
	case pack.TopKWeight:
		t.markReached(s.Layer, a)
	}
	return nil
}

// compare judges the selected rows of a by their metrics.
func (t *tracer) compare(c *report.Check, name string, a *model.Activation, want []float32, rows *bounds.Rows) {
	m := rows.Metrics(a.Values, want, a.Width(), a.DType)
	record(c, m)
	if pack.Parse(name).IsGradient() {
		t.judgeGradient(c, m, want)
	} else {
		t.judgeEndToEnd(c, m)
	}
	if c.Verdict == report.Fail {
		c.Pattern = t.metricPattern(a, want, rows)
	}
}

// TopK implements model.Trace. Scores vary by as much as the logits were off, and their
// rounding; exactly as much that two that are equal may differ by twice that.
func (t *chainedTrace) TopK(name string, ours *model.Choice[*model.Activation]) error {
	if pack.Parse(name).OfIndexer() == pack.IndexerTopK {
		return t.topK(name, &choice{Scores: t.keyErrors(ours.Scores), Idx: ours.Idx, Mask: ours.Mask})
	}
	return t.topK(name, t.noisy(ours))
}

// noisy returns a choice whose scores have errors.
func (t *tracer) noisy(ours *model.Choice[*model.Activation]) *choice {
	noisy := &choice{Scores: t.scoreErrors(ours.Scores), Idx: ours.Idx, Table: ours.Table}
	if g := ours.Groups; g != nil {
		noisy.Groups = &model.Groups[*bounds.Value]{Scores: t.scoreErrors(g.Scores), Worth: t.scoreErrors(g.Worth),
			Chosen: g.Chosen, Masked: g.Masked}
	}
	return noisy
}

// scoreErrors is a gate's scores with the errors that they have end to end: of each its own size
// times twice the error of the logits (d softmax), and its rounding.
func (t *tracer) scoreErrors(scores *model.Activation) *bounds.Value {
	rounding := map[tensor.DType]float64{tensor.F32: 0x1p-22, tensor.BF16: 0x1p-8, tensor.F16: 0x1p-11}[scores.DType]
	return bounds.WithErrors(scores, func(i int) float64 {
		noise, row := rounding, i/scores.Width()
		if row < len(t.logitsErr) {
			noise += 2 * t.logitsErr[row]
		}
		return math.Sqrt2 * noise * math.Abs(float64(scores.Values[i])) / bounds.Lambda
	})
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
		worst[r] = min(worst[r], 10*chainedCeiling*bounds.RMS(golden))
	}
	return worst
}

// replay puts the pack's tensors in the place of the stages, which the error analysis has
// checked, and compares the loss and the gradients.
type replay struct{ *tracer }

// Stage implements model.Trace.
func (t *replay) Stage(name string, a *model.Activation) error {
	if pack.Parse(name).IsLoss() {
		return (&chainedTrace{tracer: t.tracer, attribution: newAttribution[model.Activation](nil, t.rows, nil)}).Stage(name,
			a)
	}
	if !t.pack.Has(name) || pack.Misfit(t.pack.Manifest.Tensors[name], a.Shape, a.DType) != "" {
		return nil
	}
	want, _, err := t.goldenRows(name, a)
	if err == nil && bounds.AllFinite(want) {
		copy(a.Values, want)
	}
	return err
}

// TopK implements model.Trace.
func (t *replay) TopK(name string, ours *model.Choice[*model.Activation]) error {
	if !t.pack.Has(name) {
		return nil
	}
	return t.choose(name, ours.Idx, ours.Scores.Rows(), ours.Scores.Width(), ours.Table != nil)
}

// rechoosing returns how a gate with these logits chooses otherwise.
func (t *chainedTrace) rechoosing(logits *model.Activation) rechoose {
	return func(c *config.Config, g *model.MoEGate, look func(*choice)) {
		look(t.noisy(model.Choose(c, g, logits)))
	}
}
