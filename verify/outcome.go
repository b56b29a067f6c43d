package verify

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
)

// report turns what was traced into the verdict: fail if a check failed, pass if
// nothing was left unchecked, inconclusive otherwise.
func (t *tracer) report(in *model.Input) *Report {
	m := &t.pack.Manifest
	r := &Report{
		Mode:       t.o.Mode,
		Accumulate: "float64",
		Routing:    t.routing,
		Golden:     Golden{m.Reference, m.Mode, m.ConfigOverrides, m.ComputeDType, in.Batch, in.Seq, m.Checkpoint},
		Rules:      rulesOf(t.m.Config),
		Checks:     t.inOrder(),
	}
	if t.o.Accumulate == model.Float32 {
		r.Accumulate = "float32"
	}
	r.Coverage = t.coverage(r.Checks, in)
	r.Reasons = t.gaps(&r.Coverage, in)
	r.Verdict = Pass
	if len(r.Reasons) > 0 {
		r.Verdict = Inconclusive
	}
	for _, c := range r.Checks {
		if c.Verdict == Fail {
			r.Verdict, r.FirstDivergence = Fail, &c.Tensor
			break
		}
	}
	return r
}

func rulesOf(c *config.Config) Rules {
	r := Rules{Reference: c.Reference, MoELayerFreq: c.MoELayerFreq, IgnoresMoELayerFreq: c.Rules().IgnoresMoELayerFreq}
	r.NormaliseTopK, r.TopKScale = c.TopKWeights()
	if r.IgnoresMoELayerFreq {
		r.MoELayerFreq = 1
	}
	return r
}

// inOrder returns the checks in model order, with a failed one for every golden
// tensor that the model has no stage for: ahead of its layer's, for the rest of
// that layer cannot be trusted.
func (t *tracer) inOrder() []Check {
	checks := []Check{}
	for _, name := range slices.Sorted(maps.Keys(t.pack.Manifest.Tensors)) {
		if !t.seen[name] {
			layer, _ := split(name)
			checks = append(checks, Check{Tensor: name, Verdict: Fail, layer: layer, Reason: "the model has no such stage"})
		}
	}
	checks = append(checks, t.checks...)
	const last = math.MaxInt - 1 // the pack may have layers that the model has not
	place := func(c Check) int {
		switch {
		case strings.HasSuffix(c.Tensor, grad):
			return last + 1 // every gradient depends on the whole forward pass
		case c.layer >= 0:
			return c.layer
		case c.Tensor == embedded:
			return -1
		}
		return last
	}
	slices.SortStableFunc(checks, func(a, b Check) int { return place(a) - place(b) })
	return checks
}

// coverage counts what the checks cover.
func (t *tracer) coverage(checks []Check, in *model.Input) Coverage {
	c := Coverage{GoldenUnchecked: []string{}, WeightsUnchecked: []string{}, Unreached: []LayerExperts{}}
	ids := slices.Clone(in.InputIDs)
	slices.Sort(ids)
	c.EmbeddingRows, c.VocabSize = len(slices.Compact(ids)), t.m.Config.VocabSize
	for _, check := range checks {
		if !t.pack.Has(check.Tensor) {
			continue
		}
		c.GoldenTensors++
		if check.Verdict == Skipped {
			c.GoldenUnchecked = append(c.GoldenUnchecked, check.Tensor)
		} else {
			c.GoldenChecked++
		}
	}
	unreached := map[int][]int{}
	for s := range model.FamilyOf(t.m.Config).Slots(t.m.Config) {
		c.Weights++
		if _, ok := t.used[s.Name]; ok {
			c.WeightsChecked++
		} else if s.Expert < 0 || t.reached[s.Layer][s.Expert] {
			c.WeightsUnchecked = append(c.WeightsUnchecked, s.Name)
		} else if n := len(unreached[s.Layer]); n == 0 || unreached[s.Layer][n-1] != s.Expert {
			unreached[s.Layer] = append(unreached[s.Layer], s.Expert)
		}
	}
	for _, l := range slices.Sorted(maps.Keys(unreached)) {
		c.Unreached = append(c.Unreached, LayerExperts{"model.layers." + strconv.Itoa(l), unreached[l]})
	}
	c.OutsideForward = t.outsideForward()
	for l := range t.m.Model.Layers {
		if t.m.Config.IsMoE(l) {
			c.Experts += t.m.Config.NRoutedExperts
			c.ExpertsReached += len(t.reached[l])
		}
	}
	return c
}

// outsideForward counts the prediction layers' weights that the source holds.
func (t *tracer) outsideForward() (n int) {
	known := map[string]bool{}
	for s := range model.FamilyOf(t.m.Config).MTPSlots(t.m.Config) {
		known[s.Name] = true
	}
	for _, w := range t.set.All() {
		if known[w.Name] {
			n++
		}
	}
	return n
}

// gaps says why the run is no pass even if no check failed.
func (t *tracer) gaps(c *Coverage, in *model.Input) []string {
	var reasons []string
	if t.o.Mode == Chained && t.pack.DType != tensor.F32 {
		reasons = append(reasons, fmt.Sprintf("end to end, %s rounding grows without a usable limit: this is a report, use --mode local for a verdict", t.pack.DType))
	}
	if n := len(c.WeightsUnchecked); n > 0 && reasons == nil {
		reasons = append(reasons, fmt.Sprintf("%d weights took part in no checked stage, the first is %s", n, c.WeightsUnchecked[0]))
	}
	if c.Experts > 0 && !t.kinds[topKIdx] {
		reasons = append(reasons, "the pack has no mlp.gate.topk_idx: the choice of experts was not checked")
	}
	if !attends(in) {
		reasons = append(reasons, "no token attends to a different one: attention and RoPE were not exercised")
	}
	if t.pack.Manifest.Mode == "train" && !(t.seen[loss] && t.anyGradient() && t.auxExpected()) {
		reasons = append(reasons, "a training pack without loss, auxiliary losses or gradients: that part was not checked")
	}
	return reasons
}

// attends says whether some token sees another one, of another id, before it.
func attends(in *model.Input) bool {
	for b := range in.Batch {
		first := -1
		for i := b * in.Seq; i < (b+1)*in.Seq; i++ {
			switch {
			case in.AttentionMask != nil && in.AttentionMask[i] == 0:
			case first < 0:
				first = in.InputIDs[i]
			case in.InputIDs[i] != first:
				return true
			}
		}
	}
	return false
}

func (t *tracer) anyGradient() bool {
	return slices.ContainsFunc(t.checks, func(c Check) bool { return strings.HasSuffix(c.Tensor, grad) })
}

// auxExpected says whether the pack has the auxiliary losses that the config gives rise
// to.
func (t *tracer) auxExpected() bool {
	c := t.m.Config
	return c.NRoutedExperts == 0 || c.AuxLossAlpha == 0 || t.kinds[auxLoss]
}
