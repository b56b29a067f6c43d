package verify

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	"dsmoe/model"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// project puts the evidence into a report: checks, places, doubts and choices. conclude adds counts and the verdict.
func (e *evidence) project() report.Report {
	j := e.job
	o, m, c := j.options, &j.pack.Manifest, j.model.Config
	r := report.Report{
		Mode:       o.Mode,
		Accumulate: "float64",
		Routing:    e.routing,
		Golden: report.Golden{Reference: m.Reference, Mode: m.Mode, ConfigOverrides: m.ConfigOverrides,
			ComputeDType: m.ComputeDType, Partial: m.Partial, Arithmetic: m.Arithmetic, Unread: j.pack.Unread, Absent: m.Absent, Batch: j.in.Batch,
			Seq: j.in.Seq, Steps: m.StepCounts(), Checkpoint: m.Checkpoint, Manifest: j.pack.Hash},
		Stopped: e.stopped,
		Rules: report.Rules{Reference: c.Reference, MoELayerFreq: c.Layers.MoELayerFreq,
			IgnoresMoELayerFreq: c.Rules().MoE.IgnoresMoELayerFreq},
		Config:     j.settings,
		Beside:     j.contradictions,
		Free:       append([]string{}, slices.Sorted(maps.Keys(e.lacked))...),
		UserLimits: len(o.Limits) > 0,
		Options: report.Options{Limits: o.Limits, Accept: o.Accept,
			RotaryDType: cmp.Or(j.modelOptions().RotaryDType, j.pack.DType).String()},
		Checks: e.inOrder(),
		Causes: []report.Cause{},
		Hints:  []report.Cause{},
	}
	if o.Replay != nil {
		r.Replay = &report.Replay{Golden: o.Replay.Dir, Manifest: o.Replay.Hash}
	}
	r.Rules.NormaliseTopK, r.Rules.TopKScale = c.TopKWeights()
	if r.Rules.IgnoresMoELayerFreq {
		r.Rules.MoELayerFreq = 1
	}
	if c.Windowed() {
		r.Rules.Official = windowedOfficial
	}
	if j.pack.IsTrace() {
		r.Golden.Observed = undeclared(j.engine, m.Arithmetic)
	}
	r.Golden.Products = tf32Words[j.operands]
	for i := range j.found {
		r.Golden.Recognised = append(r.Golden.Recognised, j.found[i].reported())
	}
	if o.Accumulate == model.Float32 {
		r.Accumulate = "float32"
	}
	r.Coverage, r.Scope, r.Places = e.coverage(), e.describeScope(r.Checks), e.places()
	r.Doubts = e.doubts(&r)
	return r
}

// windowedOfficial describes DeepSeek-V4's official inference code, and what else its packs' rules are.
const windowedOfficial = "these are transformers' rules: the official inference code computes router, compressors, " +
	"streams and experts in float32, rounds keys, indexers and inputs of products to FP8 or FP4, and weighs experts " +
	"before w2; rows of padding are compared, since compressors read them"

// inOrder returns the checks in model order, with a failed one for every golden
// tensor that the model has no stage for: ahead of its layer's, for the rest of
// that layer cannot be trusted. Stages that were not checked, and stages of an expert that
// got no token, follow their layer's: the choice of experts explains them.
func (e *evidence) inOrder() []report.Check {
	j := e.job
	checks, behind := []report.Check{}, []report.Check{}
	for _, name := range slices.Sorted(maps.Keys(j.pack.Manifest.Tensors)) {
		if e.shown[name] || !j.scope.selects(name) || !pack.Parse(name).IsStage() && !j.scope.compares(name) {
			continue
		}
		switch c := e.unmatched(name); c.Status {
		case report.NotLookedAt, report.NoToken, report.NoProbes:
			behind = append(behind, c)
		default:
			checks = append(checks, c)
		}
	}
	checks = append(checks, slices.Concat(e.checks, behind)...)
	layers, predictions := len(j.model.Model.Layers), len(j.model.Model.MTP)
	slices.SortStableFunc(checks, func(a, b report.Check) int {
		return cmp.Compare(modelOrder(a.Tensor, layers, predictions), modelOrder(b.Tensor, layers, predictions))
	})
	return checks
}

// modelOrder is the place of a tensor, or of a sentence that begins with it, in a model of so many layers and
// prediction layers. Layers that the model has not come before the head.
func modelOrder(name string, layers, predictions int) int {
	const head = math.MaxInt / 2
	switch s := pack.Parse(strings.TrimPrefix(name, `"`)); {
	case s.IsGradient():
		return math.MaxInt // every gradient depends on the whole forward pass
	case layers <= s.Layer && s.Layer-layers < predictions:
		return head + 1 + s.Layer // prediction layers follow the head
	case s.Layer >= 0:
		return min(s.Layer, head-1)
	case strings.HasPrefix(s.Name, "model.embed_tokens"):
		return -2
	case s.IsTable():
		return -1
	}
	return head
}

// unmatched is the check of a golden tensor that the model showed no stage for.
func (e *evidence) unmatched(name string) report.Check {
	j, s, c := e.job, pack.Parse(name), e.job.model.Config
	check := report.Check{Tensor: name, Verdict: report.Fail, Reason: "the model has no such stage"}
	predicted := s.Layer < c.NumHiddenLayers+c.NumNextNPredictLayers || j.pack.Has(pack.StageOf(s.Layer, pack.PredictedFrom))
	switch {
	case e.stopped:
		check.Skip(report.NotLookedAt)
	case s.Layer >= j.scope.layersEnd() && predicted:
		check.Skip(report.PredictionLayer)
	case c.BlockOnly() && s.Layer < 0 || leavesOut(c, s):
		check.Skip(report.OutsideMLPs)
	case j.options.Mode == report.Chained && s.IsProbe():
		check.Skip(report.NoProbes)
	case s.IsStageGradient() && (j.options.Mode != report.Local || !j.pack.HasStageGradients(c.NumHiddenLayers)):
		check.Skip(report.LocalOnly)
	case pack.Inner[s.Kind] && s.Expert >= 0 && s.Expert < c.MoE.NRoutedExperts && slices.Contains(j.scope.layersRun(),
		s.Layer) &&
		c.IsMoE(s.Layer):
		check.Status, check.Reason = report.NoToken, report.NoToken.Words()
	}
	return check
}
