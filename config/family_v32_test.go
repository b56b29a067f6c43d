package config

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestIndexers: which layer's indexer chooses for each layer, as GlmMoeDsaConfig decides it.
func TestIndexers(t *testing.T) {
	const glm = `{"model_type":"glm_moe_dsa","num_hidden_layers":6`
	for name, test := range map[string]struct {
		keys string
		want []int
	}{
		"default":         {"", []int{0, 1, 2, 3, 4, 5}},
		"types":           {`,"indexer_types":["full","shared","full","shared","shared","full"]`, []int{0, 0, 2, 2, 2, 5}},
		"of more layers":  {`,"indexer_types":["full","full","full","full","full","full","shared"]`, []int{0, 1, 2, 3, 4, 5}},
		"pattern":         {`,"index_topk_pattern":"FSSFSF"`, []int{0, 0, 0, 3, 3, 5}},
		"list":            {`,"index_topk_pattern":["full","shared","full","full","full","full"]`, []int{0, 0, 2, 3, 4, 5}},
		"frequency":       {`,"index_topk_freq":2`, []int{0, 1, 1, 3, 3, 5}},
		"offset":          {`,"index_topk_freq":3,"index_skip_topk_offset":1`, []int{0, 0, 0, 3, 3, 3}},
		"types rule":      {`,"indexer_types":["full","full","full","full","full","shared"],"index_topk_freq":2`, []int{0, 1, 2, 3, 4, 4}},
		"pattern is null": {`,"index_topk_pattern":null,"indexer_types":null`, []int{0, 1, 2, 3, 4, 5}},
	} {
		c := parse(t, glm+test.keys+"}")
		assert.Equal(t, test.want, c.row("indexer_types").value(&c), name)
		assert.Equal(t, 6, c.IndexerOf(6), "%s: prediction layers have their own", name)
	}
	for name, test := range map[string]struct{ keys, want string }{
		"first shared":  {`,"indexer_types":["shared","full","full","full","full","full"]`, "indexer_types: layer 0 shares the choice of an indexer before it, and there is none"},
		"too few":       {`,"index_topk_pattern":"FS"`, "index_topk_pattern: 2 layers; num_hidden_layers is 6"},
		"unknown":       {`,"index_topk_pattern":"FSSFSX"`, `index_topk_pattern: layer 5: "X" is neither full nor shared`},
		"halves":        {`,"indexer_rope_interleave":false`, "indexer_rope_interleave: false: the reference rotates interleaved pairs"},
		"no rank":       {`,"q_lora_rank":null`, "q_lora_rank: null: the indexer reads queries of this rank"},
		"narrow":        {`,"index_head_dim":32`, "index_head_dim: 32 is less than qk_rope_head_dim 64"},
		"no indexer":    {`,"index_topk":0`, "index_topk: 0 is not in 1..16777216"},
		"other layers":  {`,"layer_types":["indexed_attention","sliding_attention"]`, `layer_types: layer 1: "sliding_attention" is not indexed_attention`},
		"other dense":   {`,"mlp_layer_types":["dense","sparse","sparse","sparse","sparse","sparse"],"first_k_dense_replace":3`, "first_k_dense_replace: 3; mlp_layer_types, by which the reference goes, says 1 (without it: the first layer)"},
		"too many":      {`,"index_n_heads":16777216,"index_head_dim":16777216`, ""},
		"bad frequency": {`,"index_topk_freq":-1`, "index_topk_freq: -1 is not in 0..10000"},
	} {
		got := problems(t, glm+test.keys+"}")
		require.NotEmpty(t, got, name)
		if test.want != "" {
			assert.Equal(t, test.want, got[0].String(), name)
		}
	}
}

// TestDenseLayersOfIndexedModels: mlp_layer_types, or first_k_dense_replace without it.
func TestDenseLayersOfIndexedModels(t *testing.T) {
	for keys, want := range map[string]int{"": 3, `,"first_k_dense_replace":1`: 1, `,"first_k_dense_replace":2,"mlp_layer_types":null`: 2,
		`,"mlp_layer_types":["dense","dense","sparse","sparse"]`: 2} {
		c := parse(t, `{"model_type":"deepseek_v32","num_hidden_layers":4`+keys+"}")
		assert.Equal(t, want, c.Layers.FirstKDenseReplace, keys)
	}
	c := parse(t, `{"model_type":"deepseek_v32","num_experts":128,"auto_map":{}}`)
	assert.Equal(t, 128, c.MoE.NRoutedExperts)
	assert.Equal(t, Native, c.Reference, "there is no other")
}

// TestWithRules: a config has other rules, and the fields that it had; another reference has its own.
func TestWithRules(t *testing.T) {
	v32 := parse(t, `{"model_type":"deepseek_v32"}`)
	glm := v32.WithRules(func(r *Rules) { r.RoPE.IndexerInterleaves = true })
	assert.True(t, glm.Rules().RoPE.IndexerInterleaves)
	assert.False(t, v32.Rules().RoPE.IndexerInterleaves)
	assert.Equal(t, v32.Rules().Router.NormTopK, glm.Rules().Router.NormTopK)
	again, err := glm.As(Native)
	require.NoError(t, err)
	assert.Equal(t, v32, *again)
}
