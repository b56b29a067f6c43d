package table_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/model/table"
)

// TestKept: names and shapes follow the numbers of the experts, in the layers that are listed.
func TestKept(t *testing.T) {
	kept := table.Kept{3: {1, 4, 17}}
	for larger, smaller := range map[string]string{
		"model.layers.3.mlp.experts.17.up_proj.weight":   "model.layers.3.mlp.experts.2.up_proj.weight",
		"model.layers.3.mlp.experts.1.output":            "model.layers.3.mlp.experts.0.output",
		"model.layers.2.mlp.experts.17.up_proj.weight":   "model.layers.2.mlp.experts.17.up_proj.weight",
		"model.layers.3.mlp.gate.weight":                 "model.layers.3.mlp.gate.weight",
		"model.layers.3.mlp.shared_experts.17.up.weight": "model.layers.3.mlp.shared_experts.17.up.weight",
	} {
		require.Equal(t, smaller, kept.Smaller(larger))
		require.Equal(t, larger, kept.Larger(smaller))
	}
	_, is := kept.Renumber(3, 2)
	require.False(t, is)
	f := table.FamilyOf(configtest.Fixture(t, "v3/checkpoint"))
	for name, want := range map[string][]int{
		"model.layers.3.mlp.gate.weight":                  {3, 64},
		"model.layers.3.mlp.gate.e_score_correction_bias": {3, 64},
		"model.layers.2.mlp.gate.weight":                  {16, 64},
		"model.layers.3.mlp.experts.1.down_proj.weight":   {16, 64},
	} {
		require.Equal(t, want, kept.Shape(f.Place(name), []int{16, 64}), name)
	}
}
