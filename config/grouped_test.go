package config

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// groupedFamilies are those with DeepSeek-V3's mixture behind plain attention, each with what has no default.
var groupedFamilies = map[string]string{"glm4_moe": "", "dots1": `,"n_routed_experts":8,"num_experts_per_tok":2,"n_shared_experts":1`,
	"solar_open": "", "hy_v3": "", "minimax_m2": "", "exaone_moe": "", "ernie4_5_moe": "", "sarvam_moe": "", "bailing_moe_v2": ""}

// TestGroupedHeads: a head has its own width, of which RoPE rotates a share, the first channels.
func TestGroupedHeads(t *testing.T) {
	for _, test := range []struct {
		model, keys   string
		head, rotated int
	}{
		{"glm4_moe", `,"head_dim":128`, 128, 64},
		{"glm4_moe", `,"hidden_size":4096,"num_attention_heads":64`, 64, 32},
		{"glm4_moe", `,"head_dim":128,"partial_rotary_factor":1.0`, 128, 128},
		{"glm4_moe", `,"head_dim":128,"rope_parameters":{"rope_type":"default","rope_theta":1e6}`, 128, 64},
		{"glm4_moe", `,"head_dim":128,"rope_parameters":{"rope_type":"default","partial_rotary_factor":0.25}`, 128, 32},
		{"glm4_moe", `,"head_dim":128,"rope_scaling":{"type":"yarn","factor":2,"original_max_position_embeddings":64,"partial_rotary_factor":0.25}`, 128, 32},
		{"dots1", `,"hidden_size":96,"num_attention_heads":4,"num_key_value_heads":2`, 24, 24},
		{"solar_open", `,"hidden_size":64,"num_attention_heads":4,"num_key_value_heads":2,"partial_rotary_factor":1.0`, 128, 128},
		{"hy_v3", `,"head_dim":null,"hidden_size":96,"num_attention_heads":4,"num_key_value_heads":2`, 24, 24},
		{"minimax_m2", `,"rotary_dim":64`, 128, 64},
		{"minimax_m2", `,"rotary_dim":64,"partial_rotary_factor":0.25`, 128, 32},
		{"minimax_m2", ``, 128, 128},
		{"bailing_moe_v2", ``, 128, 128},
		{"bailing_moe_v2", `,"partial_rotary_factor":0.5`, 128, 64},
		{"sarvam_moe", ``, 64, 64},
		{"sarvam_moe", `,"partial_rotary_factor":0.5`, 64, 32},
	} {
		c := parse(t, `{"model_type":"`+test.model+`"`+groupedFamilies[test.model]+test.keys+"}")
		assert.Equal(t, []int{test.head, test.rotated, test.head, test.head - test.rotated},
			[]int{c.QKHeadDim(), c.HeadDim(), c.ValueHeadDim(), c.Attention.QKNopeHeadDim}, test.model+test.keys)
		assert.True(t, c.RotaryFirst())
		assert.False(t, c.LatentAttention() || c.Windowed())
	}
}

// TestGroupedLayers: which layers have experts, a window and RoPE.
func TestGroupedLayers(t *testing.T) {
	for _, test := range []struct {
		keys                   string
		moe, windows, rotating string // a digit for each layer
	}{
		{`"glm4_moe","head_dim":128,"num_hidden_layers":4,"first_k_dense_replace":2`, "0011", "0000", "1111"},
		{`"solar_open","num_hidden_layers":3,"first_k_dense_replace":2`, "111", "000", "111"},
		{`"hy_v3","num_hidden_layers":3,"first_k_dense_replace":2`, "011", "000", "111"},
		{`"hy_v3","num_hidden_layers":3,"mlp_layer_types":["sparse","dense","sparse"]`, "101", "000", "111"},
		{`"minimax_m2","num_hidden_layers":2,"first_k_dense_replace":1`, "11", "00", "11"},
		{`"ernie4_5_moe","num_hidden_layers":4`, "0111", "0000", "1111"},
		{`"ernie4_5_moe","num_hidden_layers":6,"moe_layer_start_index":0,"moe_layer_end_index":4,"moe_layer_interval":2`, "010100", "000000", "111111"},
		{`"exaone_moe","num_hidden_layers":6`, "011111", "111011", "111011"},
		{`"exaone_moe","num_hidden_layers":3,"first_k_dense_replace":0,"sliding_window_pattern":2`, "111", "101", "101"},
		{`"exaone_moe","num_hidden_layers":2,"sliding_window_pattern":"LG","layer_types":["sliding_attention","full_attention"]`, "01", "10", "10"},
		{`"dots1","num_hidden_layers":3` + groupedFamilies["dots1"], "111", "000", "111"},
		{`"dots1","num_hidden_layers":3,"max_window_layers":1` + groupedFamilies["dots1"], "111", "011", "111"},
		{`"dots1","num_hidden_layers":3,"max_window_layers":1,"sliding_window":null` + groupedFamilies["dots1"], "111", "000", "111"},
		{`"dots1","num_hidden_layers":2,"use_sliding_window":false,"layer_types":["full_attention","sliding_attention"]` + groupedFamilies["dots1"], "11", "01", "11"},
	} {
		c := parse(t, `{"model_type":`+test.keys+"}")
		digits := func(is func(l int) bool) string {
			return strings.Join(typed(c.NumHiddenLayers, "1", "0", is), "")
		}
		assert.Equal(t, test.moe, digits(c.IsMoE), test.keys)
		assert.Equal(t, test.windows, digits(func(l int) bool { return c.Window(l) > 0 }), test.keys)
		assert.Equal(t, test.rotating, digits(c.Rotates), test.keys)
		assert.Equal(t, strings.Contains(test.windows, "1"), c.HasWindows(), test.keys)
	}
}

// TestGroupedGates: what each gate does to its scores.
func TestGroupedGates(t *testing.T) {
	for model, want := range map[string]struct {
		scoring           string
		limits, normal    bool
		scale, eps, least float64
	}{
		"glm4_moe":       {"sigmoid", true, true, 1, 1e-20, 0},
		"dots1":          {"sigmoid", true, false, 1, 1e-20, 0},
		"solar_open":     {"sigmoid", true, true, 1, 1e-20, 0},
		"hy_v3":          {"sigmoid", false, true, 2.826, 1e-20, 0},
		"minimax_m2":     {"sigmoid", false, true, 1, 0, 0},
		"exaone_moe":     {"sigmoid", true, true, 2.5, 1e-20, 0},
		"ernie4_5_moe":   {"softmax", false, true, 1, 0, 1e-12},
		"bailing_moe_v2": {"sigmoid", true, true, 1, 1e-20, 0},
		"sarvam_moe":     {"sigmoid", true, true, 2.5, 1e-20, 0},
	} {
		c := parse(t, `{"model_type":"`+model+`"`+groupedFamilies[model]+`,"head_dim":128,"scoring_func":"noaux_tc","topk_method":"none"}`)
		normal, scale := c.TopKWeights()
		eps, least := c.TopKDivisor()
		assert.Equal(t, want.scoring, c.Router.ScoringFunc, model)
		assert.Equal(t, []any{want.limits, want.normal, want.scale, want.eps, want.least},
			[]any{c.LimitsGroups(), normal, scale, eps, least}, model)
		assert.True(t, c.ChoosesByBias(), model)
	}
}

// TestGroupedKeys: families have keys of their own, under which problems and differences are told.
func TestGroupedKeys(t *testing.T) {
	for text, want := range map[string]string{
		`"hy_v3","num_experts":4`:                  "num_experts_per_tok: 8 is more than num_experts 4",
		`"ernie4_5_moe","moe_k":65`:                "moe_k: 65 is more than moe_num_experts 64",
		`"ernie4_5_moe","use_bias":true`:           "use_bias: true: biases of the MLPs are not supported",
		`"dots1"`:                                  "n_routed_experts: missing: the reference has no default for it",
		`"solar_open","partial_rotary_factor":0.5`: "partial_rotary_factor: RoPE rotates 64 of head_dim 128",
		`"solar_open","rope_parameters":{"partial_rotary_factor":0.5}`:                                           "partial_rotary_factor: RoPE rotates 64 of head_dim 128",
		`"glm4_moe","head_dim":10,"partial_rotary_factor":0.5`:                                                   "head_dim: 10, of which RoPE rotates 5, by partial_rotary_factor 0.5",
		`"glm4_moe","head_dim":24,"partial_rotary_factor":1.5`:                                                   "head_dim: 24, of which RoPE rotates 36, by partial_rotary_factor 1.5",
		`"glm4_moe","head_dim":0`:                                                                                "head_dim: 0 is not in 1..",
		`"glm4_moe","head_dim":128,"partial_rotary_factor":0.5,"rope_parameters":{"partial_rotary_factor":0.25}`: "rope_parameters.partial_rotary_factor: 0.25 disagrees with partial_rotary_factor 0.5",
		`"exaone_moe","sliding_window":null`:                                                                     "sliding_window: null is not an integer",
		`"exaone_moe","sliding_window_pattern":"LLLG"`:                                                           "layer_types: missing",
		`"exaone_moe","layer_types":["sliding_attention"]`:                                                       "layer_types: 1 layers; num_hidden_layers is 32",
		`"exaone_moe","mlp_layer_types":["moe"]`:                                                                 `mlp_layer_types: layer 0: "moe" is not one of dense, sparse`,
		`"dots1","n_routed_experts":8,"num_experts_per_tok":2,"num_hidden_layers":1,"sliding_window":null,"layer_types":["sliding_attention"]`: "layer_types: has layers with a window, and sliding_window is null",
		`"bailing_moe","architectures":["BailingMoeV2ForCausalLM"],"use_bias":true`:                                                            "use_bias: true: a bias of attention's output is not supported",
		`"sarvam_moe","num_experts":4`:                                          "num_experts_per_tok: 6 is more than num_experts 4",
		`"sarvam_moe","num_experts":0`:                                          "num_experts: 0 is not in 1..",
		`"sarvam_moe","num_experts":64,"n_routed_experts":32`:                   "num_experts: 64; n_routed_experts, another name of it, is 32",
		`"glm4_moe","head_dim":128,"num_local_experts":8,"n_routed_experts":16`: "num_local_experts: 8; n_routed_experts, another name of it, is 16",
		`"glm4_moe","head_dim":128,"n_group":3`:                                 "n_routed_experts: n_group 3 does not divide n_routed_experts 128",
	} {
		got := problems(t, `{"model_type":`+text+"}")
		if assert.Len(t, got, 1, text) {
			assert.Contains(t, got[0].String(), want, text)
		}
	}
	a, b := parse(t, `{"model_type":"minimax_m2"}`), parse(t, `{"model_type":"minimax_m2","intermediate_size":64,"num_local_experts":16}`)
	var keys []string
	for _, d := range Differences(&a, &b) {
		keys = append(keys, d.Key)
	}
	assert.Equal(t, []string{"intermediate_size", "num_local_experts"}, keys)
	assert.Equal(t, "num_local_experts", a.Key("n_routed_experts"))
	assert.Equal(t, "hidden_size", a.Key("hidden_size"))
}

// TestOfClass: a class is of its own model_type first.
func TestOfClass(t *testing.T) {
	own := map[string]string{}
	for _, f := range families {
		if f.class == "" {
			continue
		}
		if own[f.class] == "" {
			own[f.class] = f.modelType
		}
		require.Contains(t, OfClass(f.class), f.modelType)
		require.Equal(t, own[f.class], OfClass(f.class)[0])
	}
	require.Equal(t, "deepseek_v3", own["DeepseekV3ForCausalLM"], "kimi_k2 has it, too")
	require.Equal(t, []string{"minimax_m2"}, OfClass("MiniMaxM2ForCausalLM"))
	require.Empty(t, OfClass(""))
	require.Empty(t, OfClass("LlamaForCausalLM"))
}
