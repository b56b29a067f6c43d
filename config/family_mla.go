package config

import (
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
)

// v2 is DeepSeek-V2: the keys of transformers' DeepseekV2Config with its defaults, the first DeepSeekMoE's and new ones
// for latent attention.
var v2 = v1.derive("deepseek_v2", delta{
	class:   "DeepseekV2ForCausalLM",
	missing: map[string]any{"num_hidden_layers": 32, "num_key_value_heads": 0, "n_shared_experts": 2, "n_routed_experts": 64},
	fields: []field{
		{"kv_lora_rank", 512, integer(func(c *Config) *int { return &c.Attention.KVLoraRank }, 1, maxDim)},
		{"q_lora_rank", 1536, optional(func(c *Config) *int { return &c.Attention.QLoraRank }, maxDim)},
		{"qk_nope_head_dim", 128, integer(func(c *Config) *int { return &c.Attention.QKNopeHeadDim }, 1, maxDim)},
		{"qk_rope_head_dim", 64, integer(func(c *Config) *int { return &c.Attention.QKRopeHeadDim }, 1, maxDim)},
		{"v_head_dim", 128, integer(func(c *Config) *int { return &c.Attention.VHeadDim }, 1, maxDim)},
		{"topk_method", "greedy", str(func(c *Config) *string { return &c.Router.TopKMethod })},
		{"n_group", nil, optional(func(c *Config) *int { return &c.Router.NGroup }, maxExperts).deciding(either((*Config).LimitsGroups))},
		{"topk_group", nil, optional(func(c *Config) *int { return &c.Router.TopKGroup }, maxExperts).deciding(either((*Config).LimitsGroups))},
		v1.row("routed_scaling_factor", 1.0),
		{"rope_interleave", true, boolean(func(c *Config) *bool { return &c.RoPE.RopeInterleave })},
		{"num_nextn_predict_layers", nil, natural(func(c *Config) *int { return &c.NumNextNPredictLayers }, 64).
			deciding(never)}, // the forward pass leaves these layers out; their weights are compared as such
		{"mlp_bias", nil, withoutBias},
		{"auto_map", nil, readBy(func(d *decoding, _ string, value jsontext.Value) {
			if value.Kind() == '{' { // the checkpoint has its own code
				d.config.Reference = Remote
			}
		}).showing(func(c *Config) jsontext.Value { return toJSON(c.Reference) }).
			deciding(func(a, b *Config) bool { return topKWeightsDiffer(a, b) || layersDiffer(a, b) })},
	},
	reference: Native,
	rules: append([]rule{
		scoringIsSoftmax,
		{[]string{"rope_interleave"}, func(c *Config) error {
			return errorIf(!c.RoPE.RopeInterleave, "false: DeepSeek-V2 rotates interleaved pairs")
		}},
		{groupKeys, methodOfV2},
	}, latentRules...),
	rope: yarnForm,
	references: map[Reference]Rules{
		Remote: {Router: routerRules{RouterFloat32: true}, MoE: moeRules{RoutedSum: ByChoice}},
		Native: {
			Router: routerRules{RouterFloat32: true, NormTopK: normNever, ScalesNormalised: true},
			MoE:    moeRules{IgnoresMoELayerFreq: true},
			RoPE:   ropeRules{AnglesInFloat32: true, RotatesInFloat32: true},
		},
	},
})

// localExperts is the other name that transformers' configs have for n_routed_experts.
var localExperts = map[string]string{"num_local_experts": "n_routed_experts"}

// v3 is DeepSeek-V3: the keys of transformers' DeepseekV3Config with its defaults. It has head_dim, which DeepSeek-V2's
// configuration replaces by qk_rope_head_dim.
var v3 = v2.derive("deepseek_v3", delta{
	aliases: localExperts,
	class:   "DeepseekV3ForCausalLM",
	missing: map[string]any{
		"vocab_size": 129280, "hidden_size": 7168, "num_hidden_layers": 61, "intermediate_size": 18432,
		"moe_intermediate_size": 2048, "num_attention_heads": 128, "num_key_value_heads": 128, "n_shared_experts": 1,
		"n_routed_experts": 256, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "scoring_func": "sigmoid",
		"topk_method": "noaux_tc", "n_group": 8, "topk_group": 4, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
		"max_position_embeddings": 4096, "num_nextn_predict_layers": 1,
	},
	fields: []field{{"head_dim", nil, readBy(readHeadDim).ifSet()}},
	rules: append([]rule{
		{[]string{"scoring_func"}, func(c *Config) error {
			return errorIf(c.Router.ScoringFunc != "sigmoid", `%s is not "sigmoid", the scoring function of DeepSeek-V3`,
				quote(c.Router.ScoringFunc))
		}},
		{groupKeys, methodOfV3},
	}, latentRules...),
	references: map[Reference]Rules{
		Remote: {Router: routerRules{RouterFloat32: true, ScalesNormalised: true}, MoE: moeRules{RoutedSum: ByChoice}},
		Native: {
			Router: routerRules{RouterFloat32: true, NormTopK: normAlways, ScalesNormalised: true},
			MoE:    moeRules{IgnoresMoELayerFreq: true},
			RoPE:   ropeRules{AnglesInFloat32: true},
		},
	},
})

// kimiK2 is the configuration_deepseek.py that is published with Kimi-K2: DeepSeek-V3's.
var kimiK2 = v3.derive("kimi_k2", delta{aliases: localExperts})

// groupKeys are the keys that the choice among groups of experts depends on.
var groupKeys = []string{"topk_method", "n_group", "topk_group", "n_routed_experts", "num_experts_per_tok"}

// latentSize are the keys that the number of a model's weights with latent attention depends on.
var latentSize = rule{[]string{"num_hidden_layers", "vocab_size", "hidden_size", "intermediate_size",
	"moe_intermediate_size", "n_shared_experts", "n_routed_experts", "num_attention_heads", "q_lora_rank",
	"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}, sizeIsSane}

// latentRules hold for V2 and V3.
var latentRules = []rule{
	latentSize,
	latentHeadsAreEqual,
	rotaryIsEven,
	topKFitsExperts,
	activationIsSiLU,
}

var withoutBias = always(false, "biases of the MLPs are not supported, no published model has them")

// readHeadDim refuses another head_dim than qk_rope_head_dim, which DeepseekV3Config sets it to:
// the stored one replaces that, DeepseekV3RotaryEmbedding makes its tables of that width, and
// apply_rotary_pos_emb fails.
func readHeadDim(d *decoding, key string, value jsontext.Value) {
	n, err := parseInteger(value, 1, maxDim)
	if err == nil && d.valid("qk_rope_head_dim") && n != d.config.Attention.QKRopeHeadDim {
		err = fmt.Errorf("%d is not qk_rope_head_dim %d: the reference fails at RoPE's tables", n,
			d.config.Attention.QKRopeHeadDim)
	}
	d.fail(key, err)
}

// latentHeadsAreEqual: MLA expands the latent into keys for every head.
var latentHeadsAreEqual = rule{[]string{"num_key_value_heads", "num_attention_heads"}, func(c *Config) error {
	return errorIf(c.Attention.NumKeyValueHeads != c.Attention.NumAttentionHeads,
		"%d is not num_attention_heads %d, as latent attention demands",
		c.Attention.NumKeyValueHeads, c.Attention.NumAttentionHeads)
}}

var rotaryIsEven = rule{[]string{"qk_rope_head_dim"}, func(c *Config) error {
	return errorIf(c.Attention.QKRopeHeadDim%2 != 0, "%d is odd: RoPE rotates pairs", c.Attention.QKRopeHeadDim)
}}

func methodOfV2(c *Config) error {
	switch c.Router.TopKMethod {
	case "greedy":
		return nil
	case "group_limited_greedy":
		return groupsFit(c, 1)
	}
	return fmt.Errorf("%s is not greedy or group_limited_greedy, DeepSeek-V2's", quote(c.Router.TopKMethod))
}

func methodOfV3(c *Config) error {
	if c.Router.TopKMethod != "noaux_tc" {
		return fmt.Errorf("%s is not noaux_tc, DeepSeek-V3's", quote(c.Router.TopKMethod))
	}
	return groupsFit(c, 2)
}

// groupsFit: experts fall into n_group equal groups of at least least experts, and topk_group
// groups hold enough experts for a token.
func groupsFit(c *Config, least int) error {
	n, g := c.MoE.NRoutedExperts, c.Router.NGroup
	switch {
	case n == 0:
		return nil
	case g == 0 || c.Router.TopKGroup == 0:
		return fmt.Errorf("%s needs n_group and topk_group", c.Router.TopKMethod)
	case n%g != 0 || n/g < least:
		return fmt.Errorf("n_group %d does not divide n_routed_experts %d into groups of %d or more", g, n, least)
	case c.Router.TopKGroup > g:
		return fmt.Errorf("topk_group %d is more than n_group %d", c.Router.TopKGroup, g)
	}
	return errorIf(c.MoE.NumExpertsPerTok > c.Router.TopKGroup*(n/g),
		"num_experts_per_tok %d is more than topk_group %d groups of %d hold",
		c.MoE.NumExpertsPerTok, c.Router.TopKGroup, n/g)
}
