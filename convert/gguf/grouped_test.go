package gguf

import (
	"slices"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/convert/format"
	"dsmoe/model/tensor"
)

// TestGroupedRefusals: a model with plain attention and head_dim that llama.cpp does not load, or computes otherwise, is
// refused with the reasons.
func TestGroupedRefusals(t *testing.T) {
	for name, x := range map[string]struct {
		key, value string
		causes     []string
	}{
		"dots1-window":      {causes: []string{"llama.cpp's dots1 has no layers with a window"}},
		"dots1":             {"num_key_value_heads", "2", []string{"num_key_value_heads is 2 of 4 heads: llama.cpp's dots1 has as many"}},
		"hy-v3-bias":        {causes: []string{"attention_bias is true: llama.cpp's hy_v3 has no such biases"}},
		"ernie45-moe-clamp": {causes: []string{"layer 2 is dense, and a layer before it is not", "moe_norm_min is 0.6: llama.cpp divides by 6.1035"}},
		"minimax-m2":        {"tie_word_embeddings", "true", []string{"tie_word_embeddings is true: llama.cpp's minimax-m2 demands a head"}},
		"exaone-moe":        {"tie_word_embeddings", "true", []string{"llama.cpp's exaone-moe demands a head"}},
		"solar-open": {"rope_scaling", `{"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024, "mscale": 1.0, "mscale_all_dim": 0.5}`,
			[]string{"rope_scaling has mscale 1 and mscale_all_dim 0.5: llama.cpp's glm4moe has none"}},
		"sarvam-moe": {causes: []string{"use_qkv_bias is true: llama.cpp's bailingmoe2 has no such biases"}},
		"ling-2":     {"num_shared_experts", "2", []string{"num_shared_experts is 2: llama.cpp's bailingmoe2 has one shared expert"}},
		"glm4-moe":   {"n_routed_experts", "1026", []string{"n_routed_experts is 1026: llama.cpp takes 1024 at most"}},
		"hy-v3":      {"num_experts", "1026", []string{"num_experts is 1026: llama.cpp takes 1024 at most"}},
	} {
		c := configtest.Fixture(t, name+"/checkpoint")
		if x.key != "" {
			require.Empty(t, unsayable(c), name)
			edits := map[string]jsontext.Value{x.key: jsontext.Value(x.value)}
			if name == "glm4-moe" {
				edits["n_group"], edits["topk_group"] = jsontext.Value("1"), jsontext.Value("1")
			}
			var err error
			c, err = c.Override(edits)
			require.NoError(t, err, name)
		}
		reasons := unsayable(c)
		require.Len(t, reasons, len(x.causes), name)
		for i, cause := range x.causes {
			require.Contains(t, reasons[i], cause, name)
		}
	}
}

// TestGroupedKeys: the config comes back from the keys, under the names of the family; wrong and missing keys are errors.
func TestGroupedKeys(t *testing.T) {
	for name, members := range map[string][]string{
		"glm4-moe": {`"model_type": "glm4_moe"`, `"head_dim": 24`, `"partial_rotary_factor": 0.5`, `"use_qk_norm": true`, `"attention_bias": true`,
			`"n_group": 4`, `"topk_group": 2`, `"norm_topk_prob": true`, `"first_k_dense_replace": 1`, `"rope_scaling": null`},
		"solar-open": {`"model_type": "glm4_moe"`, `"partial_rotary_factor": 1`, `"use_qk_norm": false`, `"first_k_dense_replace": 0`,
			`{"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024, "beta_fast": 32.0, "beta_slow": 1.0}`},
		"dots1":      {`"n_shared_experts": 2`, `"routed_scaling_factor": 2.5`, `"sliding_window": null`},
		"hy-v3":      {`"num_experts": 8`, `"num_shared_experts": 1`, `"router_scaling_factor": 2.826`, `"mlp_layer_types": ["dense","sparse","sparse"]`},
		"ling-2":     {`"model_type": "bailing_moe_v2"`, `"num_experts": 8`, `"partial_rotary_factor": 0.5`, `"n_group": 4`},
		"minimax-m2": {`"num_local_experts": 8`, `"intermediate_size": 32`, `"rotary_dim": 12`},
		"exaone-moe": {`"sliding_window": 7`, `"layer_types": ["sliding_attention","sliding_attention","sliding_attention","full_attention"]`},
		"ernie45-moe": {`"moe_num_experts": 8`, `"moe_k": 3`, `"moe_num_shared_experts": 2`, `"moe_layer_start_index": 1`, `"moe_layer_interval": 1`,
			`"tie_word_embeddings": true`},
	} {
		made, wrong := fileOf(t, name, tensor.BF16).assembled(t)
		require.Empty(t, wrong, name)
		for _, member := range members {
			require.Contains(t, string(made.Config), member, name)
		}
	}
	for _, x := range []struct {
		fixture, key string
		value        any // nil: the key is missing
		cause        string
	}{
		{"glm4-moe", sharedCount, nil, "keys are missing: glm4moe.expert_shared_count"},
		{"glm4-moe", gatingFunc, uint32(1), "1 is a gating function that this architecture does not have"},
		{"glm4-moe", ropeDims, uint32(13), "head_dim: 24, of which RoPE rotates 13"},
		{"glm4-moe", nextnLayers, uint32(9), "9 of 3 blocks"},
		{"glm4-moe", valueLength, uint32(23), "23, but the other keys make it 24"},
		{"dots1", ropeDims, uint32(8), "8, but heads have 16"},
		{"dots1", weightsNorm, uint32(1), "1 is not a boolean"},
		{"exaone-moe", nextnLayers, uint32(2), "num_nextn_predict_layers: 2 is not in 0..1"},
		{"ernie45-moe", nextnLayers, uint32(1), "1: this reads no prediction layers of ernie4_5-moe"},
		{"hy-v3", weightsNorm, false, "false, but this architecture normalises the weights of experts"},
		{"ling-2", weightsNorm, false, "false, but this architecture normalises the weights of experts"},
		{"hy-v3", sharedFF, uint32(33), "33 is not a multiple of expert_feed_forward_length 32"},
		{"exaone-moe", windowPattern, []bool{true}, "is not a list of booleans, one per layer"},
		{"exaone-moe", windowPattern, []int32{1, 1, 1, 0}, "is not a list of booleans, one per layer"},
		{"exaone-moe", scalingType, "linear", "linear cannot be read with architecture exaone-moe"},
	} {
		f := fileOf(t, x.fixture, tensor.BF16)
		if f = f.without(t, x.key); x.value != nil {
			f = f.with(t, x.key, x.value)
		}
		_, wrong := f.assembled(t)
		require.NotEmpty(t, wrong, x)
		require.Contains(t, wrong[0].String(), x.cause, x)
	}
}

// TestOutermostOnes: llama.cpp's quantiser writes ERNIE-4.5's router bias [1, experts] as [experts].
func TestOutermostOnes(t *testing.T) {
	f := fileOf(t, "ernie45-moe", tensor.BF16)
	var bias *tensor.Info
	for i := range f.tensors {
		if f.tensors[i].Name == "blk.1.exp_probs_b.bias" {
			bias = &f.tensors[i]
		}
	}
	require.Equal(t, []int{1, 8}, bias.Shape)
	bias.Shape = []int{8}
	made, wrong := f.assembled(t)
	require.Empty(t, wrong)
	is := func(x format.Assembled) bool { return x.Info.Name == "model.layers.1.mlp.gate.e_score_correction_bias" }
	at := slices.IndexFunc(made.Tensors, is)
	require.Equal(t, []int{1, 8}, made.Tensors[at].Info.Shape)
	bias.Shape = []int{2, 4}
	_, wrong = f.assembled(t)
	require.NotEmpty(t, wrong)
}
