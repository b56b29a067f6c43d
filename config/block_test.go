package config

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestBlockLayers: the keys by which families whose attention is not computed say which layers have experts.
func TestBlockLayers(t *testing.T) {
	for text, want := range map[string][]int{
		`{"model_type":"axk2","num_hidden_layers":4}`:                                                                          {1, 2, 3},
		`{"model_type":"axk2","num_hidden_layers":4,"moe_layer_freq":2}`:                                                       {2},
		`{"model_type":"axk2","num_hidden_layers":4,"moe_layer_freq":2,"mlp_layer_types":["sparse","dense","dense","sparse"]}`: {0, 3},
		`{"model_type":"dots3_note_text","num_hidden_layers":4,"moe_layer_freq":[1,1,0,1]}`:                                    {1, 3},
		`{"model_type":"minimax_m3_vl_text","num_hidden_layers":4,"moe_layer_freq":[0,0,1,1]}`:                                 {2, 3},
		`{"model_type":"minimax_m3_vl_text","num_hidden_layers":2}`:                                                            {0, 1},
		`{"model_type":"step3p5","num_hidden_layers":5}`:                                                                       {3, 4},
		`{"model_type":"step3p5","num_hidden_layers":3,"moe_layers_enum":"1, 2,3"}`:                                            {1, 2},
		`{"model_type":"step3p5","num_hidden_layers":3,"moe_layers_enum":[0,2]}`:                                               {0, 2},
		`{"model_type":"nemotron_h","hybrid_override_pattern":"ME*-E"}`:                                                        {1, 4},
		`{"model_type":"nemotron_h","num_hidden_layers":9,"layers_block_type":["mamba","moe","mlp"]}`:                          {1},
		`{"model_type":"longcat_flash","num_layers":2}`:                                                                        {0, 1},
		`{"model_type":"glm5_next","text_config":{"model_type":"glm5_next_text","num_hidden_layers":4}}`:                       {3},
		`{"dim":8,"n_layers":3,"hidden_dim":8,"vocab_size":8,"moe":{"num_experts":4,"num_experts_per_tok":2,"expert_hidden_dim":8,
			"first_k_dense_replace":2}}`: {2},
		`{"model_type":"glm5_next","num_hidden_layers":4}`: {3},
	} {
		c, err := Parse(strings.NewReader(text))
		require.NoError(t, err, text)
		assert.Equal(t, want, c.MoELayers(), text)
		assert.True(t, c.BlockOnly(), text)
	}
	c, err := Parse(strings.NewReader(`{"model_type":"nemotron_h","hybrid_override_pattern":"ME*-E"}`))
	require.NoError(t, err)
	assert.Equal(t, []bool{false, true, false, true, true}, []bool{c.HasMLP(0), c.HasMLP(1), c.HasMLP(2), c.HasMLP(3), c.HasMLP(4)})
}

// TestLimitsOfMLPs: limits by layer, where null and 0 set none, and one of routed experts alone.
func TestLimitsOfMLPs(t *testing.T) {
	c, err := Parse(strings.NewReader(`{"model_type":"step3p7","text_config":{"model_type":"step3p5","num_hidden_layers":3,
		"swiglu_limits":[null,7.0,0.0,9.0],"swiglu_limits_shared":[16,null,0]}}`))
	require.NoError(t, err)
	for l, want := range [][2]float64{{0, 16}, {7, 0}, {0, 0}, {9, 0}} {
		assert.Equal(t, want, [2]float64{c.Limit(l, true), c.Limit(l, false)})
	}
	assert.Zero(t, c.Limit(-1, true))
	c, err = Parse(strings.NewReader(`{"model_type":"hy_v4"}`))
	require.NoError(t, err)
	assert.Equal(t, [2]float64{10, 0}, [2]float64{c.Limit(1, true), c.Limit(1, false)})
}

// TestBlockProblems: what transformers' classes would refuse, or compute otherwise than the key says.
func TestBlockProblems(t *testing.T) {
	for text, want := range map[string]string{
		`{"model_type":"laguna","moe_apply_router_weight_on_input":true}`:                       "moe_apply_router_weight_on_input: true: transformers' class refuses it",
		`{"model_type":"nemotron_h"}`:                                                           "layers_block_type: missing: transformers' class would have four layers without it",
		`{"model_type":"nemotron_h","hybrid_override_pattern":"MX"}`:                            "layer 1: \"X\" is not a module of this family",
		`{"model_type":"nemotron_h","layers_block_type":["moe"],"mlp_hidden_act":"silu"}`:       "mlp_hidden_act: \"silu\" is not one of relu2",
		`{"model_type":"step3p5","swiglu_limits":[7]}`:                                          "swiglu_limits: 1 layers; num_hidden_layers is 45",
		`{"model_type":"hy_v4","swiglu_limit":0}`:                                               "swiglu_limit: 0 is not above 0",
		`{"model_type":"longcat_flash","n_routed_experts":8,"zero_expert_num":4,"moe_topk":13}`: "moe_topk: 13 is more than n_routed_experts 8 and zero_expert_num 4",
		`{"model_type":"step3p5","swiglu_limits":[-1]}`:                                         "swiglu_limits: layer 0: -1 is below 0",
		`{"model_type":"step3p5","moe_layers_enum":"3,x"}`:                                      "is not a list of layers",
		`{"model_type":"dots3_note_text","moe_layer_freq":["a"]}`:                               "is not a number or a list of numbers",
		`{"model_type":"dots3_note_text","mlp_bias":true}`:                                      "biases of the MLPs are not supported",
		`{"model_type":"axk2","n_group":4}`:                                                     "needs n_group and topk_group",
		`{"dim":8,"moe":{"num_experts":8,"num_experts_per_tok":2}}`:                             "moe.expert_hidden_dim: missing",
		`{"dim":8,"moe":{"num_experts":8,"num_experts":2}}`:                                     "key \"num_experts\" appears twice",
		`{"dim":8,"moe":{"num_experts":2,"num_experts_per_tok":3,"num_expert_groups":4}}`:       "moe.num_experts_per_tok: 3 is more than moe.num_experts 2",
		`{"model_type":"step3p7"}`:                                                              "",
		`{"model_type":"zaya"}`:                                                                 "whose mixture is another: its gate is an MLP",
		`{"model_type":"nemotron_h_omni","text_config":{}}`:                                     "the weights of its language model, nemotron_h, is not known",
		`{"model_type":"bailing_moe_v3_vl"}`:                                                    "the weights of its language model, bailing_hybrid, is not known",
		`{"model_type":"kimi_k3"}`:                                                              "whose mixture is another",
	} {
		_, err := Parse(strings.NewReader(text))
		if want == "" {
			require.NoError(t, err, text)
			continue
		}
		require.ErrorContains(t, err, want, text)
	}
}
