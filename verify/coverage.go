package verify

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"dsmoe/model/table"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// coverage counts what the places do not.
func (t outcome) coverage() report.Coverage {
	c := report.Coverage{VocabSize: t.m.Config.VocabSize, Beside: weights.Beside(t.m.Config, t.set.All())}
	if course := &t.scope.course; course.Embedding || course.Predictions > 0 {
		c.EmbeddingRows = distinctTokens(t.rows)
	}
	c.Padding = pack.PaddedTokens(t.rows, len(t.in.InputIDs)).Count()
	for name := range t.pack.Manifest.Tensors {
		if pack.Parse(name).IsStage() || !pack.Parse(name).IsInput() && t.scope.compares(name) {
			c.GoldenTensors++
		}
	}
	for s := range table.FamilyOf(t.m.Config).Required(t.m.Config, t.set.Has) {
		if s.Layer >= t.layers() {
			c.OutsideForward++
		}
	}
	return c
}

// places returns what was done with each part of the model, but prediction layers outside the forward pass.
func (t outcome) places() []report.Place {
	all, shown := []report.Place{}, map[int]map[int]bool{} // by layer; experts that may show in what is checked
	for s := range table.FamilyOf(t.m.Config).Required(t.m.Config, t.set.Has) {
		if s.Layer >= t.layers() {
			continue
		}
		name := placeOf(s)
		if n := len(all); n == 0 || all[n-1].Name != name {
			all = append(all, report.Place{Name: name, Needed: t.scope.needsPlace(s), Selected: t.scope.selectsPlace(s),
				Ran: t.scope.runs(s) || t.scope.isRouter(s.Layer), Unchecked: []string{}, Unpinned: []string{}, Unreached: []int{},
				TellsHalf: []string{}, TellsTwice: []string{}})
		}
		t.count(&all[len(all)-1], s, shown)
	}
	for i := range all {
		t.countTold(&all[i])
		t.countExperts(&all[i], shown[all[i].Layer()])
	}
	return all
}

// placeOf names the place of a weight.
func placeOf(s table.Slot) string {
	switch {
	case s.Layer >= 0:
		return strconv.Itoa(s.Layer)
	case s.Row.LookedUp():
		return report.EmbeddingPlace
	}
	return report.HeadPlace
}

// count counts a weight in its place, and notes an expert that may show.
func (t outcome) count(p *report.Place, s table.Slot, shown map[int]map[int]bool) {
	w := t.set.Find(s.Name)
	_, used := t.exercised[s.Name]
	_, leftOut := t.leftOut[s.Name]
	_, unpinned := t.unpinned[s.Name]
	if p.Weights++; p.Ran && !t.scope.runs(s) {
		p.Unread++
		return
	} else if !p.Ran {
		if w.Unread() {
			p.ByName++
		}
		return
	}
	p.Bytes += w.Bytes()
	if s.Row.LookedUp() && s.Row.Copied() {
		p.Copies++
	}
	if s.Expert >= 0 && (used || !leftOut) {
		if shown[s.Layer] == nil {
			shown[s.Layer] = map[int]bool{}
		}
		shown[s.Layer][s.Expert] = t.reached[s.Layer][s.Expert]
	}
	switch n := len(p.Unreached); {
	case unpinned && !leftOut:
		p.Unpinned = append(p.Unpinned, s.Name)
	case used && !unpinned:
		p.Checked++
		of := s.Name
		if role := s.Row.Role; role == table.EScoreCorrectionBias || role == table.TID2EID { // other weights may choose the same
			of = strings.TrimSuffix(of, string(role)) + "weight" // the router's
		}
		_, failed := t.failed[of]
		if _, passed := t.passed[of]; failed && !passed {
			p.Failed++
		}
	case leftOut:
		p.LeftOut++
	case s.Expert < 0 || t.reached[s.Layer][s.Expert] || t.stopped:
		p.Unchecked = append(p.Unchecked, s.Name)
	case n == 0 || p.Unreached[n-1] != s.Expert:
		p.Unreached = append(p.Unreached, s.Expert)
	}
}

// countExperts counts the routed experts of a place that ran, of which some may show in what is checked.
func (t outcome) countExperts(p *report.Place, shown map[int]bool) {
	l := p.Layer()
	p.Keys = t.keys[l]
	if clamped := t.clamped[l]; p.Ran && l >= 0 && t.m.Config.SwiGLULimit > 0 {
		p.Clamped = &clamped
	}
	for e, reached := range shown {
		if reached {
			p.Reached++
		} else if t.probed[l][e] {
			p.Probed++
		}
	}
	if n := t.m.Config.NRoutedExperts; p.Ran && l >= 0 && (p.Reached+p.Probed > 0 || len(shown) == n) {
		p.Experts = n
	}
}

// describeScope describes the parts that the verdict covers, as far as the places do not: parts with a weight that
// took part in a checked stage.
func (t outcome) describeScope(checks []report.Check) report.Scope {
	s := report.Scope{Of: t.m.Config.NumHiddenLayers, Selected: t.scope.restricted(), Part: t.o.Part,
		Stages: append([]string{}, t.o.Stages...), Inputs: t.inputs(), NotLooked: t.countUnlooked(checks)}
	for name := range t.exercised {
		switch w := t.set.Find(name); {
		case w == nil || w.Layer >= 0:
		case w.Row.LookedUp() && t.scope.course.Embedding:
			s.Embedding = true
		default: // the head's may be the embedding's
			s.Head = true
		}
	}
	return s
}

// countUnlooked counts the pack's tensors that the user did not select, or that a stopped run did not reach.
func (t outcome) countUnlooked(checks []report.Check) (n int) {
	for name := range t.pack.Manifest.Tensors {
		if pack.Parse(name).IsStage() && !t.scope.selects(name) {
			n++
		}
	}
	for _, c := range checks {
		if c.Status == report.NotLookedAt {
			n++
		}
	}
	return n
}

// asThePack describes a golden tensor that a layer began with.
func asThePack(name string) string { return name + " as the pack has it" }

// inputs lists what layers began with where that was not the output of the part before.
func (t outcome) inputs() []report.ScopeInput {
	list := []report.ScopeInput{}
	for _, s := range t.starts {
		if slices.ContainsFunc(list, func(in report.ScopeInput) bool { return in.Layer == s.layer }) {
			continue // a training pack is run twice
		}
		in := report.ScopeInput{Layer: s.layer, Kind: pack.Recorded, Text: asThePack(s.name)}
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
