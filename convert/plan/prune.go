package plan

// Which routed experts are kept.

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	"dsmoe/config"
	"dsmoe/model/table"
	"dsmoe/text"
)

// Prune is the routed experts to keep; the zero value keeps all. Kept experts are renumbered from 0, ascending.
type Prune struct {
	All    text.Spans    // numbers of the experts that every layer keeps; empty if Layers is used
	Layers map[int][]int // numbers of the experts that each layer with experts keeps; nil if All is used
}

// ReadPrune reads an object with a list of experts for each layer: {"1": [0, 3], "2": [1, 2]}.
func ReadPrune(r io.Reader) (layers map[int][]int, err error) {
	var byName map[string][]int
	if err := json.UnmarshalRead(r, &byName); err != nil {
		return nil, fmt.Errorf("not an object with a list of experts for each layer, such as "+
			`{"1": [0, 3], "2": [1, 2]}: %s`, text.Line(err.Error()))
	}
	layers = map[int][]int{}
	for name, experts := range byName {
		l, err := strconv.Atoi(name)
		if err != nil || strconv.Itoa(l) != name {
			return nil, fmt.Errorf("key %s: not the number of a layer", text.Quote(name))
		}
		layers[l] = experts
	}
	return layers, nil
}

// some reports whether some experts may be dropped.
func (p Prune) some() bool { return len(p.All) > 0 || p.Layers != nil }

// Kept returns the experts that the layers of c, prediction layers too, keep; nil if all experts are kept.
func (p Prune) Kept(c *config.Config) table.Kept {
	if !p.some() {
		return nil
	}
	kept := table.Kept{}
	for l := range c.NumHiddenLayers + table.FamilyOf(c).PredictionLayers(c) {
		if !c.IsMoE(l) {
			continue
		}
		kept[l] = []int{}
		for e := range c.MoE.NRoutedExperts {
			if p.Layers == nil && p.All.Has(e) || slices.Contains(p.Layers[l], e) {
				kept[l] = append(kept[l], e)
			}
		}
	}
	return kept
}

// Check returns what is wrong with keeping only these experts in the given layers of a model of c.
func (p Prune) Check(c *config.Config, layers []int) (problems []string) {
	if len(layers) == 0 {
		return []string{"there is no layer with routed experts to keep some of"}
	}
	if c.MoE.ZeroExperts > 0 {
		return []string{"the gate chooses from experts without weights, too, which have no numbers to keep"}
	}
	present := map[int]bool{}
	for e := range c.MoE.NRoutedExperts {
		present[e] = true
	}
	if err := p.All.Check("a layer", "experts", present); err != nil {
		problems = append(problems, err.Error())
	}
	kept := p.Kept(c)
	for _, l := range slices.Sorted(maps.Keys(p.Layers)) {
		if _, has := kept[l]; !has {
			problems = append(problems, fmt.Sprintf("layer %d: has no routed experts", l))
		}
	}
	faults, counts := map[string][]int{}, map[string][]int{}
	for _, l := range layers {
		if _, listed := p.Layers[l]; p.Layers != nil && !listed {
			faults[notListed] = append(faults[notListed], l)
			continue
		}
		groups, causes := groupsKept(c, kept[l])
		for _, cause := range append(p.checkLayer(c, l, len(kept[l])), causes...) {
			faults[cause] = append(faults[cause], l)
		}
		count := text.Plural(len(kept[l]), "expert") + groups
		counts[count] = append(counts[count], l)
	}
	problems = append(problems, ofLayers(faults, ": ")...)
	if len(counts) > 1 {
		problems = append(problems, "config.json has one number of experts, and of groups, for all layers: "+
			strings.Join(ofLayers(counts, " would keep "), ", "))
	}
	return problems
}

// notListed is what is wrong with a layer without a list.
const notListed = "no list of experts; each layer with routed experts has one, of the same length"

// ofLayers returns a line for each text: its layers, between, and the text. Texts come in the order of their first
// layers.
func ofLayers(layers map[string][]int, between string) (lines []string) {
	order := slices.SortedFunc(maps.Keys(layers), func(a, b string) int {
		return cmp.Or(cmp.Compare(layers[a][0], layers[b][0]), cmp.Compare(a, b))
	})
	for _, what := range order {
		noun := "layers "
		if len(layers[what]) == 1 {
			noun = "layer "
		}
		lines = append(lines, noun+text.Ranges(layers[what])+between+what)
	}
	return lines
}

// checkLayer returns what is wrong with the list of a layer, which keeps n experts.
func (p Prune) checkLayer(c *config.Config, layer, n int) (causes []string) {
	list := slices.Sorted(slices.Values(p.Layers[layer]))
	unique := slices.Compact(slices.Clone(list))
	absent := slices.DeleteFunc(slices.Clone(unique), func(e int) bool { return e >= 0 && e < c.MoE.NRoutedExperts })
	if len(absent) > 0 {
		causes = append(causes, fmt.Sprintf("experts %s not there: a layer has 0-%d", text.Ranges(absent),
			c.MoE.NRoutedExperts-1))
	}
	if len(unique) < len(list) {
		causes = append(causes, "lists an expert twice")
	}
	if n < c.MoE.NumExpertsPerTok {
		causes = append(causes, fmt.Sprintf("%s, but a token chooses %s %d", text.Plural(n, "expert"),
			c.Key("num_experts_per_tok"), c.MoE.NumExpertsPerTok))
	}
	return causes
}

// groupsKept returns " of 2 groups" for experts of two groups if tokens choose by groups, and why the experts make no
// groups of one size.
func groupsKept(c *config.Config, experts []int) (groups string, causes []string) {
	if !c.LimitsGroups() || c.Router.NGroup <= 1 || len(experts) == 0 {
		return "", nil
	}
	counts := groupSizes(c, experts)
	n, size := len(counts), c.MoE.NRoutedExperts/c.Router.NGroup
	chosen := min(c.Router.TopKGroup, n)
	least := max(1, (c.MoE.NumExpertsPerTok+chosen-1)/chosen)
	if c.Router.TopKMethod == "noaux_tc" { // a group is worth its two best
		least = max(2, least)
	}
	each := slices.Sorted(maps.Values(counts))
	switch {
	case least > size:
		causes = append(causes, fmt.Sprintf("%s of n_group %d hold too few experts for num_experts_per_tok %d: keep some of "+
			"more groups", text.Plural(n, "group"), c.Router.NGroup, c.MoE.NumExpertsPerTok))
	case each[0] != each[n-1] || each[0] < least:
		sizes, keep := fmt.Sprintf("%d to %d", least, size), fmt.Sprintf("a multiple of %d from %d to %d, as many of each "+
			"group, or drop whole groups", n, n*least, n*size)
		if least == size {
			sizes, keep = fmt.Sprint(size), "whole groups"
		} else if n == 1 {
			keep = sizes + " of the group, or experts of more groups"
		}
		causes = append(causes, fmt.Sprintf("experts per group: %s, of %s: groups are of one size, here %s; keep %s",
			text.Spans{{each[0], each[n-1]}}, text.Plural(n, "group"), sizes, keep))
	}
	return " of " + text.Plural(n, "group"), causes
}

// groupSizes counts the experts of each group that has some.
func groupSizes(c *config.Config, experts []int) map[int]int {
	sizes := map[int]int{}
	for _, e := range experts {
		sizes[e/(c.MoE.NRoutedExperts/c.Router.NGroup)]++
	}
	return sizes
}
