package weights

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/model/tensor"
)

// TestExpertNames: which weights go into which place of a fused tensor, and nothing else does.
func TestExpertNames(t *testing.T) {
	for name, want := range map[string]string{
		"model.layers.3.mlp.experts.17.up_proj.weight":             "model.layers.3.mlp.experts.gate_up_proj 17 1",
		"model.layers.3.mlp.experts.0.down_proj.weight_scale_inv":  "model.layers.3.mlp.experts.down_proj_scale_inv 0 0",
		"model.layers.61.mlp.experts.255.gate_proj.weight":         "model.layers.61.mlp.experts.gate_up_proj 255 0",
		"model.layers.3.mlp.shared_experts.gate_proj.weight":       "",
		"model.layers.3.mlp.experts.01.up_proj.weight":             "",
		"model.layers.3.mlp.experts.1.up_proj.bias":                "",
		"model.layers.3.mlp.experts.1.up_proj.weight_scales":       "",
		"model.layers.3.mlp.experts.-1.up_proj.weight":             "",
		"model.layers.3.mlp.experts.gate_up_proj":                  "",
		"model.layers.3.mlp.shared_experts.1.gate_proj.weight_inv": "",
	} {
		src := memory{name: tensor.Tensor{DType: tensor.U8, Shape: []int{1, 1}}}
		w := New(&config.Config{ModelType: "deepseek_v3", MoE: config.MoE{NRoutedExperts: 2}}, src).Find(name)
		if want == "" {
			if w != nil {
				f, _ := w.Fused()
				require.Nil(t, f, name)
			}
			continue
		}
		_, index := w.Fused()
		require.Equal(t, want, fmt.Sprint(w.FusedName(), " ", w.Expert, " ", index))
		require.Equal(t, w.Part != "", w.Row == nil, "scales have no role of their own")
	}
}
