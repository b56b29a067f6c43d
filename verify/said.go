package verify

import (
	"fmt"
	"slices"
	"strconv"

	"dsmoe/model/table"
	"dsmoe/text"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// What the report says of the parts of the model that it is about.

// said says what the verdict is a statement about: parts with a weight that took part in a
// checked stage.
func (t outcome) said(checks []report.Check) report.Scope {
	s := report.Scope{Of: t.m.Config.NumHiddenLayers, Selected: t.scope.restricted(), Stages: append([]string{}, t.o.Stages...),
		Layers: []int{}, Inputs: t.inputs(), Unread: []int{}}
	for slot := range table.FamilyOf(t.m.Config).Required(t.m.Config, t.set.Has) {
		w, layer := t.set.Find(slot.Name), slot.Layer
		_, used := t.used[slot.Name]
		_, aside := t.aside[slot.Name]
		switch {
		case !t.scope.runs(slot) && layer >= t.layers(): // Coverage.OutsideForward
		case !t.scope.runs(slot):
			s.Weights++
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
	s.NotLooked = t.notLooked(checks)
	decoder, _ := slices.BinarySearch(s.Layers, s.Of)
	s.UnreadParts = t.unreadParts(s.Unread)
	s.Whole = decoder == s.Of && s.Embedding && s.Head && s.Aside == 0 && len(s.Inputs) == 0 && !s.Selected && !t.stopped
	s.Text = s.Describe()
	return s
}

// notLooked counts the pack's tensors that nothing was computed for because the user wants so.
func (t outcome) notLooked(checks []report.Check) (n int) {
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

// unreadParts says in words whose weights were not read.
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

// inputs says what layers began with where it was not what the part before gave.
func (t outcome) inputs() []report.ScopeInput {
	list := []report.ScopeInput{}
	for _, s := range t.starts {
		if slices.ContainsFunc(list, func(in report.ScopeInput) bool { return in.Layer == s.layer }) {
			continue // a training pack is run twice
		}
		in := report.ScopeInput{Layer: s.layer, Kind: pack.Recorded, Text: s.name + " as the pack has it"}
		if told := t.pack.Manifest.LayerInputs[strconv.Itoa(s.layer)]; s.name == pack.OwnInput(s.layer) {
			in.Kind = told.Kind
			in.Text = fmt.Sprintf("%s, recorded as %s", s.name, told.Is)
			if told.Kind == pack.Seeded {
				in.Text = fmt.Sprintf("%s, seeded: random numbers, seed %s, and not what the layer before gives", s.name, text.Line(string(told.Seed)))
			}
		}
		list = append(list, in)
	}
	return list
}
