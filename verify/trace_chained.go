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
	pass        *pass
	attribution *attribution[model.Activation]
	// the error analysis has checked the stages: the pack's tensors take their places, and the loss and gradients alone
	// are compared
	replays bool
}

// newChainedTrace returns a trace of values of which no weights are known.
func newChainedTrace(t *pass) *chainedTrace {
	return &chainedTrace{pass: t, attribution: newAttribution[model.Activation]()}
}

// chained runs the model without the error analysis, and backward if the pack is one of training. replays: see
// chainedTrace.
func (t *pass) chained(ctx context.Context, replays bool) error {
	j, o := t.job, t.job.modelOptions()
	plain := model.NewPlain(o)
	defer plain.Close(nil)
	tape := model.NewTape(plain, func(weight string) bool {
		return j.pack.Has(weight+pack.Grad) && j.scope.compares(weight+pack.Grad)
	})
	var computes model.Arithmetic[*model.Activation] = plain
	if o.Training {
		computes = tape
	}
	itself := func(x *model.Activation) *model.Activation { return x }
	trace, by := newChainedTrace(t), newAttribution[model.Activation]()
	if trace.replays = replays; !replays {
		trace.attribution = by
	}
	watched := &attributed[model.Activation]{computes, by, j.rows, itself}
	net := &model.Network[*model.Activation]{Model: j.model, Input: j.in, Options: o, Arithmetic: watched, Trace: trace,
		Keys: j.sharedKeys}
	var err error
	if o.Training {
		_, err = model.Train(ctx, net, tape)
	} else {
		_, err = net.Run(ctx, newCourse(t, func(_ int, x *model.Activation) *model.Activation { return x }))
	}
	return err
}

// Stage implements model.Trace.
func (t *chainedTrace) Stage(name string, a *model.Activation) error {
	s, j, e := pack.Parse(name), t.pass.job, t.pass.evidence
	if t.replays && !s.IsLoss() {
		return t.replay(name, a)
	}
	e.noteClamped(s, a.Values)
	has, err := e.golden(name)
	switch {
	case err != nil:
		return err
	case !has || !j.scope.compares(name):
		if has || j.pack.MayLack(name) {
			e.leaveOut(t.attribution.weights(a)...)
		}
	default:
		c, want, rows, err := t.pass.begin(name, a)
		if err != nil {
			return err
		}
		if c.Verdict == "" {
			a := a
			switch {
			case s.Within == pack.GateLogits:
				t.pass.logitsErr = rowErrors(a, want)
			case s.OfIndexer() == pack.IndexerScores:
				visible := &model.Activation{Shape: a.Shape, DType: a.DType}
				visible.Values, want = visibleScores(a.Values, want)
				a, t.pass.keysErr = visible, rowErrors(visible, want)
			}
			t.compare(&c, a, want, rows)
		}
		cover(t.pass, c, t.attribution, a)
		if err := e.add(c); err != nil {
			return err
		}
	}
	switch s.Within {
	case pack.GateLogits:
		t.pass.rechoose = func(c *config.Config, g *model.MoEGate, look func(*choice)) {
			look(t.noisy(model.Choose(c, g, a)))
		}
	case pack.TopKWeight:
		t.pass.markReached(s.Layer, a)
	}
	return nil
}

// replay puts the golden tensor in a's place without comparing them.
func (t *chainedTrace) replay(name string, a *model.Activation) error {
	if pack.Misfit(t.pass.job.pack.Manifest.Tensors[name], a.Shape, a.DType) != "" {
		return nil
	}
	want, _, err := t.pass.goldenRows(name, a)
	if err == nil && bounds.AllFinite(want) {
		copy(a.Values, want)
	}
	return err
}

// compare judges the selected rows of a by their metrics.
func (t *chainedTrace) compare(c *report.Check, a *model.Activation, want []float32, rows *bounds.Rows) {
	m := rows.Metrics(a.Values, want, a.Width(), a.DType)
	record(c, m)
	if c.Stage().IsGradient() {
		t.pass.judgeGradient(c, m, want)
	} else {
		t.pass.judgeEndToEnd(c, m)
	}
	if c.Verdict == report.Fail {
		scale := bounds.RMS(rows.Gather(want, a.Width()))
		c.Rows = t.pass.failingRows(c.Tensor, a.Shape, rows.Compared, m.FailingRows(rows, c.Limits.RelRMS))
		c.Pattern = t.pass.evidence.pattern(a.Rows(), a.Width(), rows, ofGolden, shares(a, want, scale))
	}
}

// TopK implements model.Trace. Scores vary by as much as the logits were off, and their
// rounding; exactly as much that two that are equal may differ by twice that.
func (t *chainedTrace) TopK(name string, ours *model.Choice[*model.Activation]) error {
	switch {
	case t.replays:
		return t.pass.choose(name, ours.Idx, ours.Scores.Rows(), ours.Scores.Width(), ours.Table != nil)
	case pack.Parse(name).OfIndexer() == pack.IndexerTopK:
		// the largest error of the query's scores end to end, and rounding
		scores := bounds.WithErrors(ours.Scores, func(i int) float64 {
			if bounds.Hidden(ours.Scores.Values[i]) {
				return 0
			}
			noise := float64(0x1p-22 * math.Abs(float64(ours.Scores.Values[i])))
			if row := i / ours.Scores.Width(); row < len(t.pass.keysErr) {
				noise += t.pass.keysErr[row]
			}
			return math.Sqrt2 * noise / bounds.Lambda
		})
		return t.pass.topK(name, &choice{Scores: scores, Idx: ours.Idx, Mask: ours.Mask})
	}
	return t.pass.topK(name, t.noisy(ours))
}

// noisy returns a choice whose scores have errors.
func (t *chainedTrace) noisy(ours *model.Choice[*model.Activation]) *choice {
	noisy := &choice{Scores: t.scoreErrors(ours.Scores), Idx: ours.Idx, Table: ours.Table}
	if g := ours.Groups; g != nil {
		noisy.Groups = &model.Groups[*bounds.Value]{Scores: t.scoreErrors(g.Scores), Worth: t.scoreErrors(g.Worth),
			Chosen: g.Chosen, Masked: g.Masked}
	}
	return noisy
}

// scoreErrors is a gate's scores with the errors that they have end to end: of each its own size
// times twice the error of the logits (d softmax), and its rounding.
func (t *chainedTrace) scoreErrors(scores *model.Activation) *bounds.Value {
	rounding := map[tensor.DType]float64{tensor.F32: 0x1p-22, tensor.BF16: 0x1p-8, tensor.F16: 0x1p-11}[scores.DType]
	return bounds.WithErrors(scores, func(i int) float64 {
		noise, row := rounding, i/scores.Width()
		if row < len(t.pass.logitsErr) {
			noise += 2 * t.pass.logitsErr[row]
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
