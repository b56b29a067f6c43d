package gguf

import (
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/convert/format"
	"dsmoe/model/tensor"
)

// TestWindowedRefusals: a DeepSeek-V4 that llama.cpp does not load is refused with the reason.
func TestWindowedRefusals(t *testing.T) {
	for key, x := range map[string]struct{ value, cause string }{
		"hc_mult":                  {"2", "hc_mult is 2: llama.cpp's deepseek4 has 4 streams"},
		"compress_rates":           {`{"compressed_sparse_attention": 4, "heavily_compressed_attention": 8}`, "layer 1 compresses 8 tokens"},
		"mlp_layer_types":          {`["moe", "hash_moe", "moe"]`, "layer 1 chooses experts by the token, and a layer before it does not"},
		"tie_word_embeddings":      {"true", "demands a head"},
		"num_nextn_predict_layers": {"1", "leave out --mtp"},
	} {
		c := configtest.Fixture(t, "v4-gguf/checkpoint")
		edits := map[string]jsontext.Value{"num_nextn_predict_layers": jsontext.Value("0")}
		edits[key] = jsontext.Value(x.value)
		c, err := c.Override(edits)
		require.NoError(t, err, key)
		reasons := unsayable(c)
		require.Len(t, reasons, 1, key)
		require.Contains(t, reasons[0], x.cause)
	}
}

// TestWindowedKeys: the config comes back from the keys, with the rates of prediction layers; wrong and missing keys
// are errors.
func TestWindowedKeys(t *testing.T) {
	f := fileOf(t, "v4-gguf", tensor.BF16)
	made, wrong := f.assembled(t)
	require.Empty(t, wrong)
	for _, member := range []string{`"compress_ratios": [4, 128, 0, 0]`, `"num_hash_layers": 1`, `"swiglu_limit": 10.0`, `"head_dim": 64`,
		`"scoring_func": "sqrtsoftplus"`, `"compress_rope_theta": 160000.0`, `"hc_eps": 1e-06`,
		`{"type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0}`} {
		require.Contains(t, string(made.Config), member)
	}
	for key, cause := range map[string]string{clampExperts: "keys are missing: deepseek4.swiglu_clamp_exp", keyLength: "keys are missing",
		gatingFunc: "0 is a gating function that this architecture does not have", compressRatios: "keys are missing: deepseek4.attention.compress_ratios"} {
		_, wrong := fileOf(t, "v4-gguf", tensor.BF16).without(t, key).assembled(t)
		require.NotEmpty(t, wrong, key)
		require.Contains(t, wrong[0].Cause, cause, key)
	}
	for key, x := range map[string]struct {
		value any
		cause string
	}{
		streamsWidth:   {uint32(64), "embedding_length_out: 64, but the other keys make it "},
		weightsNorm:    {false, "expert_weights_norm: false, but this architecture normalises the weights of experts"},
		clampShared:    {[]float32{1, 1, 1, 1}, "swiglu_clamp_shexp: 1, but that of routed experts is "},
		nextnLayers:    {uint32(1), "1: this reads no prediction layers of deepseek4"},
		valueLength:    {uint32(32), "32, but keys are values"},
		clampExperts:   {[]float32{10, 9, 10}, "differs from layer to layer"},
		compressRatios: {[]int32{4, 64, 0}, "64 is not 0, 4 or 128"},
		gatingFunc:     {gatings[sigmoid], "2 is a gating function that this architecture does not have"},
	} {
		_, wrong := fileOf(t, "v4-gguf", tensor.BF16).with(t, key, x.value).assembled(t)
		require.NotEmpty(t, wrong, key)
		require.Contains(t, wrong[0].Cause, x.cause, key)
	}
}

// TestWindowedMixture: of the mixtures DeepSeek-V4 has one.
func TestWindowedMixture(t *testing.T) {
	f := fileOf(t, "v4-gguf", tensor.BF16)
	_, wrong := arrange(f.config, nil, "q4_k_m")
	require.Contains(t, wrong[0].Cause, "--type q4_k_m: this writes DeepSeek-V4 as llama.cpp's converter does, q8_0")
	_, wrong = arrange(f.config, nil, "q8_0")
	require.Empty(t, wrong)
	d := format.Description{NoVocab: true, Config: f.config, Type: "q8_0", Tensors: f.tensors}
	require.Equal(t, fileTypes["q8_0"], fileType(d)) // without an expert in MXFP4
	d.Tensors = append(d.Tensors, tensor.Info{Name: "x", DType: tensor.MXFP4, Shape: []int{32}})
	require.Equal(t, fileTypes["mxfp4"], fileType(d))
}
