package config

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// v4JSON is a tiny model as it is published: rates of layers, the prediction layer's last, and a rope_scaling.
const v4JSON = `{"model_type": "deepseek_v4", "num_hidden_layers": 4, "compress_ratios": [0, 4, 128, 4, 0],
	"num_hash_layers": 2, "head_dim": 16, "qk_rope_head_dim": 8, "index_head_dim": 12,
	"rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 64}}`

func parseV4(t *testing.T, edits ...string) (*Config, error) {
	t.Helper()
	return Parse(strings.NewReader(strings.NewReplacer(edits...).Replace(v4JSON)))
}

// TestV4: the types of layers, rates and the two ropes; the keys of transformers 5 say the same.
func TestV4(t *testing.T) {
	published, err := parseV4(t)
	require.NoError(t, err)
	native, err := parseV4(t, `"compress_ratios": [0, 4, 128, 4, 0]`, `"layer_types": ["sliding_attention",
		"compressed_sparse_attention", "heavily_compressed_attention", "compressed_sparse_attention"]`,
		`"num_hash_layers": 2`, `"mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe"]`,
		`"qk_rope_head_dim": 8`, `"partial_rotary_factor": 0.5`,
		`"rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 64}`,
		`"rope_parameters": {"main": {"rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.5},
		"compress": {"rope_type": "yarn", "type": "yarn", "factor": 16, "original_max_position_embeddings": 64,
		"attention_factor": 1.0, "rope_theta": 160000, "partial_rotary_factor": 0.5}}`)
	require.NoError(t, err)
	assert.Empty(t, Differences(published, native))
	for _, c := range []*Config{published, native} {
		assert.Equal(t, []int{0, 4, 128, 4, 0}, []int{c.CompressRate(0), c.CompressRate(1), c.CompressRate(2),
			c.CompressRate(3), c.CompressRate(4)})
		assert.Equal(t, []bool{true, true, false, false, false}, []bool{c.Hashes(0), c.Hashes(1), c.Hashes(2), c.Hashes(3),
			c.Hashes(4)})
		assert.Equal(t, []int{-1, 1, -1, 3}, []int{c.IndexerOf(0), c.IndexerOf(1), c.IndexerOf(2), c.IndexerOf(3)})
		assert.Equal(t, [4]int{8, 8, 16, 16}, [4]int{c.HeadDim(), c.Attention.QKNopeHeadDim, c.QKHeadDim(), c.ValueHeadDim()})
		assert.Nil(t, c.RoPE.RopeScaling)
		assert.Equal(t, 16., c.RoPE.CompressRopeScaling.Factor)
		assert.Equal(t, [2]float64{10000, 160000}, [2]float64{c.RoPE.RopeTheta, c.RoPE.CompressRopeTheta})
		assert.False(t, c.LimitsGroups())
	}
	other, err := parseV4(t, `[0, 4, 128, 4, 0]`, `[0, 4, 4, 4, 0]`)
	require.NoError(t, err)
	differences := Differences(published, other)
	require.Len(t, differences, 1)
	assert.Equal(t, "layer_types", differences[0].Key)
	assert.True(t, differences[0].Meaning)
}

// TestV4Defaults: what transformers' class has without the keys. rms_norm_eps may be far below float32's own.
func TestV4Defaults(t *testing.T) {
	c, err := Parse(strings.NewReader(`{"model_type": "deepseek_v4", "rms_norm_eps": 1e-20, "norm_topk_prob": false,
		"topk_method": "none"}`))
	require.NoError(t, err)
	assert.Equal(t, []int{128, 128, 128, 4, 128, 4}, []int{c.CompressRate(0), c.CompressRate(1), c.CompressRate(2),
		c.CompressRate(3), c.CompressRate(4), c.CompressRate(5)})
	assert.Equal(t, []bool{true, true, true, false}, []bool{c.Hashes(0), c.Hashes(1), c.Hashes(2), c.Hashes(3)})
	assert.Equal(t, [2]int{64, 512}, [2]int{c.Attention.QKRopeHeadDim, c.Attention.VHeadDim})
	normalise, scale := c.TopKWeights()
	assert.True(t, normalise)
	assert.Equal(t, 1.5, scale)
}

// TestV4Refused: what the reference fails at, or computes in another way, all at once.
func TestV4Refused(t *testing.T) {
	for cause, edits := range map[string][]string{
		"compress_ratios: layer 2: 8 is not 0, 4 or 128":         {"128", "8"},
		"num_hidden_layers: 4; attention has types for 3 layers": {"[0, 4, 128, 4, 0]", "[0, 4, 128]"},
		"layer 1 has compressed_sparse_attention, which compress_rates": {
			`"head_dim": 16`,
			`"head_dim": 16, "compress_rates": {"heavily_compressed_attention": 8}`},
		"qk_rope_head_dim: 7 of head_dim 16: RoPE rotates pairs": {
			`"qk_rope_head_dim": 8`,
			`"qk_rope_head_dim": 7`},
		"partial_rotary_factor: 0.25 of head_dim 16 is 4; qk_rope_head_dim is 8": {
			`"head_dim": 16`,
			`"head_dim": 16, "partial_rotary_factor": 0.25`},
		"num_key_value_heads: 4 is not in 1..1": {
			`"head_dim": 16`,
			`"head_dim": 16, "num_key_value_heads": 4`},
		"o_groups: 3 does not divide num_attention_heads 64": {
			`"head_dim": 16`,
			`"head_dim": 16, "o_groups": 3`},
		`scoring_func: "sigmoid" is not "sqrtsoftplus"`: {
			`"head_dim": 16`,
			`"head_dim": 16, "scoring_func": "sigmoid"`},
		"rope_scaling: mscale and mscale_all_dim are not read": {
			`"factor": 16`,
			`"factor": 16, "mscale": 1`},
		"intermediate_size: 9; the reference takes it for moe_intermediate_size": {
			`"head_dim": 16`,
			`"head_dim": 16, "intermediate_size": 9, "moe_intermediate_size": 8`},
		"expert_dtype: \"int8\" is not one of fp4, fp8": {
			`"head_dim": 16`,
			`"head_dim": 16, "expert_dtype": "int8"`},
		"expert_dtype: \"fp8\" disagrees with quantization_config.expert_dtype \"fp4\"": {
			`"head_dim": 16`,
			`"head_dim": 16, "expert_dtype": "fp8", "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128],
				"expert_dtype": "fp4"}`},
		"index_head_dim: 12 is less than qk_rope_head_dim 16": {
			`"qk_rope_head_dim": 8`,
			`"qk_rope_head_dim": 16`},
		"rope_parameters.compress.attention_factor: missing: the reference would": {
			`"rope_scaling": {`,
			`"rope_parameters": {"main": {"rope_type": "default", "rope_theta": 10000,
				"partial_rotary_factor": 0.5}, "compress": {"rope_type": "yarn", "factor": 16,
				"original_max_position_embeddings": 64, "rope_theta": 160000,
				"partial_rotary_factor": 0.5}}, "rope_scaling": {`},
		"mlp_layer_types: layer 1: \"dense\" is not one of hash_moe, moe": {
			`"head_dim": 16`,
			`"head_dim": 16, "mlp_layer_types": ["moe", "dense", "moe", "moe"]`},
		"rope_parameters.main.rope_theta: 5 disagrees with rope_theta 10000": {
			`"head_dim": 16`,
			`"head_dim": 16, "rope_theta": 10000, "rope_parameters": {"main": {"rope_theta": 5,
				"partial_rotary_factor": 0.5}, "compress": {"rope_theta": 160000,
				"partial_rotary_factor": 0.5}}`},
		"rope_parameters.compress.partial_rotary_factor: 1 of head_dim 16 is 16": {
			`"head_dim": 16`,
			`"head_dim": 16, "rope_parameters": {"main": {"rope_theta": 5, "partial_rotary_factor": 0.5},
				"compress": {"rope_theta": 160000, "partial_rotary_factor": 1}}`},
	} {
		_, err := parseV4(t, edits...)
		assert.ErrorContains(t, err, cause)
	}
}
