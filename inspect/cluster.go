package inspect

// Findings with one cause become one finding.

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"dsmoe/text"
)

// mostAlike is how many findings of one kind a layer, or the model, may have before they become one: more of them
// are a trait of the layer, or of the model.
const mostAlike = 3

// Cluster makes one finding of those with one cause, and returns all by level, then by how many weights they are
// about, then by layer. One cause have: equal weights of the same layers; findings of one kind in one layer that are
// about single experts, or share an expert; more than mostAlike of a kind in a layer, or over the layers.
func Cluster(found []Observation) []Observation {
	all := make([]Observation, 0, len(found))
	for _, o := range found {
		o.Level = levelOf(o.ID)
		if len(o.Members) == 0 {
			o.Members = []Member{{o.Layer, o.Experts, o.Tensor, o.Value}}
		}
		all = append(all, o)
	}
	all = mergeBy(all, func(o *Observation) string {
		if layers := o.layers(); len(layers) > 1 && (o.ID == "duplicate" || o.ID == "duplicate-matrix") {
			return fmt.Sprint(layers)
		}
		return ""
	}, 0, copiedLayers)
	all = mergeConnected(all)
	all = mergeBy(all, func(o *Observation) string { return fmt.Sprint(o.ID, " ", o.layers()) }, mostAlike, mergeGroup)
	all = mergeBy(all, func(o *Observation) string { return o.ID }, mostAlike, mergeGroup)
	slices.SortStableFunc(all, func(a, b Observation) int {
		return cmp.Or(cmp.Compare(a.Level, b.Level), cmp.Compare(b.size(), a.size()), cmp.Compare(a.Layer, b.Layer))
	})
	return all
}

// size is how many experts or tensors a finding is about.
func (o *Observation) size() (n int) {
	for _, m := range o.Members {
		n += max(1, len(m.Experts))
	}
	return n
}

// layers returns the layers of the members.
func (o *Observation) layers() (all []int) {
	for _, m := range o.Members {
		all = append(all, m.Layer)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// mergeBy merges the findings with equal keys where there are more than most of them. Those with the key "" stay.
func mergeBy(all []Observation, key func(o *Observation) string, most int,
	merge func(group []Observation) Observation) []Observation {
	merged, unnamed := []Observation{}, 0
	groups := GroupBy(all, func(o Observation) string {
		unnamed++
		return cmp.Or(key(&o), fmt.Sprint("\x00", unnamed))
	})
	for _, g := range groups {
		if len(g) > max(most, 1) {
			merged = append(merged, merge(g))
		} else {
			merged = append(merged, g...)
		}
	}
	return merged
}

// mergeConnected merges findings of one kind in one layer that are about single experts, or share an expert.
func mergeConnected(all []Observation) (merged []Observation) {
	touch := func(a, b *Observation) bool {
		sameLayer := slices.Equal(a.layers(), b.layers()) && len(a.layers()) == 1
		single := len(a.Experts) < 2 && len(b.Experts) < 2
		return a.ID == b.ID && sameLayer &&
			(single || slices.ContainsFunc(a.Experts, func(e int) bool { return slices.Contains(b.Experts, e) }))
	}
	for len(all) > 0 {
		group, rest := []Observation{all[0]}, all[1:]
		for grown := true; grown; {
			var apart []Observation
			for _, o := range rest {
				if slices.ContainsFunc(group, func(g Observation) bool { return touch(&g, &o) }) {
					group = append(group, o)
				} else {
					apart = append(apart, o)
				}
			}
			grown, rest = len(apart) < len(rest), apart
		}
		merged, all = append(merged, mergeGroup(group)), rest
	}
	return merged
}

// mergeGroup returns the finding of a group that is furthest from what is expected, with the members of all.
func mergeGroup(group []Observation) Observation {
	lead := group[0]
	var members []Member
	for _, o := range group {
		if o.far() > lead.far() {
			lead = o
		}
		members = append(members, o.Members...)
	}
	if len(group) == 1 {
		return lead
	}
	slices.SortStableFunc(members, func(a, b Member) int { return cmp.Compare(a.Layer, b.Layer) })
	own := Member{lead.Layer, lead.Experts, lead.Tensor, lead.Value}
	lead.Members, lead.Experts = members, nil
	lead.Text += "; " + describeMembers(own, members)
	for _, m := range members {
		if m.Layer == lead.Layer {
			lead.Experts = append(lead.Experts, m.Experts...)
		}
	}
	slices.Sort(lead.Experts)
	lead.Experts = append([]int{}, slices.Compact(lead.Experts)...)
	return lead
}

// far is how far the value is from what is expected, as a ratio or, where that is 0, as it is.
func (o *Observation) far() float64 {
	if o.Value == nil || o.Expected == nil {
		return 0
	}
	if *o.Value > 0 && *o.Expected > 0 {
		return Magnitude(math.Log(*o.Value / *o.Expected))
	}
	return Magnitude(*o.Value - *o.Expected)
}

// describeMembers names the members of a finding beside the first.
func describeMembers(first Member, members []Member) string {
	var layers, experts []int
	var names []string
	for _, m := range members {
		layers = append(layers, m.Layer)
		experts = append(experts, m.Experts...)
		if m.Tensor != first.Tensor {
			names = append(names, m.Tensor)
		}
	}
	slices.Sort(layers)
	slices.Sort(experts)
	layers, experts = slices.Compact(layers), slices.Compact(experts)
	switch {
	case len(layers) > 1:
		return fmt.Sprintf("%d such in layers %s", len(members), text.Ranges(layers))
	case len(experts) > len(first.Experts):
		return fmt.Sprintf("such are experts %s", text.Ranges(experts))
	case len(names) == 0:
		return fmt.Sprintf("%d such", len(members))
	}
	var patterns []string
	for _, p := range Fold(names) {
		patterns = append(patterns, p.Brief)
	}
	return "such is also " + List(patterns)
}

// copiedLayers returns one finding for the equal weights of the same layers.
func copiedLayers(group []Observation) Observation {
	first, layers := group[0], group[0].layers()
	first.ID, first.Members, first.Experts = "duplicate-layer", nil, []int{}
	experts, matrices, aligned := 0, 0, true
	for _, o := range group {
		first.Members = append(first.Members, o.Members...)
		if o.ID == "duplicate" {
			experts += len(o.Experts)
		} else {
			matrices++
		}
		for _, m := range o.Members {
			aligned = aligned && slices.Equal(m.Experts, o.Experts)
		}
		if o.Layer == first.Layer {
			first.Experts = append(first.Experts, o.Experts...)
		}
	}
	slices.Sort(first.Experts)
	first.Experts = slices.Compact(first.Experts)
	var parts []string
	if experts > 0 {
		parts = append(parts, text.Plural(experts, "expert"))
	}
	noun := "tensor"
	if experts > 0 {
		noun = "other tensor"
	}
	if matrices > 0 {
		parts = append(parts, text.Plural(matrices, noun))
	}
	first.Value = Finite(float64(experts + matrices))
	first.Text = fmt.Sprintf("layers %s have equal weights: %s", text.Ranges(layers), strings.Join(parts, " and "))
	if aligned {
		first.Text = fmt.Sprintf("layer %s repeats layer %d: %s are equal", text.Ranges(layers[1:]), layers[0],
			strings.Join(parts, " and "))
	}
	return first
}
