package verify

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"dsmoe/model/table"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// notLookedAt is the reason why stages behind the first failing one are not checked.
const notLookedAt = "not looked at: the run stopped at the first failing stage"

// coverage counts what the checks cover.
func (t outcome) coverage(checks []report.Check) report.Coverage {
	c := report.Coverage{GoldenUnchecked: []string{}, WeightsUnchecked: []string{}, Unreached: []report.LayerExperts{},
		VocabSize: t.m.Config.VocabSize}
	if course := &t.scope.course; course.Embedding || course.Predictions > 0 {
		ids := []int{}
		for i, id := range t.in.InputIDs {
			if !t.in.IsPadding(i) {
				ids = append(ids, id)
			}
		}
		slices.Sort(ids)
		c.EmbeddingRows = len(slices.Compact(ids))
	}
	c.Padding = pack.PaddedTokens(t.in, len(t.in.InputIDs)).Count()
	for name := range t.pack.Manifest.Tensors {
		if pack.IsStage(name) || !pack.IsInput(name) && t.scope.compares(name) {
			c.GoldenTensors++
		}
	}
	for _, check := range checks {
		if !t.pack.Has(check.Tensor) {
			continue
		}
		if check.Verdict == report.Skipped {
			c.GoldenUnchecked = append(c.GoldenUnchecked, check.Tensor)
		} else {
			c.GoldenChecked++
		}
	}
	c.Beside = weights.Beside(t.m.Config, t.set.All())
	unreached, experts := map[int][]int{}, map[int]map[int]bool{} // by layer; experts that may show in what is checked
	for s := range table.FamilyOf(t.m.Config).Required(t.m.Config, t.set.Has) {
		if s.Layer >= t.layers() {
			c.OutsideForward++
			continue
		}
		if !t.scope.runs(s) {
			continue
		}
		c.Weights++
		if s.Row.LookedUp() && s.Row.Copied() {
			c.EmbeddingCopies++
		}
		_, used := t.exercised[s.Name]
		if _, aside := t.aside[s.Name]; aside && !used {
			continue
		}
		if s.Expert >= 0 {
			if experts[s.Layer] == nil {
				experts[s.Layer] = map[int]bool{}
			}
			experts[s.Layer][s.Expert] = t.reached[s.Layer][s.Expert]
		}
		if used {
			c.WeightsChecked++
		} else if s.Expert < 0 || t.reached[s.Layer][s.Expert] || t.stopped {
			c.WeightsUnchecked = append(c.WeightsUnchecked, s.Name)
		} else if n := len(unreached[s.Layer]); n == 0 || unreached[s.Layer][n-1] != s.Expert {
			unreached[s.Layer] = append(unreached[s.Layer], s.Expert)
		}
	}
	for _, l := range slices.Sorted(maps.Keys(unreached)) {
		c.Unreached = append(c.Unreached, report.LayerExperts{Layer: "model.layers." + strconv.Itoa(l),
			Experts: unreached[l]})
	}
	for _, l := range t.ran() {
		reached, probed := 0, 0
		for e, shows := range experts[l] {
			if shows {
				reached++
			} else if t.probed[l][e] {
				probed++
			}
		}
		if reached+probed > 0 || len(experts[l]) == t.m.Config.NRoutedExperts {
			c.Experts += t.m.Config.NRoutedExperts
			c.ExpertsReached += reached
			c.ExpertsProbed += probed
		}
	}
	return c
}

// describeScope lists the parts that the verdict covers: parts with a weight that took part in a checked
// stage.
func (t outcome) describeScope(checks []report.Check) report.Scope {
	s := report.Scope{Of: t.m.Config.NumHiddenLayers, Selected: t.scope.restricted(),
		Stages: append([]string{}, t.o.Stages...),
		Layers: []int{}, Inputs: t.inputs(), Unread: []int{}}
	for slot := range table.FamilyOf(t.m.Config).Required(t.m.Config, t.set.Has) {
		w, layer := t.set.Find(slot.Name), slot.Layer
		_, used := t.exercised[slot.Name]
		_, aside := t.aside[slot.Name]
		switch {
		case !t.scope.runs(slot) && layer >= t.layers(): // Coverage.OutsideForward
		case !t.scope.runs(slot):
			s.Weights++
			if w.Unread() {
				s.ByName++
			}
			if layer >= 0 && !slices.Contains(s.Unread, layer) {
				s.Unread = append(s.Unread, layer)
			}
		case used && layer >= 0 && !slices.Contains(s.Layers, layer):
			s.Layers = append(s.Layers, layer)
		case used && layer < 0 && slot.Row.LookedUp() && t.scope.course.Embedding:
			s.Embedding = true
		case used && layer < 0: // the head's may be the embedding's
			s.Head = true
		case aside && !used:
			s.Aside++
		}
		if t.scope.runs(slot) {
			s.Bytes += w.Bytes()
		}
	}
	slices.Sort(s.Layers)
	s.NotLooked = t.countUnlooked(checks)
	decoder, _ := slices.BinarySearch(s.Layers, s.Of)
	s.UnreadParts = t.unreadParts(s.Unread)
	s.Whole = decoder == s.Of && s.Embedding && s.Head && s.Aside == 0 && len(s.Inputs) == 0 && !s.Selected && !t.stopped
	s.Text = s.Describe()
	return s
}

// countUnlooked counts the pack's tensors that the user did not select, or that a stopped run did not reach.
func (t outcome) countUnlooked(checks []report.Check) (n int) {
	for name := range t.pack.Manifest.Tensors {
		if pack.IsStage(name) && !t.scope.selects(name) {
			n++
		}
	}
	for _, c := range checks {
		if c.Reason == notLookedAt {
			n++
		}
	}
	return n
}

// unreadParts names the parts whose weights were not read.
func (t *run) unreadParts(layers []int) []string {
	parts, ends := []string{}, map[bool]string{true: "the embedding", false: "the head"}
	if len(layers) > 0 {
		parts = append(parts, report.LayersText(layers))
	}
	for slot := range table.FamilyOf(t.m.Config).Slots(t.m.Config) {
		if part := ends[slot.Row.LookedUp()]; slot.Layer < 0 && !t.scope.runs(slot) && !slices.Contains(parts, part) {
			parts = append(parts, part)
		}
	}
	return parts
}

// inputs lists what layers began with where that was not the output of the part before.
func (t outcome) inputs() []report.ScopeInput {
	list := []report.ScopeInput{}
	for _, s := range t.begun {
		if slices.ContainsFunc(list, func(in report.ScopeInput) bool { return in.Layer == s.layer }) {
			continue // a training pack is run twice
		}
		in := report.ScopeInput{Layer: s.layer, Kind: pack.Recorded, Text: s.name + " as the pack has it"}
		if told := t.pack.Manifest.LayerInputs[strconv.Itoa(s.layer)]; s.name == pack.OwnInput(s.layer) {
			in.Kind = told.Kind
			in.Text = fmt.Sprintf("%s, recorded as %s", s.name, told.Is)
			if told.Kind == pack.Seeded {
				in.Text = fmt.Sprintf("%s, seeded: random numbers, seed %s, and not what the layer before gives", s.name,
					text.Line(string(told.Seed)))
			}
		}
		list = append(list, in)
	}
	return list
}
