package model

import (
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/model/table"
)

// TestEveryPlaceIsBoundToAWeightOfItsOwn, in all families, prediction layers included.
func TestEveryPlaceIsBoundToAWeightOfItsOwn(t *testing.T) {
	for _, fixture := range []string{"v1-base", "v1-rope-linear-tied-bias", "v1-dense", "v2-lite", "v3", "v3-yarn"} {
		c := configtest.Fixture(t, fixture+"/checkpoint")
		m, bound := newModel(c), map[*Weight]string{}
		bind := func(s table.Slot) {
			w := m.at(s.Place)
			require.NotNil(t, w, s.Name)
			require.Empty(t, bound[w], s.Name)
			bound[w] = s.Name
		}
		for s := range table.FamilyOf(c).Slots(c) {
			bind(s)
		}
		for s := range table.FamilyOf(c).MTPSlots(c) {
			bind(s)
		}
	}
}
