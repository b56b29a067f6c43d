package config

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/text/problem"
)

// parse parses text and drops the document, so that fields can be compared.
func parse(t *testing.T, text string) Config {
	t.Helper()
	c, err := Parse(strings.NewReader(text))
	require.NoError(t, err)
	fields := *c
	fields.doc = nil
	return fields
}

// fieldsOf is parse without the family, whose rules are not compared.
func fieldsOf(t *testing.T, text string) Config {
	c := parse(t, text)
	c.family = nil
	return c
}

func TestDefaults(t *testing.T) {
	assert.Equal(t, Config{
		ModelType: "deepseek", VocabSize: 102400, HiddenSize: 4096, IntermediateSize: 11008, NumHiddenLayers: 30,
		HiddenAct: "silu", InitializerRange: 0.02, RMSNormEps: 1e-6, PretrainingTP: 1, Reference: Remote,
		MoE:       MoE{MoEIntermediateSize: 1407},
		Attention: Attention{NumAttentionHeads: 32, NumKeyValueHeads: 32},
		Layers:    Layers{MoELayerFreq: 1},
		Router:    Router{ScoringFunc: "softmax", AuxLossAlpha: 0.001, SeqAux: true, RoutedScalingFactor: 1},
		RoPE:      RoPE{MaxPositionEmbeddings: 2048, RopeTheta: 10000},
	}, fieldsOf(t, `{"model_type":"deepseek"}`))
}

// fixture is what the small fixtures share; a case changes what is its point.
func fixture(change func(*Config)) Config {
	c := Config{
		ModelType: "deepseek", VocabSize: 256, HiddenSize: 64, IntermediateSize: 160, NumHiddenLayers: 3, HiddenAct: "silu",
		InitializerRange: 0.02, RMSNormEps: 1e-6, PretrainingTP: 1, TorchDType: "bfloat16", Reference: Remote,
		MoE:       MoE{MoEIntermediateSize: 24, NSharedExperts: 2, NRoutedExperts: 16, NumExpertsPerTok: 4},
		Attention: Attention{NumAttentionHeads: 4, NumKeyValueHeads: 4},
		Layers:    Layers{MoELayerFreq: 1, FirstKDenseReplace: 1},
		Router:    Router{ScoringFunc: "softmax", AuxLossAlpha: 0.001, SeqAux: true, RoutedScalingFactor: 1},
		RoPE:      RoPE{MaxPositionEmbeddings: 128, RopeTheta: 10000},
	}
	change(&c)
	return c
}

// v1Fixtures holds the configuration of every config.json under fixtures/.
var v1Fixtures = map[string]Config{
	"v1-base/checkpoint": fixture(func(c *Config) { c.NumHiddenLayers = 4 }),
	"v1-trained/checkpoint": fixture(func(c *Config) {
		c.NumHiddenLayers, c.HiddenSize, c.IntermediateSize, c.MoE.MoEIntermediateSize, c.MoE.NRoutedExperts = 4, 192, 448,
			32, 24
		c.Attention.NumAttentionHeads, c.Attention.NumKeyValueHeads, c.RoPE.MaxPositionEmbeddings,
			c.Router.AuxLossAlpha = 6, 6, 1024, 0.003
	}),
	"v1-dense/checkpoint": fixture(func(c *Config) {
		c.NumHiddenLayers, c.Layers.FirstKDenseReplace = 2, 0
		c.MoE.NSharedExperts, c.MoE.NRoutedExperts, c.MoE.NumExpertsPerTok = 0, 0, 0
	}),
	"v1-freq3-first2/checkpoint": fixture(func(c *Config) {
		c.NumHiddenLayers, c.MoE.NumExpertsPerTok, c.Layers.MoELayerFreq, c.Layers.FirstKDenseReplace = 8, 2, 3, 2
	}),
	"v1-gqa-norm-freq2/checkpoint": fixture(func(c *Config) {
		c.NumHiddenLayers, c.Attention.NumKeyValueHeads, c.Layers.MoELayerFreq, c.Layers.FirstKDenseReplace = 5, 2, 2, 0
		c.Router.NormTopKProb, c.TorchDType = true, "float32"
	}),
	"v1-rope-dynamic/checkpoint": fixture(func(c *Config) {
		c.RoPE.MaxPositionEmbeddings, c.RoPE.RopeScaling = 32, &RopeScaling{Type: "dynamic", Factor: 2}
	}),
	"v1-rope-linear-tied-bias/checkpoint": fixture(func(c *Config) {
		c.TieWordEmbeddings, c.Attention.AttentionBias, c.RoPE.RopeScaling = true, true, &RopeScaling{Type: "linear",
			Factor: 4}
	}),
	"v1-router-ties/checkpoint": fixture(func(c *Config) {}),
	"v1-top1-noshared/checkpoint": fixture(func(c *Config) {
		c.MoE.NSharedExperts, c.MoE.NRoutedExperts, c.MoE.NumExpertsPerTok, c.Layers.FirstKDenseReplace = 0, 8, 1, 0
		c.Router.NormTopKProb, c.TorchDType = true, "float16"
	}),
	"v1-f16/checkpoint": fixture(func(c *Config) { c.TorchDType = "float16" }),
	"v1-massive/checkpoint": fixture(func(c *Config) {
		c.VocabSize, c.HiddenSize, c.IntermediateSize, c.NumHiddenLayers = 64, 128, 128, 2
		c.MoE.NSharedExperts, c.MoE.NRoutedExperts, c.MoE.NumExpertsPerTok = 1, 6, 2
	}),
	"v1-bf16-wide/checkpoint": fixture(func(c *Config) {
		widen16B(c, 512, 1)
		c.MoE.MoEIntermediateSize = 24
		c.MoE.NSharedExperts, c.MoE.NRoutedExperts, c.MoE.NumExpertsPerTok, c.Layers.FirstKDenseReplace = 0, 0, 0, 0
	}),
	"v1-16b-slice/checkpoint": fixture(func(c *Config) { widen16B(c, 4096, 3) }),
	"states/deepseek-moe-16b": fixture(func(c *Config) { widen16B(c, 102400, 28) }),
}

// widen16B gives c the widths of DeepSeekMoE-16B.
func widen16B(c *Config, vocab, layers int) {
	c.VocabSize, c.NumHiddenLayers, c.RoPE.MaxPositionEmbeddings = vocab, layers, 4096
	c.HiddenSize, c.IntermediateSize, c.MoE.MoEIntermediateSize = 2048, 10944, 1408
	c.Attention.NumAttentionHeads, c.Attention.NumKeyValueHeads, c.MoE.NRoutedExperts, c.MoE.NumExpertsPerTok = 16, 16,
		64, 6
}

// fixtureFiles returns the V1 config.json files under fixtures/ by directory.
func fixtureFiles(t testing.TB) map[string]string {
	files := map[string]string{}
	for _, pattern := range []string{"v1-*/checkpoint", "states/deepseek-moe-*"} {
		paths, err := filepath.Glob(filepath.Join("../fixtures", pattern, "config.json"))
		require.NoError(t, err)
		for _, path := range paths {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			name, err := filepath.Rel("../fixtures", filepath.Dir(path))
			require.NoError(t, err)
			files[filepath.ToSlash(name)] = string(text)
		}
	}
	return files
}

func TestFixtures(t *testing.T) {
	files := fixtureFiles(t)
	for name, want := range v1Fixtures {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, files, name)
			assert.Equal(t, want, fieldsOf(t, files[name]))
		})
	}
	for name := range files {
		assert.Contains(t, v1Fixtures, name, "a fixture without an expectation here")
	}
}

// TestSpellings covers null, and what transformers 5 writes in place of 4.
func TestSpellings(t *testing.T) {
	linear := &RopeScaling{Type: "linear", Factor: 4}
	for name, test := range map[string]struct {
		fields string
		get    func(Config) any
		want   any
	}{
		"absent key and value heads": {``, func(c Config) any { return c.Attention.NumKeyValueHeads }, 32},
		"null key and value heads": {`,"num_attention_heads":8,"num_key_value_heads":null`,
			func(c Config) any { return c.Attention.NumKeyValueHeads }, 8},
		"minus zero": {`,"first_k_dense_replace":-0`,
			func(c Config) any { return c.Layers.FirstKDenseReplace }, 0},
		"integer theta":  {`,"rope_theta":500000`, func(c Config) any { return c.RoPE.RopeTheta }, 5e5},
		"exponent":       {`,"rms_norm_eps":1E-05`, func(c Config) any { return c.RMSNormEps }, 1e-5},
		"sliced matmuls": {`,"pretraining_tp":2`, func(c Config) any { return c.PretrainingTP }, 2},
		"escaped key":    {`,"hidden\u005fsize":64`, func(c Config) any { return c.HiddenSize }, 64},
		"case shadow":    {`,"Hidden_Size":64,"HIDDEN_SIZE":"x"`, func(c Config) any { return c.HiddenSize }, 4096},
		"scaling": {`,"rope_scaling":{"type":"linear","factor":4.0}`,
			func(c Config) any { return c.RoPE.RopeScaling }, linear},
		"parameters default": {`,"rope_parameters":{"rope_type":"default","rope_theta":500.0}`,
			func(c Config) any { return c.RoPE.RopeTheta }, 500.0},
		"parameters null": {`,"rope_scaling":{"type":"linear","factor":4.0},"rope_parameters":null`,
			func(c Config) any { return c.RoPE.RopeScaling }, linear},
		"parameters empty": {`,"rope_parameters":{}`, func(c Config) any { return c.RoPE.RopeTheta }, 10000.0},
		"parameters linear": {`,"rope_parameters":{"rope_type":"linear","factor":4.0}`,
			func(c Config) any { return c.RoPE.RopeScaling }, linear},
		"parameters type": {`,"rope_parameters":{"type":"linear","factor":4.0}`,
			func(c Config) any { return c.RoPE.RopeScaling }, linear},
		"parameters both types": {`,"rope_parameters":{"type":"linear","rope_type":"linear","factor":4.0}`,
			func(c Config) any { return c.RoPE.RopeScaling }, linear},
		"parameters agree": {`,"rope_theta":10000,"rope_scaling":{"type":"linear","factor":4.0},"rope_parameters":{"rope_type":"linear","factor":4.00,"rope_theta":1e4}`, func(c Config) any { return c.RoPE.RopeScaling }, linear},
		"parameters first": {`,"rope_parameters":{"rope_theta":500.0},"rope_theta":500`,
			func(c Config) any { return c.RoPE.RopeTheta }, 500.0},
		"parameters default, null": {`,"rope_parameters":{"rope_type":"default"},"rope_scaling":null`,
			func(c Config) any { return c.RoPE.RopeScaling }, (*RopeScaling)(nil)},
		"dtype": {`,"dtype":"float16"`, func(c Config) any { return c.TorchDType }, "float16"},
		"dtype twice": {`,"dtype":"float16","torch_dtype":"float16"`, func(c Config) any { return c.TorchDType },
			"float16"},
		"dtype null":       {`,"dtype":null,"torch_dtype":"float16"`, func(c Config) any { return c.TorchDType }, "float16"},
		"torch_dtype null": {`,"dtype":"float16","torch_dtype":null`, func(c Config) any { return c.TorchDType }, "float16"},
		"dense with any scoring": {`,"scoring_func":"sigmoid"`, func(c Config) any { return c.Router.ScoringFunc },
			"sigmoid"},
		"dense with experts per token": {`,"num_experts_per_tok":6`, func(c Config) any { return c.MoE.NumExpertsPerTok },
			6},
		"more dense layers than layers": {`,"first_k_dense_replace":99`,
			func(c Config) any { return c.Layers.FirstKDenseReplace }, 99},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, test.want, test.get(parse(t, `{"model_type":"deepseek"`+test.fields+`}`)))
		})
	}
}

func TestIsMoE(t *testing.T) {
	for name, test := range map[string]struct {
		experts, first, freq int
		want                 string // one character a layer: m or d
	}{
		"all":             {16, 0, 1, "mmmmmmmm"},
		"first 1":         {16, 1, 1, "dmmmmmmm"},
		"freq 2":          {16, 0, 2, "mdmdmdmd"},
		"first 2, freq 3": {16, 2, 3, "dddmddmd"},
		"first 3, freq 3": {16, 3, 3, "dddmddmd"},
		"first 8":         {16, 8, 1, "dddddddd"},
		"dense":           {0, 0, 1, "dddddddd"},
	} {
		t.Run(name, func(t *testing.T) {
			c := Config{MoE: MoE{NRoutedExperts: test.experts}, Layers: Layers{FirstKDenseReplace: test.first,
				MoELayerFreq: test.freq}}
			var got strings.Builder
			for layer := range len(test.want) {
				got.WriteByte(map[bool]byte{true: 'm', false: 'd'}[c.IsMoE(layer)])
			}
			assert.Equal(t, test.want, got.String())
		})
	}
}

func TestHeadDim(t *testing.T) {
	assert.Equal(t, 128, (&Config{HiddenSize: 2048, Attention: Attention{NumAttentionHeads: 16}}).HeadDim())
}

func TestRoundTripOfFixtures(t *testing.T) {
	for name, text := range fixtureFiles(t) {
		t.Run(name, func(t *testing.T) {
			c, err := Parse(strings.NewReader(text))
			require.NoError(t, err)
			assert.Equal(t, strings.TrimSuffix(text, "\n")+"\n", string(c.JSON()))
		})
	}
}

func TestRoundTripKeepsWhatItDoesNotKnow(t *testing.T) {
	text := `{"z":1,"Hidden_Size":64,"model\u005ftype":"deepseek", "num":1.50e+3, "o" : {"b":1, "a":[ ]}, "é":"\u00e9<&>", "rope_theta":1E4 }`
	want := `{
  "z": 1,
  "Hidden_Size": 64,
  "model\u005ftype": "deepseek",
  "num": 1.50e+3,
  "o": {"b":1, "a":[ ]},
  "é": "\u00e9<&>",
  "rope_theta": 1E4
}
`
	c, err := Parse(strings.NewReader(text))
	require.NoError(t, err)
	assert.Equal(t, want, string(c.JSON()))
	again, err := Parse(strings.NewReader(want))
	require.NoError(t, err)
	assert.Equal(t, c, again)
	inside, err := json.Marshal(map[string]any{"config": c})
	require.NoError(t, err)
	assert.JSONEq(t, `{"config":`+text+`}`, string(inside))
}

func TestOverride(t *testing.T) {
	c, err := Parse(strings.NewReader(`{"x":1,"seq_aux":true,"model_type":"deepseek","aux_loss_alpha":0.001}`))
	require.NoError(t, err)
	before := string(c.JSON())

	o, err := c.Override(map[string]jsontext.Value{
		"seq_aux": jsontext.Value(" false\n"), "aux_loss_alpha": jsontext.Value("0.05"),
		"vocab_size": jsontext.Value("256"), "added": jsontext.Value(`{"a":1}`),
		"rope_scaling": jsontext.Value(`{"type":"linear","factor":2.0}`),
	})
	require.NoError(t, err)
	assert.False(t, o.Router.SeqAux)
	assert.Equal(t, 0.05, o.Router.AuxLossAlpha)
	assert.Equal(t, 256, o.VocabSize)
	assert.Equal(t, &RopeScaling{Type: "linear", Factor: 2}, o.RoPE.RopeScaling)
	assert.Equal(t, `{
  "x": 1,
  "seq_aux": false,
  "model_type": "deepseek",
  "aux_loss_alpha": 0.05,
  "added": {"a":1},
  "rope_scaling": {"type":"linear","factor":2.0},
  "vocab_size": 256
}
`, string(o.JSON()))

	assert.True(t, c.Router.SeqAux, "the original changed")
	assert.Equal(t, before, string(c.JSON()), "the original changed")
	same, err := c.Override(nil)
	require.NoError(t, err)
	assert.Equal(t, c, same)
}

func TestOverrideRefuses(t *testing.T) {
	c, err := Parse(strings.NewReader(`{"model_type":"deepseek","rope_theta":10000.0}`))
	require.NoError(t, err)
	for name, test := range map[string]struct {
		fields map[string]jsontext.Value
		want   string
	}{
		"broken rule":    {map[string]jsontext.Value{"hidden_size": jsontext.Value("33")}, `hidden_size: 33 is not divisible by num_attention_heads 32`},
		"no value":       {map[string]jsontext.Value{"hidden_size": nil}, `"hidden_size": the value is not one valid JSON value`},
		"smuggled key":   {map[string]jsontext.Value{"x": jsontext.Value(`1,"y":2`)}, `"x": the value is not one valid JSON value`},
		"duplicate keys": {map[string]jsontext.Value{"x": jsontext.Value(`{"a":1,"a":2}`)}, `"x": the value is not one valid JSON value`},
		"too deep":       {map[string]jsontext.Value{"x": jsontext.Value(strings.Repeat("[", 64) + strings.Repeat("]", 64))}, `nested deeper than 64 levels`},
		"key not UTF-8":  {map[string]jsontext.Value{"\xff": jsontext.Value(`1`)}, `"\xff": the key is not valid UTF-8`},
		"two at once":    {map[string]jsontext.Value{"a": nil, "b": nil}, `2 problems: "a": `},
		"other spelling": {map[string]jsontext.Value{"rope_parameters": jsontext.Value(`{"rope_theta":5.0}`)}, `rope_parameters.rope_theta: 5 disagrees with rope_theta 10000`},
		"other mixture":  {map[string]jsontext.Value{"model_type": jsontext.Value(`"kimi_k3"`)}, `model_type: "kimi_k3", whose mixture is another: its routed experts have a hidden size of their own, and the activation situ; supported: deepseek`},
		"other family":   {map[string]jsontext.Value{"model_type": jsontext.Value(`"llama"`)}, `model_type: "llama"; supported: deepseek`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.Override(test.fields)
			require.ErrorContains(t, err, test.want)
			assert.ErrorAs(t, err, new(*problem.Error))
		})
	}
}

func TestParsePassesReadErrorsOn(t *testing.T) {
	broken := errors.New("broken disk")
	_, err := Parse(iotest.ErrReader(broken))
	assert.Equal(t, broken, err)
}
