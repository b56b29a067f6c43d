package weights

import (
	"cmp"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// Ordered returns all weights in the order of the table of c's family, which is
// that of the reference's state_dict: scales behind their weight, and names that the
// table does not have last, numbers in them by value.
func (s *Set) Ordered(c *config.Config) []*Weight {
	list := make([]*Weight, 0, len(s.All()))
	placed := make(map[*Weight]bool, len(s.All()))
	parts := slices.DeleteFunc(append([]string{""}, tensor.Parts()...), func(part string) bool { // absent from all slots
		return !slices.ContainsFunc(s.All(), func(w *Weight) bool { return strings.HasSuffix(w.Name, part) })
	})
	for slot := range table.FamilyOf(c).Slots(c) {
		for _, part := range parts {
			if w := s.Find(slot.Name + part); w != nil {
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
	slices.SortStableFunc(list[known:], func(a, b *Weight) int {
		return cmp.Or(text.CompareNames(a.Owner(), b.Owner()), cmp.Compare(len(a.Name), len(b.Name)))
	})
	return list
}
