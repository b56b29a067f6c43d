package diagnose

import (
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// Mistakes in the weights of experts that no token chose. The stage of a probe names the expert;
// tried is what its weights may be instead.

// probeMistakes are those of the expert whose probe failed.
func (f *Failure) probeMistakes() []mistake {
	_, e := pack.CutExpert(f.Kind)
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
func (f *Failure) wrongProbes() (experts []int) {
	for _, c := range f.Checks {
		_, name := pack.CutLayer(c.Tensor)
		if kind, e := pack.CutExpert(name); kind == pack.ProbeOutput && c.Layer() == f.Layer && c.Verdict == report.Fail {
			experts = append(experts, e)
		}
	}
	if len(experts) > mostPaired {
		return nil
	}
	return experts
}
