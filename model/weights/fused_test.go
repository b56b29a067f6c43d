package weights

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
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

// TestStackedAndJoined: tensors of all experts' projections, and of both projections of an MLP, under their names in files. A
// tensor of another shape is told by that name, and so is one that a family has no weight for.
func TestStackedAndJoined(t *testing.T) {
	of := func(shape ...int) tensor.Tensor {
		n := 2
		for _, d := range shape {
			n *= d
		}
		return tensor.Tensor{DType: tensor.BF16, Shape: shape, Data: make([]byte, n)}
	}
	step := configtest.Parse(t, `{"model_type":"step3p5","num_hidden_layers":1,"mlp_layer_types":["sparse"],"n_routed_experts":2,
		"num_experts_per_tok":1,"hidden_size":4,"moe_intermediate_size":3}`)
	s := New(step, memory{"model.layers.0.moe.gate_proj.weight": of(2, 3, 4), "model.layers.0.moe.down_proj.weight": of(3, 4, 3),
		"model.layers.0.moe.gate.weight": of(2, 4)})
	w := s.Find("model.layers.0.mlp.experts.1.gate_proj.weight")
	require.Equal(t, []int{3, 4}, w.Shape)
	require.Equal(t, []any{int64(12), "model.layers.0.moe.gate_proj.weight"}, []any{w.First, w.Stored})
	require.Len(t, s.Misfits, 1)
	require.Equal(t, "model.layers.0.moe.down_proj.weight", s.Misfits[0].Name)
	require.Equal(t, "shape [3 4 3]: 3 experts, config says 2", s.Misfits[0].Cause)

	minimax := configtest.Parse(t, `{"model_type":"minimax_m3_vl_text","num_hidden_layers":1,"mlp_layer_types":["dense"],
		"num_local_experts":2,"num_experts_per_tok":1}`)
	s = New(minimax, memory{"model.layers.0.mlp.gate_up_proj.weight": of(6, 4)})
	w = s.Find("model.layers.0.mlp.up_proj.weight")
	require.Equal(t, []int{3, 4}, w.Shape)
	require.Equal(t, int64(12), w.First)
	require.Nil(t, New(step, memory{"model.layers.0.mlp.gate_up_proj.weight": of(6, 4)}).Find("model.layers.0.mlp.up_proj.weight"))
}
