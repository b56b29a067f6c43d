package experts

import (
	"cmp"
	"fmt"
	"slices"

	"dsmoe/inspect"
	"dsmoe/model/table"
	"dsmoe/text"
)

// oddity is what sets an expert apart most from the others of its layer.
type oddity struct {
	layer, expert int
	measure       string
	value, median float64
	z             float64 // robust z-score of value among the layer's routed experts
	matrix        table.Role
}

// Oddest is a row for each of the n routed experts that are furthest from the others of their layers in the norm, the
// stable rank or the largest cosine of a matrix, the furthest first: an order to look at them in, not a finding.
func (r *Report) Oddest(n int) *text.Sheet {
	var all []oddity
	for i := range r.Layers {
		l := &r.Layers[i]
		worst := make([]oddity, len(l.Experts))
		for role := range l.All() {
			for _, measure := range measures {
				values := make([]*float64, len(l.Experts))
				for i := range l.Experts {
					if m := *l.Experts[i].Of(role); m != nil {
						values[i] = measure.of(m)
					}
				}
				spread := inspect.SpreadOf(values)
				for i, v := range values {
					if z := spread.Z(v); z != nil && inspect.Magnitude(*z) > inspect.Magnitude(worst[i].z) {
						worst[i] = oddity{layer: l.Layer, expert: l.Experts[i].Expert, measure: measure.name, value: *v,
							median: spread.Median, z: *z, matrix: role}
					}
				}
			}
		}
		all = append(all, slices.DeleteFunc(worst, func(o oddity) bool { return o.measure == "" })...)
	}
	slices.SortStableFunc(all, func(a, b oddity) int {
		return cmp.Compare(inspect.Magnitude(b.z), inspect.Magnitude(a.z))
	})
	s := text.NewSheet(">layer", ">expert", "by", ">value", ">median", ">z")
	for _, o := range all[:min(n, len(all))] {
		s.Row(o.layer, o.expert, fmt.Sprintf("%s of %s", o.measure, o.matrix), o.value, o.median, o.z)
	}
	return s
}

// measures are the numbers of a matrix that Oddest compares.
var measures = []struct {
	name string
	of   func(m *MatrixNumbers) *float64
}{
	{"norm", func(m *MatrixNumbers) *float64 { return m.Norm }},
	{"stable rank", func(m *MatrixNumbers) *float64 { return m.StableRank }},
	{"largest cosine", func(m *MatrixNumbers) *float64 {
		if v := m.Nearest.Value(); v != nil {
			return inspect.Finite(inspect.Magnitude(*v))
		}
		return nil
	}},
}
