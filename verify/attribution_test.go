package verify

import (
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
	"dsmoe/verify/pack"
)

// TestExpertsOfNoWeightDoNotShow: what a gate weighs with nothing, or gives to padding alone,
// was not verified.
func TestExpertsOfNoWeightDoNotShow(t *testing.T) {
	a := &model.Activation{Shape: []int{2, 2}, Values: []float32{1, 0, 0.5, 0.4999}}
	var seen []bool
	for slot := range a.Values {
		seen = append(seen, contributes(a, nil, slot), contributes(a, pack.Padding{false, true}, slot))
	}
	require.Equal(t, []bool{true, true, false, false, true, false, true, false}, seen)
}
