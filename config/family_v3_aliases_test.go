package config

import (
	"os"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestLayerTypes: GLM-4.7-Flash says by mlp_layer_types which layers are dense; its published file says it by
// first_k_dense_replace, which the reference ignores.
func TestLayerTypes(t *testing.T) {
	const glm = `{"model_type":"glm4_moe_lite","num_hidden_layers":4`
	for name, test := range map[string]struct {
		keys  string
		dense int
	}{
		"default":         {"", 1},
		"null":            {`,"mlp_layer_types":null`, 1},
		"said again":      {`,"first_k_dense_replace":1`, 1},
		"none dense":      {`,"mlp_layer_types":["sparse","sparse","sparse","sparse"],"first_k_dense_replace":0`, 0},
		"two dense":       {`,"mlp_layer_types":["dense","dense","sparse","sparse"]`, 2},
		"all dense":       {`,"mlp_layer_types":["dense","dense","dense","dense"]`, 4},
		"of more layers":  {`,"mlp_layer_types":["dense","sparse","sparse","sparse","sparse"]`, 1},
		"the order of it": {`,"first_k_dense_replace":2,"mlp_layer_types":["dense","dense","sparse","sparse"]`, 2},
	} {
		c := parse(t, glm+test.keys+"}")
		for l := range 4 {
			assert.Equal(t, l >= test.dense, c.IsMoE(l), "%s: layer %d", name, l)
		}
	}
	for name, test := range map[string]struct{ keys, want string }{
		"contradicts":    {`,"first_k_dense_replace":3`, "first_k_dense_replace: 3; mlp_layer_types, by which the reference goes, says 1 (without it: the first layer)"},
		"other order":    {`,"mlp_layer_types":["sparse","dense","sparse","sparse"]`, "mlp_layer_types: layer 1 is dense and layer 0 before it is not: no published model has this order, and it is not supported"},
		"unknown":        {`,"mlp_layer_types":["dense","moe","sparse","sparse"]`, `mlp_layer_types: layer 1: "moe" is neither dense nor sparse`},
		"too few":        {`,"mlp_layer_types":["dense"]`, "mlp_layer_types: 1 layers; num_hidden_layers is 4"},
		"not a list":     {`,"mlp_layer_types":"dense"`, "mlp_layer_types: not a list of names, nor null"},
		"frequency":      {`,"moe_layer_freq":2`, "moe_layer_freq: 2 is not in 1..1"},
		"partial rotary": {`,"partial_rotary_factor":0.5`, "partial_rotary_factor: 0.5: only 1, the whole of qk_rope_head_dim, is supported"},
		"softmax":        {`,"scoring_func":"softmax"`, `scoring_func: "softmax" is not "sigmoid", the scoring function of DeepSeek-V3`},
	} {
		got := problems(t, glm+test.keys+"}")
		require.NotEmpty(t, got, name)
		assert.Equal(t, test.want, got[0].String(), name)
	}
}

// TestPublishedSpellingOfGLM: the published file and transformers' say the same.
func TestPublishedSpellingOfGLM(t *testing.T) {
	read := func(path string) Config {
		text, err := os.ReadFile("../fixtures/glm4-moe-lite/" + path)
		require.NoError(t, err)
		c := parse(t, string(text))
		c.doc = nil
		return c
	}
	assert.Equal(t, read("checkpoint/config.json"), read("config-published.json"))
}

// TestKimiK2 has DeepSeek-V3's defaults, and its references.
func TestKimiK2(t *testing.T) {
	kimi, v3 := parse(t, `{"model_type":"kimi_k2","auto_map":{}}`), parse(t, `{"model_type":"deepseek_v3","auto_map":{}}`)
	assert.Equal(t, v3.Rules(), kimi.Rules())
	assert.Equal(t, Remote, kimi.Reference)
	different := Differences(&v3, &kimi)
	require.Len(t, different, 1)
	assert.Equal(t, "model_type", different[0].Key)
	assert.False(t, different[0].Meaning, "the same network")
}

// TestKimiK25: the language model's configuration is an object of config.json.
func TestKimiK25(t *testing.T) {
	const outer = `{"model_type":"kimi_k25","dtype":"bfloat16","text_config":`
	c, err := Parse(strings.NewReader(outer + `{"model_type":"kimi_k2","num_hidden_layers":3},"hidden_size":7}`))
	require.NoError(t, err)
	assert.Equal(t, "kimi_k2", c.ModelType)
	assert.Equal(t, 3, c.NumHiddenLayers)
	assert.Equal(t, 7168, c.HiddenSize, "keys around it are not the language model's")
	assert.Equal(t, "bfloat16", c.TorchDType)
	assert.Equal(t, "language_model.", c.Prefix())
	changed, err := c.Override(map[string]jsontext.Value{"num_hidden_layers": jsontext.Value("2")})
	require.NoError(t, err)
	assert.Equal(t, 2, changed.NumHiddenLayers)
	assert.Equal(t, "language_model.", changed.Prefix())
	assert.Equal(t, 3, c.NumHiddenLayers)
	assert.Contains(t, string(changed.JSON()), `"hidden_size": 7`)
	for text, want := range map[string]string{
		`null`:                                 "text_config: is not an object with the language model's configuration",
		`{}`:                                   "text_config.model_type: missing" + supported(),
		`{"model_type":"kimi_k25"}`:            `text_config.model_type: "kimi_k25"` + supported(),
		`{"model_type":"kimi_k2","a":1,"a":2}`: `key "a" appears twice at byte`,
	} {
		got := problems(t, outer+text+"}")
		require.NotEmpty(t, got, text)
		assert.Contains(t, got[0].String(), want)
	}
}

// TestQuantizationBeside: quantization_config may stand around the language model's configuration, with its names or
// with the checkpoint's, or say the same in both places.
func TestQuantizationBeside(t *testing.T) {
	const fp8 = `"quantization_config":{"quant_method":"fp8","weight_block_size":[64,32],"modules_to_not_convert":["language_model.lm_head","model.layers.0"]}`
	of := func(inner, outer string) string {
		return `{"model_type":"kimi_k25","text_config":{"model_type":"kimi_k2"` + inner + `}` + outer + `}`
	}
	for _, text := range []string{of("", ","+fp8), of(","+fp8, ""), of(","+fp8, ", "+strings.ReplaceAll(fp8, ",", " ,\n")), of(","+fp8, `,"quantization_config":null`)} {
		c, err := Parse(strings.NewReader(text))
		require.NoError(t, err, text)
		assert.Equal(t, [2]int{64, 32}, c.Quantization.Block)
		assert.True(t, c.StaysUnquantised("lm_head"))
		assert.True(t, c.StaysUnquantised("model.layers.0.mlp.gate_proj"))
		assert.False(t, c.StaysUnquantised("model.layers.1.mlp.gate_proj"))
	}
	assert.Equal(t, "text_config.quantization_config: is not what config.json itself has there; leave out the wrong one",
		problems(t, of(","+fp8, ","+strings.Replace(fp8, "64", "128", 1)))[0].String())
	assert.Contains(t, problems(t, of("", `,"quantization_config":{"quant_method":"x"}`))[0].String(), "quantization_config.quant_method")
	assert.NotContains(t, problems(t, of("", `,"quantization_config":{"quant_method":"x"}`))[0].String(), "text_config")
}

// TestSarvamMLA: other names of keys, a head_dim that the reference does not read, and a name of YaRN.
func TestSarvamMLA(t *testing.T) {
	sarvam, err := Parse(strings.NewReader(`{"model_type":"sarvam_mla","head_dim":576,"auto_map":{},"num_experts":64,
		"rope_scaling":{"type":"deepseek_yarn","factor":40,"original_max_position_embeddings":4096}}`))
	require.NoError(t, err)
	assert.Equal(t, []any{64, 64, 0, "yarn", Native, "num_experts"}, []any{sarvam.MoE.NRoutedExperts,
		sarvam.Attention.NumKeyValueHeads, sarvam.Attention.QLoraRank, sarvam.RoPE.RopeScaling.Type, sarvam.Reference,
		sarvam.Key("n_routed_experts")})
}

// TestAXK1: without mlp_layer_types first_k_dense_replace says which layers are dense; experts are chosen by the scores.
func TestAXK1(t *testing.T) {
	const axk1 = `{"model_type":"axk1","num_hidden_layers":3`
	c, v3 := parse(t, axk1+`,"first_k_dense_replace":2}`), parse(t, `{"model_type":"deepseek_v3"}`)
	assert.Equal(t, []int{2}, c.MoELayers())
	c = parse(t, axk1+`,"mlp_layer_types":["dense","sparse","sparse"],"auto_map":{}}`)
	assert.Equal(t, []int{1, 2}, c.MoELayers())
	assert.Equal(t, Native, c.Reference)
	assert.False(t, c.ChoosesByBias())
	assert.True(t, v3.ChoosesByBias())
	for _, d := range Differences(&c, &v3) {
		if d.Key == "model_type" {
			assert.True(t, d.Meaning, "another network")
		}
	}
	for keys, want := range map[string]string{
		`,"q_lora_rank":null`: "q_lora_rank: ",
		`,"first_k_dense_replace":2,"mlp_layer_types":["dense","sparse","sparse"]`: "first_k_dense_replace: 2; mlp_layer_types",
		`,"num_nextn_predict_layers":1`:                                            "num_nextn_predict_layers: 1 is not in 0..0",
	} {
		assert.Contains(t, problems(t, axk1+keys+"}")[0].String(), want)
	}
}
