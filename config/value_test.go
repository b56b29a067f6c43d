package config

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestValue(t *testing.T) {
	v2, err := Parse(strings.NewReader(`{"model_type":"deepseek_v2","hidden_size":64,"num_attention_heads":4,"num_key_value_heads":null,
		"q_lora_rank":null,"routed_scaling_factor":1.5,"attention_bias":true,"topk_method":"greedy","num_experts_per_tok":2,"n_shared_experts":null,"unknown":1}`))
	require.NoError(t, err)
	for key, want := range map[string]string{
		"hidden_size":              "64",
		"num_key_value_heads":      "4",
		"kv_lora_rank":             "512",
		"q_lora_rank":              "null",
		"n_shared_experts":         "null",
		"num_nextn_predict_layers": "0",
		"routed_scaling_factor":    "1.5",
		"attention_bias":           "true",
		"topk_method":              `"greedy"`,
		"torch_dtype":              "",
		"rope_scaling":             "",
		"unknown":                  "",
	} {
		assert.Equal(t, want, string(v2.Value(key)), key)
	}
	v1, err := Parse(strings.NewReader(`{"model_type":"deepseek"}`))
	require.NoError(t, err)
	assert.Nil(t, v1.Value("kv_lora_rank"), "a key of another family")
	assert.Nil(t, new(Config).Value("hidden_size"), "no family")
}
