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
	list := make([]*weights.Weight, 0, len(s.All()))
	placed := make(map[*weights.Weight]bool, len(s.All()))
	for slot := range FamilyOf(c).Slots(c) {
		for _, name := range []string{slot.Name, slot.Name + weights.ScaleSuffix} {
			if w := s.Find(name); w != nil {
				list = append(list, w)
				placed[w] = true
			}
		}
	}
	known := len(list)
	for _, w := range s.All() {
		if !placed[w] {
			list = append(list, w)
		}
	}
	slices.SortStableFunc(list[known:], func(a, b *weights.Weight) int {
		x, y := strings.TrimSuffix(a.Name, weights.ScaleSuffix), strings.TrimSuffix(b.Name, weights.ScaleSuffix)
		return cmp.Or(text.CompareNames(x, y), cmp.Compare(len(a.Name), len(b.Name)))
	})
	return list
}
