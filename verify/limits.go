package verify

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// The limits of stages that the error analysis judges. Measured on right references: at
// most 5.3, 0.75, 1.6, and 0.7 of the column's; 4.7 for a neuron.
const (
	rowRMS = 3 // float32 goldens only, as lineRMS; of rows of leastRow elements and more

	leastRow  = 16 // elements
	leastRows = 8  // distinct rows over which an RMS is judged, of the tensor or of a column
)

// lineRMS is the limit of the RMS of n elements: of a column, or of the tensor, of distinct rows. Of right products of
// terms of one sign and size it is 1.02 to 1.10, however many there are. The RMS of n numbers has a deviation of 1/√2n:
// of the largest of some thousand columns that is 5 times as much.
func lineRMS(n int) float64 { return 1.12 + 3.5/math.Sqrt(float64(n)) }

// gradRelRMS is the limit of losses and gradients: a gradient has passed backward
// through every layer above it and carries the noise of all of them. A row of it may
// rest on a single token, hence ten times that; measured up to 3.4 times.
const gradRelRMS = 1e-5

// factor returns the user's factor for a stage, by the longest name that fits: the whole
// name, or what follows a dot in it. It is 1 without one.
func (o *Options) factor(stage string) (factor float64, key string) {
	factor = 1
	for name, f := range o.Limits {
		if matches(stage, name) && len(name) > len(key) {
			factor, key = f, name
		}
	}
	return factor, key
}

// matches reports whether name is a stage's whole name, or its part behind a dot.
func matches(stage, name string) bool { return stage == name || strings.HasSuffix(stage, "."+name) }

// userLimits returns l with the user's factor for the stage on limits of Metrics, and says whose
// limits they are.
func (o *Options) userLimits(l report.Limits, stage string) report.Limits {
	factor, key := o.factor(stage)
	if key == "" {
		return l
	}
	l.RelRMS, l.RowRMS, l.MaxRMS = l.RelRMS*factor, l.RowRMS*factor, l.MaxRMS*factor
	l.Factor, l.From = factor, fmt.Sprintf("--limit %s=%g: %s", text.Quote(key), factor, l.From)
	return l
}

// metricLimits returns the limits of a stage that is held to Metrics: of losses and gradients, and of chained mode.
// There they let the reference's noise grow as it was measured to, with the root of the number of layers that ran one
// after the other, ten times above it; stages outside the layers get the ceiling.
func (t *pass) metricLimits(name string) report.Limits {
	s := pack.Parse(name)
	if s.IsLossOrGradient() {
		return t.job.options.userLimits(report.Limits{RelRMS: gradRelRMS, RowRMS: 10 * gradRelRMS, MaxRMS: 20 * gradRelRMS,
			From: "loss, auxiliary losses and gradients"}, name)
	}
	depth, rel := s.Layer, chainedCeiling
	for _, start := range slices.Backward(t.evidence.starts) {
		if start.layer <= s.Layer && s.Layer < len(t.job.model.Model.Layers) {
			depth -= start.layer
			break
		}
	}
	if depth >= 0 {
		rel = min(4e-6*math.Sqrt(float64(depth+1)), chainedCeiling)
	}
	l := report.Limits{RelRMS: rel, RowRMS: 4 * rel, MaxRMS: 10 * rel,
		From: "float32 pack, end to end: 4e-6·√layers, at most 2e-5"}
	if s.OfIndexer() == pack.IndexerScores { // the few scores of an early query may all be small differences
		l.RowRMS = 0
		l.From = "float32 pack, end to end, scores of indexers: rel RMS ≤ 4e-6·√layers, at most 2e-5; max/RMS ≤ 10 times that"
	}
	return t.job.options.userLimits(l, name)
}

// fewBits is the least noise of a gradient: its own rounding.
const fewBits = 0x1p-24

// undecidedUpTo is up to how many times its fixed limit a gradient of unmeasured noise may be off
// without being called wrong. In trained models right references are up to 5 times beyond it, and
// more layers do more; at 100 times, a relative RMS of 1e-3, even what passes would say nothing.
const undecidedUpTo = 100

// judgeGradient sets the verdict of a gradient that is compared end to end.
func (t *pass) judgeGradient(c *report.Check, m bounds.Metrics, want []float32) {
	n, measured := t.job.pack.Manifest.Noise[c.Tensor] // by golden.py --repeat: two orders of sums in the reference
	if !measured {
		l := t.metricLimits(c.Tensor)
		if judge(c, m, l, ""); c.Verdict == report.Fail && m.Finite && margin(l, m) <= undecidedUpTo {
			c.Skip(report.Undecided)
		}
		return
	}
	judge(c, m, t.job.options.userLimits(report.Limits{RelRMS: bounds.Lambda * max(n.RelRMS, fewBits),
		MaxRMS: bounds.Lambda * max(bounds.Ratio(n.MaxAbs, bounds.RMS(want)), fewBits),
		From:   "gradients, end to end: 8 times what another order of sums changes in the reference"}, c.Tensor), "")
	if c.Verdict == report.Pass && n.RelRMS > bounds.Blindness(tensor.F32)/bounds.Lambda {
		c.Skip(report.Noisy)
	}
}

// undecidedStageUpTo is up to how many times its fixed limit a stage may be off end to end without being called
// wrong: a right reference whose heads' terms are of one sign each was 1.25 times beyond it.
const undecidedStageUpTo = 10

// judgeEndToEnd sets the verdict of a stage, or of a loss, that is compared end to end.
func (t *pass) judgeEndToEnd(c *report.Check, m bounds.Metrics) {
	l := t.metricLimits(c.Tensor)
	judge(c, m, l, t.job.unjudged(c.Tensor))
	if c.Verdict == report.Fail && m.Finite && !c.Stage().IsLossOrGradient() && l.Factor == 0 &&
		margin(l, m) <= undecidedStageUpTo {
		c.Skip(report.UndecidedStage)
	}
}

// chainedCeiling is the relative RMS that no layer may exceed end to end, in float32.
const chainedCeiling = 2e-5

// margin returns how close m comes to l: the largest of metric/limit. Up to 1 is
// within.
func margin(l report.Limits, m bounds.Metrics) float64 {
	margin := max(m.RelRMS/l.RelRMS, m.MaxRMS/l.MaxRMS)
	if l.RowRMS > 0 {
		margin = max(margin, m.RowRMS/l.RowRMS)
	}
	return margin
}

// judge sets the verdict of m under l; skip, unless empty, is the reason not to judge.
func judge(c *report.Check, m bounds.Metrics, l report.Limits, skip string) {
	if skip != "" {
		c.Verdict, c.Reason = report.Skipped, skip
		return
	}
	c.Limit, c.Limits, c.Verdict = &l.RelRMS, &l, report.Fail
	if !m.Finite {
		c.Reason = "not finite"
		return
	}
	margin := margin(l, m)
	c.Margin = report.JSONFloat(margin)
	if margin <= 1 {
		c.Verdict = report.Pass
	}
}

// record records m.
func record(c *report.Check, m bounds.Metrics) {
	c.Index = report.Unflatten(m.Worst, c.Shape)
	c.Got, c.Want = report.Number(m.Got), report.Number(m.Want)
	if !m.Finite {
		return
	}
	c.RelRMS, c.RowRMS, c.MaxRMS, c.MaxAbs = report.JSONFloat(m.RelRMS), report.JSONFloat(m.RowRMS),
		report.JSONFloat(m.MaxRMS), report.JSONFloat(m.MaxAbs)
	c.MaxAbsIndex = c.Index
	c.BitEqual, c.OneULP, c.WorstRow = report.JSONFloat(m.BitEqual), report.JSONFloat(m.OneULP), m.WorstRow
}

// unjudged returns why a stage is measured but not judged in this mode; empty if it is judged.
func (j *job) unjudged(name string) string {
	if j.options.Mode == report.Local {
		return ""
	}
	if j.pack.DType != tensor.F32 {
		return "chained mode has no usable limit in " + j.pack.DType.String()
	}
	s := pack.Parse(name)
	switch s.Within {
	case pack.LayerOutput, pack.Logits, pack.LastNorm, pack.Embedded, pack.PredictedNorm, pack.PredictedLogits,
		pack.CollapsedHead:
		return ""
	}
	if s.IsLossOrGradient() || s.OfIndexer() == pack.IndexerScores {
		return ""
	}
	return "chained mode checks the layers' outputs"
}
