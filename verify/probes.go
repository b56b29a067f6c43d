package verify

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"dsmoe/model"
	"dsmoe/text"
)

// Probes: experts that no token of the pack chose. An expert needs no router: the reference ran
// them on rows of their layer's own post_attention_layernorm.output, local mode does the same, and
// holds what they give to the bounds of any stage. That proves their weights, and nothing of the
// router that passed them over. Chained mode runs none: no layer's output depends on them.

// Probe says, in a manifest, what experts of a layer were run on beside what its gate gave them.
type Probe struct {
	Rows    []int `json:"rows"`    // of post_attention_layernorm.output as [tokens, hidden_size], ascending
	Experts []int `json:"experts"` // ascending; each has a stage mlp.experts.E.probe.output [rows, hidden_size]
}

// probeStage is the stage of a probe of expert e in layer l.
func probeStage(l, e int) string {
	return stageOfLayer(l, fmt.Sprintf("mlp.experts.%d.probe.output", e))
}

// isProbe reports whether a stage is of a probe: what it gave, or what goes on inside.
func isProbe(name string) bool {
	_, kind := split(name)
	kind, _ = starred(kind)
	return strings.HasPrefix(kind, "mlp.experts.*.probe.")
}

// probedExpert is the expert that a stage of a probe is of.
func probedExpert(name string) int {
	_, kind := split(name)
	_, e := starred(kind)
	return e
}

// noProbes says why stages of probes are not checked.
const noProbes = "chained mode runs no probes: no layer's output depends on them"

// checkProbes returns what is wrong with the manifest's probes by itself.
func (m *Manifest) checkProbes() (problems []error) {
	add := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("manifest.json: probes: "+format, args...))
	}
	if m.Mode == "train" && len(m.Probes) > 0 {
		add("a training pack has none")
	}
	for _, number := range slices.Sorted(maps.Keys(m.Probes)) {
		l, err := strconv.Atoi(number)
		if err != nil || l < 0 || strconv.Itoa(l) != number {
			add("%.40q is not the number of a layer", number)
			continue
		}
		for _, problem := range m.checkProbe(l, m.Probes[number]) {
			add("layer %d: %s", l, problem)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Tensors)) {
		if l, _ := split(name); isProbe(name) && !slices.Contains(m.Probes[strconv.Itoa(l)].Experts, probedExpert(name)) {
			problems = append(problems, fmt.Errorf("manifest.json: tensors: %.120q: probes does not say which rows it is of", name))
		}
	}
	return problems
}

// checkProbe returns what is wrong with the probes of layer l: their rows, experts or tensors.
func (m *Manifest) checkProbe(l int, p Probe) (problems []string) {
	normed := stageOfLayer(l, attentionNorm)
	of, there := m.Tensors[normed]
	if !there || len(of.Shape) == 0 {
		return []string{"there is no tensor " + normed + ", whose rows the experts were run on"}
	}
	width := of.Shape[len(of.Shape)-1]
	if problem := ascending("row", p.Rows, elements(of.Shape[:len(of.Shape)-1])); problem != "" {
		problems = append(problems, problem)
	}
	if problem := ascending("expert", p.Experts, -1); problem != "" {
		return append(problems, problem)
	}
	for _, e := range p.Experts {
		name := probeStage(l, e)
		t, there := m.Tensors[name]
		switch want := []int{len(p.Rows), width}; {
		case !there:
			problems = append(problems, "there is no tensor "+name)
		case !slices.Equal(t.Shape, want) || t.DType != of.DType:
			problems = append(problems, fmt.Sprintf("%s is %s %v, not %s %v", name, t.DType, t.Shape, of.DType, want))
		}
	}
	return problems
}

// ascending says why a list is not one of different numbers below end, in order. There is no end
// below 0.
func ascending(what string, list []int, end int) string {
	if len(list) == 0 {
		return "no " + what + " is named"
	}
	for i, n := range list {
		switch {
		case n < 0:
			return fmt.Sprintf("%s %d is below 0", what, n)
		case end >= 0 && n >= end:
			return fmt.Sprintf("%s %d is not one of %d", what, n, end)
		case i > 0 && n <= list[i-1]:
			return fmt.Sprintf("%s %d follows %d: they are not ascending", what, n, list[i-1])
		}
	}
	return ""
}

// elements is the number of elements of a tensor of a shape.
func elements(shape []int) int {
	n := 1
	for _, dim := range shape {
		n *= dim
	}
	return n
}

// probed is the manifest's probes by the number of the layer.
func (m *Manifest) probed() map[int]Probe {
	probes := map[int]Probe{}
	for number, p := range m.Probes {
		l, _ := strconv.Atoi(number) // OpenPack has checked it
		probes[l] = p
	}
	return probes
}

// checkProbes refuses probes of experts that the model has not, and on rows of padding.
func (s *scope) checkProbes(in *model.Input) error {
	var errs []error
	add := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("manifest.json: probes: "+format, args...))
	}
	probes, c := s.pack.Manifest.probed(), s.config
	for _, l := range slices.Sorted(maps.Keys(probes)) {
		if l >= c.NumHiddenLayers+c.NumNextNPredictLayers {
			continue // it is not run
		}
		tokens := in.Batch * (in.Seq - max(0, l-c.NumHiddenLayers+1)) // prediction layers have fewer
		switch last := probes[l].Experts[len(probes[l].Experts)-1]; {
		case l < c.NumHiddenLayers && !c.IsMoE(l):
			add("layer %d has no routed experts", l)
			continue
		case last >= c.NRoutedExperts:
			add("layer %d: expert %d is not one of %d", l, last, c.NRoutedExperts)
		}
		for _, row := range probes[l].Rows {
			switch {
			case row >= tokens:
				add("layer %d: row %d is not one of %d", l, row, max(0, tokens))
			case paddedTokens(in, tokens).has(row):
				add("layer %d: row %d is padding", l, row)
			}
		}
	}
	if errs != nil {
		return &PackError{s.pack.Dir, errs}
	}
	return nil
}

// probes are those that are run: of the stages that wanted reports as true.
func (s *scope) probes(wanted func(name string) bool) map[int]model.Probe {
	probes := map[int]model.Probe{}
	for l, p := range s.pack.Manifest.probed() {
		experts := slices.DeleteFunc(slices.Clone(p.Experts), func(e int) bool { return !wanted(probeStage(l, e)) })
		if len(experts) > 0 {
			probes[l] = model.Probe{Rows: p.Rows, Experts: experts}
		}
	}
	return probes
}

// byExperts counts the routed experts that took part in a checked stage, those by probes apart.
func (c *Coverage) byExperts() string {
	if c.ExpertsProbed == 0 {
		return fmt.Sprintf("%d of %d routed experts", c.ExpertsReached, c.Experts)
	}
	return fmt.Sprintf("%d of %d routed experts (%d by probes)", c.ExpertsReached+c.ExpertsProbed, c.Experts, c.ExpertsProbed)
}

// probedRows says which rows an expert was run on, in the check of its probe.
func (c *Check) probedRows() string {
	rows := "rows"
	if len(c.ProbeRows) == 1 {
		rows = "row"
	}
	return fmt.Sprintf("expert %d was run on %s %s of %s, whatever the gate chose", probedExpert(c.Tensor), rows, text.Ranges(c.ProbeRows), attentionNorm)
}
