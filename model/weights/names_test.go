package weights

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestExpertNames: per-expert names and fused ones give each other back, and nothing else
// is taken for one.
func TestExpertNames(t *testing.T) {
	for name, want := range map[string]string{
		"model.layers.3.mlp.experts.17.up_proj.weight":             "model.layers.3.mlp.experts.gate_up_proj 17 1",
		"model.layers.3.mlp.experts.0.down_proj.weight_scale_inv":  "model.layers.3.mlp.experts.down_proj_scale_inv 0 0",
		"model.layers.61.mlp.experts.255.gate_proj.weight":         "model.layers.61.mlp.experts.gate_up_proj 255 0",
		"model.layers.3.mlp.shared_experts.gate_proj.weight":       "",
		"model.layers.3.mlp.experts.01.up_proj.weight":             "",
		"model.layers.3.mlp.experts.1.up_proj.bias":                "",
		"model.layers.3.mlp.experts.1.up_proj.weight_scale":        "",
		"model.layers.3.mlp.experts.-1.up_proj.weight":             "",
		"model.layers.3.mlp.experts.gate_up_proj":                  "",
		"model.layers.3.mlp.shared_experts.1.gate_proj.weight_inv": "",
	} {
		p, ok := ParseExpert(name)
		if want == "" {
			require.False(t, ok, name)
			continue
		}
		require.Equal(t, want, fmt.Sprint(p.Fused, " ", p.Expert, " ", p.Part))
		f, ok := ParseFused(p.Fused)
		require.True(t, ok)
		require.Equal(t, name, f.ExpertName(p.Expert, f.Parts[p.Part]))
	}
	_, ok := ParseFused("model.layers.3.mlp.experts.gate_up_proj.weight")
	require.False(t, ok)
}
