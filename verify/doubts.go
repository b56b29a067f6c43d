package verify

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/text"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// doubts lists why the run may be no pass although no check failed, beside what follows from the rest of the report.
func (e *evidence) doubts(r *report.Report) []report.Doubt {
	j, doubts := e.job, []report.Doubt{}
	add := func(holds bool, kind string, of ...string) {
		switch n := len(doubts); {
		case !holds || len(of) == 0:
		case n > 0 && doubts[n-1].Kind == kind:
			doubts[n-1].Of = append(doubts[n-1].Of, of...)
		default:
			doubts = append(doubts, report.Doubt{Kind: kind, Of: of})
		}
	}
	add(r.Coverage.Padding == len(j.in.InputIDs), ofPack, "all tokens are padding: no row of a stage was compared")
	add(true, ofPack, j.unknownReasons(r.Checks)...)
	for i := range j.found {
		add(!j.found[i].decided, ofPack, j.found[i].doubt())
	}
	for _, l := range j.scope.absent {
		add(true, unnamedLayer, strconv.Itoa(l))
	}
	hasExperts := func(p report.Place) bool { return p.Experts > 0 }
	add(slices.ContainsFunc(r.Places, hasExperts) && !j.kinds[pack.TopKIdx] && e.choiceMatters(), ofChoice,
		"the pack has no mlp.gate.topk_idx: the choice of experts was not checked")
	add(j.scope.units[0].runs && !attends(j.in), ofInput,
		"no token attends to a different one: attention and RoPE were not exercised")
	for _, s := range e.starts {
		add(s.uniform && !j.model.Config.BlockOnly(), ofInput, s.name+" is the same for all tokens: attention and RoPE were not exercised")
	}
	add(true, ofInput, e.fewTokens(r.Places)...)
	add(true, allZero, e.zeros...)
	add(true, ofConfig, configReasons(&j.settings, j.options.StrictConfig)...)
	add(true, ofConfig, e.untrained()...)
	add(true, ofConfig, e.undecided(r.Checks)...)
	for _, c := range r.Checks {
		add(c.Blind && c.Verdict == report.Pass && j.options.Mode == report.Local, blind, c.Tensor)
	}
	add(true, seldomReached, e.seldomReached()...)
	add(true, notFinite, e.notFinite...)
	return doubts
}

// fewTokens says how many tokens compressors need for which the pack's sequences are too short: see
// config.Config.EntryTokens. It does not name their layers, so that reports of parts say the same.
func (e *evidence) fewTokens(places []report.Place) (reasons []string) {
	needs := map[int]bool{}
	for _, p := range places {
		l := p.Layer()
		need, bias := e.job.model.Config.EntryTokens(l), pack.StageOf(l, "self_attn.compressor.position_bias")
		if _, used := e.exercised[bias]; e.job.in.Seq < need && (used || slices.Contains(p.Unchecked, bias)) {
			needs[need] = true
		}
	}
	for _, need := range slices.Sorted(maps.Keys(needs)) {
		reasons = append(reasons, fmt.Sprintf("sequences of %s: compressors that need at least %d do not exercise all "+
			"their weights", text.Plural(e.job.in.Seq, "token"), need))
	}
	return reasons
}

// choiceMatters reports whether a checked stage depends on the choice of experts, as probes do not, or the
// manifest does not name the choice as absent.
func (e *evidence) choiceMatters() bool {
	for name := range e.exercised {
		w := e.job.weights.Find(name)
		if w == nil || w.Expert < 0 {
			continue
		}
		if of := (expert{w.Layer, w.Expert}); e.reached[of] || !e.probed[of] {
			return true
		}
	}
	return !slices.Contains(e.job.pack.Manifest.Absent.Stages, pack.TopKIdx)
}

// seldomReached lists the layers of which tokens and probes reached fewer than half of the routed
// experts.
func (e *evidence) seldomReached() (reasons []string) {
	j, c := e.job, e.job.model.Config
	if j.pack.Manifest.Partial != "" {
		return nil
	}
	for _, l := range j.scope.layersRun() {
		reached, what, more := 0, "tokens", ""
		if len(j.pack.Manifest.Probes[strconv.Itoa(l)].Experts) > 0 {
			more = "; probes of others are run in local mode only"
		}
		for n := range c.MoE.NRoutedExperts {
			of := expert{l, n}
			if e.probed[of] {
				what, more = "tokens and probes", ""
			}
			if e.probed[of] || e.reached[of] {
				reached++
			}
		}
		if c.IsMoE(l) && !j.scope.isRouter(l) && 2*reached < c.MoE.NRoutedExperts && !e.expertsAside(l) {
			reasons = append(reasons, fmt.Sprintf("model.layers.%d: the pack's %s reach %d of %d routed experts%s", l, what,
				reached, c.MoE.NRoutedExperts, more))
		}
	}
	return reasons
}

// expertsAside reports whether layer l's routed experts took part only in stages that are absent on purpose or
// not selected.
func (e *evidence) expertsAside(l int) bool {
	prefix, leftOut := pack.StageOf(l, "mlp.experts."), false
	for name := range e.leftOut {
		leftOut = leftOut || strings.HasPrefix(name, prefix)
	}
	for name := range e.exercised {
		if strings.HasPrefix(name, prefix) {
			return false
		}
	}
	return leftOut
}

// untrained reports what a training pack lacks: the loss, auxiliary losses, or gradients. A pack
// may have gradients of some modules only, but then of all their weights.
func (e *evidence) untrained() []string {
	if e.job.pack.Manifest.Mode != "train" || e.job.scope.restricted() {
		return nil
	}
	c := e.job.model.Config
	isGradient := func(c report.Check) bool { return c.Stage().IsGradient() }
	lacksAux := c.MoE.NRoutedExperts > 0 && c.Router.AuxLossAlpha != 0 && !e.job.kinds[pack.AuxLoss]
	if !e.shown[pack.Loss] || !slices.ContainsFunc(e.checks, isGradient) || lacksAux {
		return []string{"a training pack without loss, auxiliary losses or gradients: that part was not checked"}
	}
	type module struct {
		layer int
		name  table.Module
	}
	has, missing := map[module]bool{}, []table.Slot{}
	for s := range table.FamilyOf(c).Slots(c) {
		if e.job.pack.Has(s.Name + pack.Grad) {
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
func (e *evidence) undecided(checks []report.Check) (reasons []string) {
	of := map[report.Status][]string{}
	for _, c := range checks {
		of[c.Status] = append(of[c.Status], c.Tensor)
	}
	remedy := ": a pack of golden.py --train decides, which has the gradients of stages"
	if e.job.pack.HasStageGradients(e.job.model.Config.NumHiddenLayers) {
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
	if names := of[report.LocalOnly]; names != nil && e.job.options.Mode == report.Local {
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
