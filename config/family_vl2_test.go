package config

import (
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestVL2: the language model of DeepSeek-VL2 has DeepSeek-V2's attention or plain one, and DeepSeek-V2's gate or
// DeepSeek-V3's.
func TestVL2(t *testing.T) {
	read := func(language, outer string) *Config {
		c, err := Parse(strings.NewReader(`{"model_type":"deepseek_vl_v2"` + outer + `,"language_config":{` + language + `}}`))
		require.NoError(t, err)
		return c
	}
	const plain = `"use_mla":false,"kv_lora_rank":null,"q_lora_rank":7,"qk_nope_head_dim":0,"qk_rope_head_dim":0,"v_head_dim":128`
	c := read(`"model_type":"deepseek_v2","topk_method":"noaux_tc","scoring_func":"sigmoid","n_routed_experts":72,`+
		`"num_experts_per_tok":6,"n_group":1,"topk_group":1,"norm_topk_prob":true,"routed_scaling_factor":2.0,"q_lora_rank":null`, "")
	normalise, scale := c.TopKWeights()
	assert.True(t, normalise)
	assert.EqualValues(t, 2, scale, "it is normalised and scaled")
	assert.True(t, c.LatentAttention())
	assert.Equal(t, 30, c.NumHiddenLayers, "the published class's own defaults")
	assert.Equal(t, "language.", c.Prefix())
	c = read(plain, `,"architectures":["DeepseekOCRForCausalLM"]`)
	assert.False(t, c.LatentAttention())
	assert.False(t, c.RoPE.RopeInterleave)
	assert.Equal(t, []int{128, 128, 128}, []int{c.HeadDim(), c.QKHeadDim(), c.ValueHeadDim()})
	assert.Zero(t, c.Attention.QLoraRank)
	assert.Empty(t, c.Prefix())
	assert.Equal(t, "language_config", c.Within())
	for language, want := range map[string]string{
		`"model_type":"llama"`:                         `language_config.model_type: "llama" is not one of deepseek_v2`,
		`"n_routed_experts":8,"num_experts_per_tok":2`: `language_config.topk_method: "gready" is not greedy or group_limited_greedy, DeepSeek-V2's`,
		`"scoring_func":"tanh","topk_method":"greedy","n_routed_experts":8,"num_experts_per_tok":2`:        `language_config.scoring_func: "tanh" is not "softmax"`,
		`"topk_method":"noaux_tc","n_routed_experts":8,"num_experts_per_tok":2,"n_group":4,"topk_group":2`: "language_config.topk_method: noaux_tc with topk_group 2 of n_group 4",
		`"v_head_dim":0`:                    "language_config.kv_lora_rank: 512, qk_nope_head_dim 128, qk_rope_head_dim 64, v_head_dim 0: without use_mla false all of them are 1 or more",
		`"use_mla":"no"`:                    `language_config.use_mla: "no" is not true or false`,
		plain + `,"num_attention_heads":31`: "language_config.kv_lora_rank: 4096 is not divisible by num_attention_heads 31",
		plain + `,"rope_scaling":{"type":"yarn","factor":2,"original_max_position_embeddings":64}`: "language_config.kv_lora_rank: use_mla is false with rope_scaling ",
	} {
		got := problems(t, `{"model_type":"deepseek_vl_v2","language_config":{`+language+`}}`)
		require.NotEmpty(t, got, language)
		assert.Contains(t, got[0].String(), want)
	}
	const twice = `{"model_type":"deepseek_vl_v2","architectures":["DeepseekOCRForCausalLM"],"hidden_size":64,"other":1,` +
		`"language_config":{"use_mla":false,"hidden_size":64}}`
	c, err := Parse(strings.NewReader(twice))
	require.NoError(t, err)
	c, err = c.Override(map[string]jsontext.Value{"hidden_size": jsontext.Value("128")})
	require.NoError(t, err, "both are changed")
	assert.Equal(t, 128, c.HiddenSize)
	assert.Equal(t, "language_config.hidden_size: 64; config.json itself says 63",
		problems(t, strings.Replace(twice, "64", "63", 1))[0].String())
	assert.Equal(t, "language_config.vocab_size: missing; config.json itself says 5",
		problems(t, strings.Replace(twice, `"other":1`, `"vocab_size":5`, 1))[0].String())
	assert.Contains(t, problems(t, `{"model_type":"deepseek_vl_v2"}`)[0].String(), "language_config: is not an object")
}
