package verify

import (
	"slices"

	"dsmoe/model"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// Mistakes in the weights of experts that no token chose. The stage of a probe names the expert;
// tried is what its weights may be instead.

// probeMistakes are those of the expert whose probe failed.
func (f *failure) probeMistakes() []mistake {
	_, e := pack.CutExpert(f.kind)
	list := []mistake{{id: "gate-up-swapped", kinds: []string{pack.ProbeOutput}, undo: undoGateUpOf(e)}}
	for _, other := range f.wrongProbes() {
		if other > e { // experts before this one are right
			list = append(list, mistake{id: "experts-swapped", kinds: []string{pack.ProbeOutput}, also: []string{pack.ProbeOutput}, undo: undoSwapped([2]int{e, other})})
		}
	}
	return list
}

// wrongProbes are the experts of the layer whose probes fail; nil if they are more than may be
// tried in pairs.
func (f *failure) wrongProbes() (experts []int) {
	for _, c := range f.tracer.checks {
		_, name := pack.CutLayer(c.Tensor)
		if kind, e := pack.CutExpert(name); kind == pack.ProbeOutput && c.Layer() == f.layer && c.Verdict == report.Fail {
			experts = append(experts, e)
		}
	}
	if len(experts) > mostPaired {
		return nil
	}
	return experts
}

// probesOf are the probes that show the stages that a trial needs.
func (f *failure) probesOf(needed []string) map[int]model.Probe {
	return f.tracer.scope.probes(func(name string) bool { return name == f.name || slices.Contains(needed, name) })
}
