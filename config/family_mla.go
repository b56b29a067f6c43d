package config

import (
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// v2Defaults are the defaults of transformers' DeepseekV2Config.
var v2Defaults = latentDefaults(v1Defaults)

func latentDefaults(c Config) Config {
	c.ModelType, c.Reference, c.NumHiddenLayers, c.NumKeyValueHeads = "deepseek_v2", Native, 32, 0 // null: num_attention_heads
	c.NSharedExperts, c.NRoutedExperts, c.TopKMethod = 2, 64, "greedy"
	c.KVLoraRank, c.QLoraRank, c.QKNopeHeadDim, c.QKRopeHeadDim, c.VHeadDim = 512, 1536, 128, 64, 128
	c.RopeInterleave = true
	return c
}

// v3Defaults are the defaults of transformers' DeepseekV3Config.
var v3Defaults = correctedDefaults(v2Defaults)

func correctedDefaults(c Config) Config {
	c.ModelType, c.VocabSize, c.HiddenSize, c.NumHiddenLayers = "deepseek_v3", 129280, 7168, 61
	c.IntermediateSize, c.MoEIntermediateSize, c.NumAttentionHeads, c.NumKeyValueHeads = 18432, 2048, 128, 128
	c.NSharedExperts, c.NRoutedExperts, c.NumExpertsPerTok, c.FirstKDenseReplace = 1, 256, 8, 3
	c.ScoringFunc, c.TopKMethod, c.NGroup, c.TopKGroup = "sigmoid", "noaux_tc", 8, 4
	c.NormTopKProb, c.RoutedScalingFactor = true, 2.5
	c.MaxPositionEmbeddings, c.NumNextNPredictLayers = 4096, 1
	return c
}

// mlaFields are the keys of DeepseekV2Config and DeepseekV3Config: the keys of the first
// DeepSeekMoE, and new ones for latent attention.
var mlaFields = append(append([]field{}, v1Fields...), []field{
	{"kv_lora_rank", integer(func(c *Config) *int { return &c.KVLoraRank }, 1, maxDim)},
	{"q_lora_rank", optional(func(c *Config) *int { return &c.QLoraRank }, maxDim)},
	{"qk_nope_head_dim", integer(func(c *Config) *int { return &c.QKNopeHeadDim }, 1, maxDim)},
	{"qk_rope_head_dim", integer(func(c *Config) *int { return &c.QKRopeHeadDim }, 1, maxDim)},
	{"v_head_dim", integer(func(c *Config) *int { return &c.VHeadDim }, 1, maxDim)},
	{"topk_method", str(func(c *Config) *string { return &c.TopKMethod })},
	{"n_group", optional(func(c *Config) *int { return &c.NGroup }, maxExperts)},
	{"topk_group", optional(func(c *Config) *int { return &c.TopKGroup }, maxExperts)},
	{"routed_scaling_factor", number(func(c *Config) *float64 { return &c.RoutedScalingFactor }, positive)},
	{"rope_interleave", boolean(func(c *Config) *bool { return &c.RopeInterleave })},
	{"num_nextn_predict_layers", natural(func(c *Config) *int { return &c.NumNextNPredictLayers }, 64)},
	{"mlp_bias", reader{read: readNoBias}},
	{"auto_map", reader{read: readAutoMap}},
}...)

// v3Fields are the keys of DeepSeek-V3's configuration: mlaFields and head_dim, which
// DeepSeek-V2's configuration replaces by qk_rope_head_dim.
var v3Fields = append(slices.Clone(mlaFields), field{"head_dim", reader{read: readHeadDim}})

// sharedMLARules hold for V2 and V3.
var sharedMLARules = []rule{
	{[]string{"num_hidden_layers", "vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size",
		"n_shared_experts", "n_routed_experts", "num_attention_heads", "q_lora_rank", "kv_lora_rank",
		"qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}, sizeIsSane},
	{[]string{"num_key_value_heads", "num_attention_heads"}, latentHeadsAreEqual},
	{[]string{"qk_rope_head_dim"}, rotaryIsEven},
	{[]string{"num_experts_per_tok", "n_routed_experts"}, topKFitsExperts},
	{[]string{"hidden_act"}, activationIsSiLU},
}

var v2Rules = append([]rule{
	{[]string{"scoring_func", "n_routed_experts"}, scoringIsSoftmax},
	{[]string{"rope_interleave"}, pairsAreInterleaved},
	{[]string{"topk_method", "n_group", "topk_group", "n_routed_experts", "num_experts_per_tok"}, methodOfV2},
}, sharedMLARules...)

var v3Rules = append([]rule{
	{[]string{"scoring_func"}, scoringIsSigmoid},
	{[]string{"topk_method", "n_group", "topk_group", "n_routed_experts", "num_experts_per_tok"}, methodOfV3},
}, sharedMLARules...)

// readNoBias refuses mlp_bias true: no published model has it.
func readNoBias(d *decoding, key string, value jsontext.Value) {
	has, err := parseBoolean(value)
	if err == nil && has {
		err = fmt.Errorf("true: biases of the MLPs are not supported, no published model has them")
	}
	d.fail(key, err)
}

// readHeadDim refuses another head_dim than qk_rope_head_dim, which DeepseekV3Config sets it to:
// the stored one replaces that, DeepseekV3RotaryEmbedding makes its tables of that width, and
// apply_rotary_pos_emb fails.
func readHeadDim(d *decoding, key string, value jsontext.Value) {
	if value.Kind() == 'n' {
		return
	}
	n, err := parseInteger(value, 1, maxDim)
	if err == nil && d.valid("qk_rope_head_dim") && n != d.config.QKRopeHeadDim {
		err = fmt.Errorf("%d is not qk_rope_head_dim %d: the reference fails at RoPE's tables", n, d.config.QKRopeHeadDim)
	}
	d.fail(key, err)
}

// readAutoMap selects the remote reference for a checkpoint with its own code.
func readAutoMap(d *decoding, _ string, value jsontext.Value) {
	if value.Kind() == '{' {
		d.config.Reference = Remote
	}
}

// latentHeadsAreEqual: MLA expands the latent into keys for every head.
func latentHeadsAreEqual(c *Config) error {
	if c.NumKeyValueHeads != c.NumAttentionHeads {
		return fmt.Errorf("%d is not num_attention_heads %d, as latent attention demands", c.NumKeyValueHeads,
			c.NumAttentionHeads)
	}
	return nil
}

// rotaryIsEven: RoPE rotates pairs.
func rotaryIsEven(c *Config) error {
	if c.QKRopeHeadDim%2 != 0 {
		return fmt.Errorf("%d is odd: RoPE rotates pairs", c.QKRopeHeadDim)
	}
	return nil
}

// pairsAreInterleaved: DeepSeek-V2 has no other layout.
func pairsAreInterleaved(c *Config) error {
	if !c.RopeInterleave {
		return fmt.Errorf("false: DeepSeek-V2 rotates interleaved pairs")
	}
	return nil
}

// scoringIsSigmoid: DeepseekV3TopkRouter has no other.
func scoringIsSigmoid(c *Config) error {
	if c.ScoringFunc != "sigmoid" {
		return fmt.Errorf(`%s is not "sigmoid", the scoring function of DeepSeek-V3`, quote(c.ScoringFunc))
	}
	return nil
}

func methodOfV2(c *Config) error {
	switch c.TopKMethod {
	case "greedy":
		return nil
	case "group_limited_greedy":
		return groupsFit(c, 1)
	}
	return fmt.Errorf("%s is not greedy or group_limited_greedy, DeepSeek-V2's", quote(c.TopKMethod))
}

func methodOfV3(c *Config) error {
	if c.TopKMethod != "noaux_tc" {
		return fmt.Errorf("%s is not noaux_tc, DeepSeek-V3's", quote(c.TopKMethod))
	}
	return groupsFit(c, 2)
}

// groupsFit: experts fall into n_group equal groups of at least least experts, and topk_group
// groups hold enough experts for a token.
func groupsFit(c *Config, least int) error {
	n, g := c.NRoutedExperts, c.NGroup
	switch {
	case n == 0:
		return nil
	case g == 0 || c.TopKGroup == 0:
		return fmt.Errorf("%s needs n_group and topk_group", c.TopKMethod)
	case n%g != 0 || n/g < least:
		return fmt.Errorf("n_group %d does not divide n_routed_experts %d into groups of %d or more", g, n, least)
	case c.TopKGroup > g:
		return fmt.Errorf("topk_group %d is more than n_group %d", c.TopKGroup, g)
	case c.NumExpertsPerTok > c.TopKGroup*(n/g):
		return fmt.Errorf("num_experts_per_tok %d is more than topk_group %d groups of %d hold", c.NumExpertsPerTok,
			c.TopKGroup, n/g)
	}
	return nil
}
