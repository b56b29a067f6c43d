package verify

import (
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
	"dsmoe/verify/pack"
)

// TestExpertsOfNoWeightDoNotShow: what a gate weighs with nothing, or gives to padding alone,
// was not verified; with next to nothing is a thousandth of the token's largest weight.
func TestExpertsOfNoWeightDoNotShow(t *testing.T) {
	a := &model.Activation{Shape: []int{2, 2}, Values: []float32{1, 0, 0.5, 0.4999}}
	var seen []bool
	for slot := range a.Values {
		seen = append(seen, contributes(a, nil, slot), contributes(a, pack.Padding{false, true}, slot))
	}
	require.Equal(t, []bool{true, true, false, false, true, false, true, false}, seen)
	a = &model.Activation{Shape: []int{1, 3}, Values: []float32{2, 0.0021, 0.0019}}
	require.True(t, contributes(a, nil, 1))
	require.False(t, contributes(a, nil, 2))
}
