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
func (e *evidence) coverage() report.Coverage {
	j := e.job
	c := report.Coverage{VocabSize: j.model.Config.VocabSize, Beside: weights.Beside(j.model.Config, j.weights.All()),
		Padding: pack.PaddedTokens(j.rows, len(j.in.InputIDs)).Count()}
	if j.scope.units[0].runs || j.scope.predictions > 0 {
		c.EmbeddingRows = distinctTokens(j.rows)
	}
	for name := range j.pack.Manifest.Tensors {
		if s := pack.Parse(name); s.IsStage() || !s.IsInput() && j.scope.compares(name) {
			c.GoldenTensors++
		}
	}
	for s := range j.weights.required() {
		if s.Layer >= j.scope.layersEnd() {
			c.OutsideForward++
		}
	}
	return c
}

// places returns what was done with each part of the model, but prediction layers outside the forward pass.
func (e *evidence) places() []report.Place {
	j := e.job
	all, experts := []report.Place{}, map[expert]bool{} // that may show in what is checked
	for s := range j.weights.required() {
		if s.Layer >= j.scope.layersEnd() {
			continue
		}
		name := strconv.Itoa(s.Layer)
		if s.Layer < 0 {
			name = report.HeadPlace
			if s.Row.LookedUp() {
				name = report.EmbeddingPlace
			}
		}
		if n := len(all); n == 0 || all[n-1].Name != name {
			u := j.scope.unitOf(s)
			all = append(all, report.Place{Name: name, Needed: u.needed, Selected: u.compares, Ran: u.routerOnly || u.runs && u.blockOnly || j.scope.runs(s), Block: u.blockOnly, Unchecked: []string{}, Unpinned: []string{}, Unreached: []int{},
				TellsHalf: []string{}, TellsTwice: []string{}})
		}
		e.countWeight(&all[len(all)-1], s, experts)
	}
	for i := range all {
		e.countTells(&all[i])
		e.countExperts(&all[i], experts)
	}
	return all
}

// countWeight counts a weight in its place, and notes an expert that may show.
func (e *evidence) countWeight(p *report.Place, s table.Slot, experts map[expert]bool) {
	w := e.job.weights.Find(s.Name)
	_, used := e.exercised[s.Name]
	_, leftOut := e.leftOut[s.Name]
	_, unpinned := e.unpinned[s.Name]
	if p.Weights++; p.Ran && !e.job.scope.runs(s) {
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
	of := expert{s.Layer, s.Expert}
	if s.Expert >= 0 && (used || !leftOut) {
		experts[of] = true
	}
	switch n := len(p.Unreached); {
	case unpinned && !leftOut:
		p.Unpinned = append(p.Unpinned, s.Name)
	case used && !unpinned:
		p.Checked++
		decider := s.Name
		if role := s.Row.Role; role == table.EScoreCorrectionBias || role == table.TID2EID { // other weights may choose the same
			decider = strings.TrimSuffix(decider, string(role)) + "weight" // the router's
		}
		_, failed := e.failed[decider]
		if _, passed := e.passed[decider]; failed && !passed {
			p.Failed++
		}
	case leftOut:
		p.LeftOut++
	case s.Expert < 0 || e.reached[of] || e.stopped:
		p.Unchecked = append(p.Unchecked, s.Name)
	case n == 0 || p.Unreached[n-1] != s.Expert:
		p.Unreached = append(p.Unreached, s.Expert)
	}
}

// countTells lists the numbers of config.json that the stages of a place tell from others.
func (e *evidence) countTells(p *report.Place) {
	if p.Name == report.EmbeddingPlace {
		return
	}
	for _, key := range e.job.settings.Tried {
		if _, told := e.tells[tell{p.Layer(), key, 0.5}]; told {
			p.TellsHalf = append(p.TellsHalf, key)
		}
		if _, told := e.tells[tell{p.Layer(), key, 2}]; told {
			p.TellsTwice = append(p.TellsTwice, key)
		}
	}
}

// countExperts counts the routed experts of a place that ran, of those that may show in what is checked.
func (e *evidence) countExperts(p *report.Place, experts map[expert]bool) {
	c, l, shown := e.job.model.Config, p.Layer(), 0
	p.Keys = e.keys[l]
	if clamped := e.clamped[l]; p.Ran && l >= 0 && max(c.Limit(l, true), c.Limit(l, false)) > 0 {
		p.Clamped = &clamped
	}
	for n := range c.MoE.NRoutedExperts {
		of := expert{l, n}
		if !experts[of] {
			continue
		}
		if shown++; e.reached[of] {
			p.Reached++
		} else if e.probed[of] {
			p.Probed++
		}
	}
	if p.Ran && l >= 0 && (p.Reached+p.Probed > 0 || shown == c.MoE.NRoutedExperts) {
		p.Experts = c.MoE.NRoutedExperts
	}
}

// describeScope describes the parts that the verdict covers, as far as the places do not: parts with a weight that
// took part in a checked stage.
func (e *evidence) describeScope(checks []report.Check) report.Scope {
	j := e.job
	s := report.Scope{Of: j.model.Config.NumHiddenLayers, Selected: j.scope.restricted(), Part: j.options.Part,
		Stages: append([]string{}, j.options.Stages...), Inputs: e.inputs(), Unlisted: table.FamilyOf(j.model.Config).Opaque}
	if j.pack.Routing {
		s.Chosen = len(j.in.InputIDs) - pack.PaddedTokens(j.in, len(j.in.InputIDs)).Count()
	}
	for name := range e.exercised {
		switch w := j.weights.Find(name); {
		case w == nil || w.Layer >= 0:
		case w.Row.LookedUp() && j.scope.units[0].runs:
			s.Embedding = true
		default: // the head's may be the embedding's
			s.Head = true
		}
	}
	for name := range j.pack.Manifest.Tensors {
		if pack.Parse(name).IsStage() && !j.scope.selects(name) {
			s.NotLooked++
		}
	}
	for _, c := range checks {
		if c.Status == report.NotLookedAt {
			s.NotLooked++
		}
	}
	return s
}

// asThePack describes a golden tensor that a layer began with.
func asThePack(name string) string { return name + " as the pack has it" }

// inputs lists what layers began with where that was not the output of the part before.
func (e *evidence) inputs() []report.ScopeInput {
	list := []report.ScopeInput{}
	for _, s := range e.starts {
		if slices.ContainsFunc(list, func(in report.ScopeInput) bool { return in.Layer == s.layer }) {
			continue // a training pack is run twice
		}
		in := report.ScopeInput{Layer: s.layer, Kind: pack.Recorded, Text: asThePack(s.name)}
		if recorded := e.job.pack.Manifest.LayerInputs[strconv.Itoa(s.layer)]; s.name == pack.OwnInput(s.layer) {
			in.Kind = recorded.Kind
			in.Text = fmt.Sprintf("%s, recorded as %s", s.name, recorded.Is)
			if recorded.Kind == pack.Seeded {
				in.Text = fmt.Sprintf("%s, seeded: random numbers, seed %s, and not what the layer before gives", s.name,
					text.Line(string(recorded.Seed)))
			}
		}
		list = append(list, in)
	}
	return list
}
