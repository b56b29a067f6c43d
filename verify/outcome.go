package verify

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/text"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// report turns what was traced into a report with its verdict: see conclude.
func (t outcome) report() *report.Report {
	r := &report.Report{
		Mode:       t.o.Mode,
		Accumulate: "float64",
		Routing:    t.routing,
		Golden:     goldenOf(t.pack, t.in),
		Stopped:    t.stopped,
		Rules:      rulesOf(t.m.Config),
		Config:     t.settings,
		Beside:     t.contradictions,
		Free:       slices.Sorted(maps.Keys(t.lacked)),
		UserLimits: len(t.o.Limits) > 0,
		Options:    report.Options{Limits: t.o.Limits, RotaryDType: cmp.Or(t.options().RotaryDType, t.pack.DType).String()},
		Checks:     t.inOrder(),
		Causes:     []report.Cause{},
		Hints:      []report.Cause{},
	}
	if t.pack.IsTrace() {
		r.Golden.Observed = undeclared(t.how, t.pack.Manifest.Arithmetic)
	}
	if r.Free == nil {
		r.Free = []string{}
	}
	if r.Routing.Biases == nil {
		r.Routing.Biases = []report.BiasPins{}
	}
	if r.Routing.Layers == nil {
		r.Routing.Layers = []report.LayerRouting{}
	}
	if t.o.Accumulate == model.Float32 {
		r.Accumulate = "float32"
	}
	r.Coverage, r.Scope, r.Places = t.coverage(), t.describeScope(r.Checks), t.places()
	r.Doubts = t.doubts(r)
	conclude(r)
	return r
}

// goldenOf is what the report says of a pack and its input.
func goldenOf(p *pack.Pack, in *model.Input) report.Golden {
	m := &p.Manifest
	return report.Golden{Reference: m.Reference, Mode: m.Mode, ConfigOverrides: m.ConfigOverrides,
		ComputeDType: m.ComputeDType, Partial: m.Partial, Arithmetic: m.Arithmetic,
		Absent: m.Absent, Batch: in.Batch, Seq: in.Seq, Checkpoint: m.Checkpoint, Manifest: p.Hash}
}

func rulesOf(c *config.Config) report.Rules {
	r := report.Rules{Reference: c.Reference, MoELayerFreq: c.MoELayerFreq,
		IgnoresMoELayerFreq: c.Rules().IgnoresMoELayerFreq}
	r.NormaliseTopK, r.TopKScale = c.TopKWeights()
	if r.IgnoresMoELayerFreq {
		r.MoELayerFreq = 1
	}
	if c.Windowed() {
		r.Official = windowedOfficial
	}
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
func (t outcome) inOrder() []report.Check {
	checks, behind := []report.Check{}, []report.Check{}
	for _, name := range slices.Sorted(maps.Keys(t.pack.Manifest.Tensors)) {
		if t.seen[name] || !t.scope.selects(name) || !pack.Parse(name).IsStage() && !t.scope.compares(name) {
			continue
		}
		switch c := t.unmatched(name); c.Status {
		case report.NotLookedAt, report.NoToken, report.NoProbes:
			behind = append(behind, c)
		default:
			checks = append(checks, c)
		}
	}
	checks = append(checks, slices.Concat(t.checks, behind)...)
	const head = math.MaxInt / 2 // the pack may have layers that the model has not
	first := len(t.m.Model.Layers)
	place := func(c report.Check) int {
		switch {
		case c.Stage().IsGradient():
			return math.MaxInt // every gradient depends on the whole forward pass
		case first <= c.Layer() && c.Layer() < first+len(t.m.Model.MTP):
			return head + 1 + c.Layer() - first // prediction layers follow the head
		case c.Layer() >= 0:
			return min(c.Layer(), head-1)
		case c.Tensor == pack.Embedded:
			return -2
		case c.Stage().IsTable():
			return -1
		}
		return head
	}
	slices.SortStableFunc(checks, func(a, b report.Check) int { return cmp.Compare(place(a), place(b)) })
	return checks
}

// predictedNowhere reports whether the pack has stages of a prediction layer that was not run:
// one that config.json announces, or that the pack shows to be one.
func (t outcome) predictedNowhere(layer int) bool {
	announced := layer < t.m.Config.NumHiddenLayers+t.m.Config.NumNextNPredictLayers
	return layer >= t.layers() && (announced || t.pack.Has(fmt.Sprintf("model.layers.%d.%s", layer, pack.PredictedFrom)))
}

// unmatched is the check of a golden tensor that the model showed no stage for.
func (t outcome) unmatched(name string) report.Check {
	s := pack.Parse(name)
	c := report.Check{Tensor: name, Verdict: report.Fail, Reason: "the model has no such stage"}
	switch {
	case t.stopped:
		c.Skip(report.NotLookedAt)
	case t.predictedNowhere(s.Layer):
		c.Skip(report.PredictionLayer)
	case t.o.Mode == report.Chained && s.IsProbe():
		c.Skip(report.NoProbes)
	case s.IsStageGradient() && (t.o.Mode != report.Local || !t.stageGradients()):
		c.Skip(report.LocalOnly)
	case pack.Inner[s.Kind] && s.Expert >= 0 && s.Expert < t.m.Config.NRoutedExperts &&
		slices.Contains(t.ran(), s.Layer) && t.m.Config.IsMoE(s.Layer):
		c.Status, c.Reason = report.NoToken, report.NoToken.Words()
	}
	return c
}

// doubts lists why the run may be no pass although no check failed, beside what follows from the rest of the report.
func (t outcome) doubts(r *report.Report) []report.Doubt {
	doubts := []report.Doubt{}
	add := func(holds bool, kind string, of ...string) {
		switch n := len(doubts); {
		case !holds || len(of) == 0:
		case n > 0 && doubts[n-1].Kind == kind:
			doubts[n-1].Of = append(doubts[n-1].Of, of...)
		default:
			doubts = append(doubts, report.Doubt{Kind: kind, Of: of})
		}
	}
	add(r.Coverage.Padding == len(t.in.InputIDs), ofPack, "all tokens are padding: no row of a stage was compared")
	add(true, ofPack, t.unknownReasons(r.Checks)...)
	for _, l := range t.scope.absent {
		add(true, unnamedLayer, strconv.Itoa(l))
	}
	hasExperts := func(p report.Place) bool { return p.Experts > 0 }
	add(slices.ContainsFunc(r.Places, hasExperts) && !t.kinds[pack.TopKIdx] && t.choiceMatters(), ofChoice,
		"the pack has no mlp.gate.topk_idx: the choice of experts was not checked")
	add(t.scope.course.Embedding && !attends(t.in), ofInput,
		"no token attends to a different one: attention and RoPE were not exercised")
	for _, s := range t.starts {
		add(s.uniform, ofInput, s.name+" is the same for all tokens: attention and RoPE were not exercised")
	}
	add(true, ofInput, t.fewTokens(r.Places)...)
	add(true, allZero, t.zeros...)
	add(true, ofConfig, configReasons(&t.settings)...)
	add(true, ofConfig, t.untrained()...)
	add(true, ofConfig, t.undecided(r.Checks)...)
	for _, c := range r.Checks {
		add(c.Blind && c.Verdict == report.Pass && t.o.Mode == report.Local, blind, c.Tensor)
	}
	add(true, seldomReached, t.seldomReached()...)
	add(true, notFinite, t.notFinite...)
	return doubts
}

// fewTokens lists the layers whose compressors the pack's sequences are too short for: see config.Config.EntryTokens.
func (t outcome) fewTokens(places []report.Place) (reasons []string) {
	layers := map[int][]int{} // by the number of tokens that they need
	for _, p := range places {
		l := p.Layer()
		need, bias := t.m.Config.EntryTokens(l), pack.StageOf(l, "self_attn.compressor.position_bias")
		if _, used := t.exercised[bias]; t.in.Seq < need && (used || slices.Contains(p.Unchecked, bias)) {
			layers[need] = append(layers[need], l)
		}
	}
	for _, need := range slices.Sorted(maps.Keys(layers)) {
		reasons = append(reasons, fmt.Sprintf("sequences of %s: the compressors of layers %s need at least %d to exercise "+
			"all their weights", text.Plural(t.in.Seq, "token"), text.Ranges(layers[need]), need))
	}
	return reasons
}

// choiceMatters reports whether a checked stage depends on the choice of experts, as probes do not, or the
// manifest does not name the choice as absent.
func (t outcome) choiceMatters() bool {
	for name := range t.exercised {
		w := t.set.Find(name)
		if w != nil && w.Expert >= 0 && (t.reached[w.Layer][w.Expert] || !t.probed[w.Layer][w.Expert]) {
			return true
		}
	}
	return !slices.Contains(t.pack.Manifest.Absent.Stages, pack.TopKIdx)
}

// seldomReached lists the layers of which tokens and probes reached fewer than half of the routed
// experts.
func (t outcome) seldomReached() (reasons []string) {
	if t.pack.Manifest.Partial != "" {
		return nil
	}
	for _, l := range t.ran() {
		reached, what, more := map[int]bool{}, "tokens", ""
		if maps.Copy(reached, t.probed[l]); len(reached) > 0 {
			what = "tokens and probes"
		} else if len(t.pack.Manifest.Probes[strconv.Itoa(l)].Experts) > 0 {
			more = "; probes of others are run in local mode only"
		}
		maps.Copy(reached, t.reached[l])
		if n := t.m.Config.NRoutedExperts; t.m.Config.IsMoE(l) && !t.scope.isRouter(l) && 2*len(reached) < n && !t.expertsAside(l) {
			reasons = append(reasons, fmt.Sprintf("model.layers.%d: the pack's %s reach %d of %d routed experts%s", l, what,
				len(reached), n, more))
		}
	}
	return reasons
}

// expertsAside reports whether layer l's routed experts took part only in stages that are absent on purpose or
// not selected.
func (t outcome) expertsAside(l int) bool {
	prefix, leftOut := pack.StageOf(l, "mlp.experts."), false
	for name := range t.leftOut {
		leftOut = leftOut || strings.HasPrefix(name, prefix)
	}
	for name := range t.exercised {
		if strings.HasPrefix(name, prefix) {
			return false
		}
	}
	return leftOut
}

// untrained reports what a training pack lacks: the loss, auxiliary losses, or gradients. A pack
// may have gradients of some modules only, but then of all their weights.
func (t outcome) untrained() []string {
	if t.pack.Manifest.Mode != "train" || t.scope.restricted() {
		return nil
	}
	if !t.seen[pack.Loss] || !t.anyGradient() || !t.auxExpected() {
		return []string{"a training pack without loss, auxiliary losses or gradients: that part was not checked"}
	}
	type module struct {
		layer int
		name  table.Module
	}
	has, missing := map[module]bool{}, []table.Slot{}
	for s := range table.FamilyOf(t.m.Config).Slots(t.m.Config) {
		if t.pack.Has(s.Name + pack.Grad) {
			has[module{s.Layer, s.Module()}] = true
		} else {
			missing = append(missing, s)
		}
	}
	var names []string
	for _, s := range missing {
		if has[module{s.Layer, s.Module()}] {
			names = append(names, s.Name)
		}
	}
	if names == nil {
		return nil
	}
	return []string{countWithFirst("weight", "has no gradient in the pack, though others of its module have",
		"have no gradient in the pack, though others of their module have", names)}
}

// undecided lists gradients and stages that could not be judged, and what would decide them.
func (t outcome) undecided(checks []report.Check) (reasons []string) {
	of := map[report.Status][]string{}
	for _, c := range checks {
		of[c.Status] = append(of[c.Status], c.Tensor)
	}
	remedy := ": a pack of golden.py --train decides, which has the gradients of stages"
	if t.stageGradients() {
		remedy = ": local mode decides, by the gradients of stages"
	}
	if names, words := of[report.Undecided], report.Undecided.Words(); names != nil {
		reasons = append(reasons, countWithFirst("gradient", "is "+words, "are "+words, names)+remedy)
	}
	if names := of[report.UndecidedStage]; names != nil {
		reasons = append(reasons, fmt.Sprintf("%s, the first is %s: local mode decides",
			text.Plural(len(names), "stage")+" "+report.UndecidedStage.Words(), names[0]))
	}
	if names := of[report.Noisy]; names != nil {
		reasons = append(reasons, countWithFirst("gradient", "proves nothing: another order of sums changes it too much in "+
			"the reference", "prove nothing: another order of sums changes them too much in the reference", names)+remedy)
	}
	if names := of[report.LocalOnly]; names != nil && t.o.Mode == report.Local {
		const why = " not compared, since the pack has not those of all layers' outputs"
		reasons = append(reasons, countWithFirst("stage gradient", "was"+why, "were"+why, names))
	}
	return reasons
}

// attends reports whether some token sees an earlier token with another id.
func attends(in *model.Input) bool {
	for b := range in.Batch {
		first := -1
		for i := b * in.Seq; i < (b+1)*in.Seq; i++ {
			switch {
			case in.IsPadding(i):
			case first < 0:
				first = in.InputIDs[i]
			case in.InputIDs[i] != first:
				return true
			}
		}
	}
	return false
}

func (t outcome) anyGradient() bool {
	return slices.ContainsFunc(t.checks, func(c report.Check) bool { return c.Stage().IsGradient() })
}

// auxExpected reports whether the pack has the auxiliary losses that the config implies.
func (t outcome) auxExpected() bool {
	c := t.m.Config
	return c.NRoutedExperts == 0 || c.AuxLossAlpha == 0 || t.kinds[pack.AuxLoss]
}
