package model

import (
	"cmp"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// Ordered returns all weights of a set in the order of the table of c's family, which is
// that of the reference's state_dict: scales behind their weight, and names that the
// table does not have last, numbers in them by value.
func Ordered(c *config.Config, s *weights.Set) []*weights.Weight {
	rank := map[string]int{}
	for slot := range FamilyOf(c).Slots(c) {
		rank[slot.Name] = len(rank)
	}
	place := func(name string) int {
		if i, ok := rank[name]; ok {
			return i
		}
		return len(rank)
	}
	list := slices.Clone(s.All())
	slices.SortStableFunc(list, func(a, b *weights.Weight) int {
		x, y := strings.TrimSuffix(a.Name, weights.ScaleSuffix), strings.TrimSuffix(b.Name, weights.ScaleSuffix)
		return cmp.Or(cmp.Compare(place(x), place(y)), text.CompareNames(x, y), cmp.Compare(len(a.Name), len(b.Name)))
	})
	return list
}
