package verify

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"dsmoe/model/table"
	"dsmoe/text"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// The kinds of doubts, see report.Doubt. Those that are not counted in one sentence are sentences themselves.
const (
	ofPack        = "pack"        // of the pack as a whole
	unnamedLayer  = "layers"      // numbers of layers that the pack has no stage of, and does not name as absent
	ofChoice      = "choice"      // of the choice of experts
	ofInput       = "input"       // what the input does not exercise
	allZero       = "zeros"       // stages whose golden tensor is all zero
	ofConfig      = "config"      // what config.json, or training, leaves open
	blind         = "blind"       // stages whose bounds are too wide to say anything
	seldomReached = "unreached"   // layers too few experts of which were reached
	notFinite     = "not-finite"  // weights that hold a NaN or an infinity
	uncovered     = "not-covered" // places of the model that no report of a merge covers
)

// conclude adds counts, reasons and the verdict to a report. They follow from its checks, places, doubts and choices of
// experts. The verdict is fail if a check failed, pass if no reason is against it, else inconclusive. A part of the
// model without anything to verify is skipped.
func conclude(evidence report.Report) *report.Report {
	r := &evidence
	r.Limits, r.Accepted = report.LimitsOf(r.Checks), acceptedCauses(r.Checks)
	countChecks(r)
	countPlaces(r)
	r.Coverage.Untold = unexercisedNumbers(r)
	r.Scope.Text = r.Scope.Describe()
	empty := isEmptyPart(r)
	if r.Verdict, r.FirstDivergence, r.Reasons = report.Pass, nil, nil; empty {
		r.Verdict = report.Skipped
	} else if r.Reasons = reasons(r); len(r.Reasons) > 0 {
		r.Verdict = report.Inconclusive
	}
	if i := slices.IndexFunc(r.Checks, func(c report.Check) bool { return c.Verdict == report.Fail }); i >= 0 {
		r.Verdict, r.FirstDivergence = report.Fail, &r.Checks[i].Tensor
	}
	return r
}

// acceptedCauses lists the causes of accepted checks, each with its stages.
func acceptedCauses(checks []report.Check) (list []report.AcceptedCause) {
	for _, c := range checks {
		if c.Accepted == nil {
			continue
		}
		i := slices.IndexFunc(list, func(a report.AcceptedCause) bool { return a.ID == c.Accepted.ID && a.Text == c.Accepted.Text })
		if i < 0 {
			i, list = len(list), append(list, report.AcceptedCause{ID: c.Accepted.ID, Text: c.Accepted.Text})
		}
		list[i].Stages = append(list[i].Stages, c.Tensor)
	}
	return list
}

// joinVerdicts makes the verdict of a report that of both traces: the worse one.
func joinVerdicts(r *report.Report) {
	a := r.Against
	if a.This = r.Verdict; a.Verdict == report.Fail || a.Verdict == report.Inconclusive && r.Verdict == report.Pass {
		r.Verdict = a.Verdict
	}
}

// isEmptyPart reports whether the user's part has nothing to verify.
func isEmptyPart(r *report.Report) bool {
	selected := func(p report.Place) bool { return p.Selected }
	ofPart := func(c report.Check) bool { return !c.Stage().IsTable() }
	return r.Scope.Part != nil && !slices.ContainsFunc(r.Places, selected) && !slices.ContainsFunc(r.Checks, ofPart)
}

// countChecks counts the golden tensors that were checked.
func countChecks(r *report.Report) {
	c, judged := &r.Coverage, map[string]bool{}
	c.GoldenUnchecked = []string{}
	for _, check := range r.Checks {
		if check.Verdict != report.Skipped && check.Status != report.NotInPack {
			judged[check.Tensor] = true
		}
	}
	for _, check := range r.Checks {
		if !judged[check.Tensor] && check.Status != report.NotInPack {
			c.GoldenUnchecked = append(c.GoldenUnchecked, check.Tensor)
		}
	}
	c.GoldenChecked = len(judged)
}

// countPlaces adds up what was done with the places.
func countPlaces(r *report.Report) {
	c, s := &r.Coverage, &r.Scope
	c.Weights, c.WeightsChecked, c.WeightsUnchecked, c.EmbeddingCopies = 0, 0, []string{}, 0
	c.WeightsUnpinned = []string{}
	c.Experts, c.ExpertsReached, c.ExpertsProbed, c.Unreached = 0, 0, 0, []report.LayerExperts{}
	s.Weights, s.ByName, s.LeftOut, s.Bytes, s.Layers, s.Unread = 0, 0, 0, 0, []int{}, []int{}
	s.UnreadParts, s.Routers, s.Blocks, r.Routing.Keys = []string{}, nil, nil, nil
	for _, p := range r.Places {
		if !p.Ran {
			s.Weights, s.ByName = s.Weights+p.Weights, s.ByName+p.ByName
			if l := p.Layer(); l >= 0 {
				s.Unread = append(s.Unread, l)
			} else {
				s.UnreadParts = append(s.UnreadParts, "the "+p.Name)
			}
			continue
		}
		if p.Keys != nil {
			if r.Routing.Keys == nil {
				r.Routing.Keys = &report.KeyChoices{}
			}
			r.Routing.Keys.Add(p.Keys)
		}
		chosen := func(l report.LayerRouting) bool { return s.Chosen > 0 && l.Layer == "model.layers."+p.Name }
		if p.Layer() >= 0 && (p.Checked > 0 || slices.ContainsFunc(r.Routing.Layers, chosen)) {
			s.Layers = append(s.Layers, p.Layer())
		}
		switch {
		case p.Block:
			s.Weights, s.Blocks = s.Weights+p.Unread, append(s.Blocks, p.Layer())
		case p.Unread > 0:
			s.Weights, s.Routers = s.Weights+p.Unread, append(s.Routers, p.Layer())
		}
		s.LeftOut, s.Bytes = s.LeftOut+p.LeftOut, s.Bytes+p.Bytes
		c.Weights, c.WeightsChecked = c.Weights+p.Weights-p.Unread, c.WeightsChecked+p.Checked
		c.EmbeddingCopies += p.Copies
		c.WeightsUnchecked = append(c.WeightsUnchecked, p.Unchecked...)
		c.WeightsUnpinned = append(c.WeightsUnpinned, p.Unpinned...)
		if p.Experts > 0 {
			c.Experts += p.Experts
			c.ExpertsReached, c.ExpertsProbed = c.ExpertsReached+p.Reached, c.ExpertsProbed+p.Probed
		}
		if len(p.Unreached) > 0 {
			c.Unreached = append(c.Unreached, report.LayerExperts{Layer: "model.layers." + p.Name, Experts: p.Unreached})
		}
	}
	if len(s.Routers) > 0 {
		s.UnreadParts = slices.Insert(s.UnreadParts, 0, report.LayersText(s.Routers)+" but for the routers")
	}
	if len(s.Blocks) > 0 {
		s.UnreadParts = slices.Insert(s.UnreadParts, 0, report.LayersText(s.Blocks)+" but for the MLPs")
	}
	if len(s.Unread) > 0 {
		s.UnreadParts = slices.Insert(s.UnreadParts, 0, report.LayersText(s.Unread))
	}
	decoder, _ := slices.BinarySearch(s.Layers, s.Of)
	s.Whole = decoder == s.Of && s.Embedding && s.Head && s.LeftOut == 0 && len(s.Inputs) == 0 && !s.Selected && !r.Stopped
}

// reasons lists why the run is no pass although no check failed.
func reasons(r *report.Report) (list []string) {
	if r.Stopped {
		return []string{fmt.Sprintf("stopped at the first failing stage: %s not looked at",
			report.CountWere(r.Scope.NotLooked, "golden tensor"))}
	}
	c, of := &r.Coverage, map[string][]string{}
	for _, d := range r.Doubts {
		of[d.Kind] = append(of[d.Kind], d.Of...)
	}
	add := func(holds bool, format string, args ...any) {
		if holds {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}
	add(len(of[uncovered]) > 0, "no report covers %s: verify that too, and merge again", strings.Join(of[uncovered], ", "))
	measured := r.Mode == report.Chained && r.Golden.ComputeDType != "float32" // but not judged
	list = append(list, of[ofPack]...)
	add(measured, "end to end, %s rounding grows without a usable limit: this is a report, use --mode local for a verdict",
		table.ParseTorch(r.Golden.ComputeDType))
	skipped := 0
	for _, check := range r.Checks {
		if check.Status == report.PredictionLayer {
			skipped++
		}
	}
	add(skipped > 0, "%s of prediction layers cannot be compared: the checkpoint lacks these layers, or one before",
		text.Plural(skipped, "golden tensor"))
	unjudged := []string{}
	for _, check := range r.Checks {
		if check.Status == report.UnknownRounding {
			unjudged = append(unjudged, check.Tensor)
		}
	}
	add(len(unjudged) > 0, "%s", countWithFirst("stage", "was not judged, for it is "+report.UnknownRounding.Words(),
		"were not judged, for they are "+report.UnknownRounding.Words(), unjudged))
	const unchecked = "took part in no checked stage"
	add(len(c.WeightsUnchecked) > 0 && !measured, "%s", countWithFirst("weight", unchecked, unchecked, c.WeightsUnchecked))
	var unnamed []int
	for _, layer := range of[unnamedLayer] {
		n, _ := strconv.Atoi(layer)
		unnamed = append(unnamed, n)
	}
	add(unnamed != nil, "the pack has no stage of layers %s, and its manifest does not name them as absent",
		text.Ranges(unnamed))
	add(c.WeightsChecked == 0 && !measured && r.Scope.Chosen == 0, "no weight took part in a checked stage: this proves nothing of the "+
		"checkpoint")
	list = append(list, of[ofChoice]...)
	list = append(list, of[ofInput]...)
	add(len(of[allZero]) > 0, "%s", countWithFirst("golden tensor", "is all zero and proves nothing",
		"are all zero and prove nothing", of[allZero]))
	list = append(list, of[ofConfig]...)
	if r.Mode == report.Local {
		list = append(list, weakEvidence(r, of[blind])...)
	}
	return slices.Concat(list, of[seldomReached], of[notFinite])
}

// countWithFirst counts a list of things of which one or more do something, and names the first: "1 weight has no
// gradient: NAME", "2 weights have no gradient, the first is NAME".
func countWithFirst(noun, one, more string, list []string) string {
	switch n := len(list); n {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("1 %s %s: %s", noun, one, list[0])
	default:
		return fmt.Sprintf("%s %s, the first is %s", text.Plural(n, noun), more, list[0])
	}
}

// leastPinned is the share of the choices of experts that rounding must not be able to change.
const leastPinned = 0.9

// leastPinnedAlone is the same share of a layer whose choices alone are known. Rounding errors of all layers before it are in its
// scores: of two right BF16 engines, in layers 1 to 3 of 4, rounding could not change 69 % of the choices. Half of them still
// are choices that a wrong router, or another array, makes by chance alone.
const leastPinnedAlone = 0.5

// weakEvidence lists where the pack proves little about what was computed; the bounds of some stages are blind.
func weakEvidence(r *report.Report, blind []string) (reasons []string) {
	if r.Scope.Chosen > 0 {
		var weak []int
		for _, l := range r.Routing.Layers {
			if float64(l.Pinned) < leastPinnedAlone*float64(l.Choices) {
				weak = append(weak, pack.Parse(l.Layer+".").Layer)
			}
		}
		if weak != nil {
			reasons = append(reasons, fmt.Sprintf("end to end, rounding could change more than half of the choices of experts in %s: "+
				"leave them out with --layers, or record what the routers take", report.LayersText(weak)))
		}
	} else if x := &r.Routing; float64(x.Pinned) < leastPinned*float64(x.Choices) {
		reasons = append(reasons, fmt.Sprintf("rounding could change %d of %d %s of experts: what decides them was "+
			"not checked", x.Choices-x.Pinned, x.Choices, text.Noun(x.Choices, "choice")))
	}
	if blind != nil {
		remedy := ""
		if r.Golden.Reference.Attention == pack.Sdpa && strings.Contains(strings.Join(blind, " "), ".self_attn.") {
			remedy = "; sdpa may round the scores of attention or not: record the pack with eager attention (--attn eager)"
		}
		reasons = append(reasons, countWithFirst("stage", "may be off by so much for rounding alone that it proves nothing",
			"may be off by so much for rounding alone that they prove nothing", blind)+remedy)
	}
	if absent := absentKinds(r); absent != nil {
		reasons = append(reasons, "the pack has none of these stages, and its manifest does not name them as absent: "+
			strings.Join(absent, ", "))
	}
	return reasons
}

// absentKinds lists the kinds of stages that the pack has in no layer without saying so.
func absentKinds(r *report.Report) (kinds []string) {
	if r.Golden.Reference.Kind == pack.Engine { // which may have any stages: what took part in none is counted
		return nil
	}
	for _, kind := range r.Free {
		inTraining := kind == pack.ExpertsOutput && r.Golden.Mode == "train" // it is no module's output there
		if kind != pack.TopKIdx && !inTraining && !pack.Parse(kind).IsLossOrGradient() &&
			!slices.Contains(r.Golden.Absent.Stages, kind) {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// unexercisedNumbers lists the numbers that no stage tells from half as much, or from twice as much. A selection of
// stages, a run that was stopped, or a part without a layer says nothing of the config.
func unexercisedNumbers(r *report.Report) []report.Unexercised {
	list := []report.Unexercised{}
	if len(r.Scope.Stages) > 0 || r.Stopped || isEmptyPart(r) {
		return list
	}
	for _, key := range r.Config.Tried {
		half := slices.ContainsFunc(r.Places, func(p report.Place) bool { return slices.Contains(p.TellsHalf, key) })
		twice := slices.ContainsFunc(r.Places, func(p report.Place) bool { return slices.Contains(p.TellsTwice, key) })
		what := "rotations"
		switch key {
		case rmsNormEps:
			what = "norms"
		case hcEps, hcSinkhornIters:
			what = "weights of streams"
		case "n_group", "topk_group":
			what = "choices of experts"
		}
		other := map[[2]bool]string{{false, false}: "half or twice as much", {false, true}: "half as much",
			{true, false}: "twice as much"}[[2]bool{half, twice}]
		if other != "" {
			list = append(list, report.Unexercised{Key: key,
				Why: fmt.Sprintf("the %s that were compared do not tell it from %s", what, other)})
		}
	}
	return list
}
