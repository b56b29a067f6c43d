package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// mlaFixture is what the small V2 and V3 fixtures share; a case changes what is its
// point.
func mlaFixture(change func(*Config)) Config {
	c := Config{
		ModelType: "deepseek_v3", VocabSize: 256, HiddenSize: 64, IntermediateSize: 160, NumHiddenLayers: 5,
		HiddenAct: "silu", InitializerRange: 0.02, RMSNormEps: 1e-6, PretrainingTP: 1, TorchDType: "bfloat16",
		NumNextNPredictLayers: 1, Reference: Native,
		MoE: MoE{MoEIntermediateSize: 24, NSharedExperts: 1, NRoutedExperts: 16, NumExpertsPerTok: 4},
		Attention: Attention{NumAttentionHeads: 4, NumKeyValueHeads: 4, KVLoraRank: 32, QLoraRank: 48, QKNopeHeadDim: 24,
			QKRopeHeadDim: 16, VHeadDim: 20},
		Layers: Layers{MoELayerFreq: 1, FirstKDenseReplace: 2},
		Router: Router{NormTopKProb: true, ScoringFunc: "sigmoid", AuxLossAlpha: 0.001, SeqAux: true,
			TopKMethod: "noaux_tc", NGroup: 4, TopKGroup: 2, RoutedScalingFactor: 2.5},
		RoPE: RoPE{MaxPositionEmbeddings: 128, RopeTheta: 10000, RopeInterleave: true},
	}
	change(&c)
	return c
}

func asV2(c *Config) {
	c.ModelType, c.NumHiddenLayers, c.Layers.FirstKDenseReplace, c.MoE.NSharedExperts = "deepseek_v2", 4, 1, 2
	c.Router.ScoringFunc, c.Router.NormTopKProb, c.NumNextNPredictLayers = "softmax", false, 0
}

func TestMLAFixtures(t *testing.T) {
	yarn := func(factor, mscale float64) *RopeScaling {
		return &RopeScaling{Type: "yarn", Factor: factor, OriginalMaxPositionEmbeddings: 32, BetaFast: 32, BetaSlow: 1, MScale: mscale, MScaleAllDim: mscale}
	}
	for name, want := range map[string]Config{
		"v3/checkpoint":       mlaFixture(func(*Config) {}),
		"v3/checkpoint-fused": mlaFixture(func(*Config) {}),
		"v3-yarn/checkpoint":  mlaFixture(func(c *Config) { c.RoPE.RopeScaling = yarn(40, 1) }),
		"v3-fp8/checkpoint": mlaFixture(func(c *Config) {
			c.HiddenSize, c.IntermediateSize, c.MoE.MoEIntermediateSize, c.NumHiddenLayers, c.Layers.FirstKDenseReplace = 192,
				320, 72, 3, 1
			c.Attention.KVLoraRank, c.Attention.QLoraRank, c.MoE.NRoutedExperts, c.MoE.NumExpertsPerTok, c.Router.NGroup,
				c.Router.TopKGroup = 140, 136, 8, 2, 2, 1
			c.Quantization = Quantization{Method: "fp8", Block: [2]int{128, 128}}
		}),
		"v2-lite/checkpoint": mlaFixture(func(c *Config) {
			asV2(c)
			c.Attention.QLoraRank, c.Router.TopKMethod, c.Router.NGroup, c.Router.TopKGroup, c.Router.RoutedScalingFactor = 0,
				"greedy", 1, 1, 1
		}),
		"v2-group-yarn/checkpoint": mlaFixture(func(c *Config) {
			asV2(c)
			c.Router.TopKMethod, c.Router.RoutedScalingFactor, c.RoPE.RopeScaling = "group_limited_greedy", 16, yarn(4, 0.707)
		}),
	} {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("../fixtures", filepath.FromSlash(name), "config.json"))
			require.NoError(t, err)
			assert.Equal(t, want, fieldsOf(t, string(text)))
		})
	}
}

// TestPublishedSpellings: rope_scaling as the published V2 and V3 configs have it, and
// code of its own as the sign of the remote reference.
func TestPublishedSpellings(t *testing.T) {
	c := parse(t, `{"model_type":"deepseek_v2","num_experts_per_tok":6,"num_attention_heads":16,
		"auto_map":{"AutoModel":"modeling_deepseek.DeepseekV2Model"},"rope_theta":10000,
		"rope_scaling":{"beta_fast":32,"beta_slow":1,"factor":40,"mscale":0.707,"mscale_all_dim":0.707,
		"original_max_position_embeddings":4096,"type":"yarn"}}`)
	assert.Equal(t, &RopeScaling{Type: "yarn", Factor: 40, OriginalMaxPositionEmbeddings: 4096, BetaFast: 32,
		BetaSlow: 1, MScale: 0.707, MScaleAllDim: 0.707}, c.RoPE.RopeScaling)
	assert.Equal(t, Remote, c.Reference)
	assert.Equal(t, 16, c.Attention.NumKeyValueHeads)
}

func TestMLAProblems(t *testing.T) {
	const v2, v3 = `{"model_type":"deepseek_v2","num_experts_per_tok":2,`, `{"model_type":"deepseek_v3",`
	for name, test := range map[string]struct{ text, want string }{
		"V3 softmax":            {v3 + `"scoring_func":"softmax"`, `scoring_func: "softmax" is not "sigmoid", the scoring function of DeepSeek-V3`},
		"V2 sigmoid":            {v2 + `"scoring_func":"sigmoid"`, `scoring_func: "sigmoid" is not "softmax", the only scoring function of the reference's MoEGate`},
		"V2 method":             {v2 + `"topk_method":"noaux_tc"`, `topk_method: "noaux_tc" is not greedy or group_limited_greedy, DeepSeek-V2's`},
		"V3 method":             {v3 + `"topk_method":"greedy"`, `topk_method: "greedy" is not noaux_tc, DeepSeek-V3's`},
		"groups missing":        {v2 + `"topk_method":"group_limited_greedy"`, `topk_method: group_limited_greedy needs n_group and topk_group`},
		"groups do not divide":  {v3 + `"n_group":7`, `topk_method: n_group 7 does not divide n_routed_experts 256 into groups of 2 or more`},
		"groups of one":         {v3 + `"n_group":256`, `topk_method: n_group 256 does not divide n_routed_experts 256 into groups of 2 or more`},
		"too many groups":       {v3 + `"topk_group":9`, `topk_method: topk_group 9 is more than n_group 8`},
		"groups hold too few":   {v3 + `"topk_group":1,"num_experts_per_tok":33`, `topk_method: num_experts_per_tok 33 is more than topk_group 1 groups of 32 hold`},
		"kv heads":              {v3 + `"num_key_value_heads":8`, `num_key_value_heads: 8 is not num_attention_heads 128, as latent attention demands`},
		"odd rotary":            {v3 + `"qk_rope_head_dim":63`, `qk_rope_head_dim: 63 is odd: RoPE rotates pairs`},
		"V2 halves":             {v2 + `"rope_interleave":false`, `rope_interleave: false: DeepSeek-V2 rotates interleaved pairs`},
		"mlp bias":              {v2 + `"mlp_bias":true`, `mlp_bias: true: biases of the MLPs are not supported, no published model has them`},
		"yarn without a factor": {v3 + `"rope_scaling":{"type":"yarn","original_max_position_embeddings":4096}`, `rope_scaling.factor: missing`},
		"yarn, beta zero":       {v3 + `"rope_scaling":{"type":"yarn","factor":40,"original_max_position_embeddings":4096,"beta_fast":0}`, `rope_scaling.beta_fast: 0 is not above 0`},
		"yarn, mscale negative": {v3 + `"rope_scaling":{"type":"yarn","factor":40,"original_max_position_embeddings":4096,"mscale":-1}`, `rope_scaling.mscale: -1 is not 0 or above`},
		"yarn disagrees": {v3 + `"rope_scaling":{"rope_type":"yarn","factor":40,"original_max_position_embeddings":4096},
			"rope_parameters":{"rope_type":"yarn","factor":40,"original_max_position_embeddings":4096,"mscale":1}`,
			`rope_parameters: {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1, "mscale": 1, "mscale_all_dim": 0} ` +
				`disagrees with rope_scaling {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1, "mscale": 0, "mscale_all_dim": 0}`},
		"theta disagrees": {v3 + `"rope_theta":10000,"rope_scaling":{"type":"yarn","factor":40,"original_max_position_embeddings":4096,"rope_theta":5e4}`,
			`rope_scaling.rope_theta: 50000 disagrees with rope_theta 10000`},
		"theta of objects disagrees": {v3 + `"rope_scaling":{"rope_type":"default","rope_theta":5e4},"rope_parameters":{"rope_type":"default","rope_theta":1e4}`,
			`rope_parameters.rope_theta: 10000 disagrees with rope_scaling.rope_theta 50000`},
		"theta of a scaling, zero": {v3 + `"rope_scaling":{"rope_type":"default","rope_theta":0}`, `rope_scaling.rope_theta: 0 is not above 0`},
		"bias a number":            {v2 + `"mlp_bias":1`, `mlp_bias: 1 is not true or false`},
		"V3 without k":             {v3 + `"num_experts_per_tok":null`, `num_experts_per_tok: null, but n_routed_experts is 256`},
		"linear":                   {v3 + `"rope_scaling":{"type":"linear","factor":2.0}`, `rope_scaling.type: "linear" is not one of yarn`},
		"yarn without length":      {v3 + `"rope_scaling":{"type":"yarn","factor":40,"original_max_position_embeddings":0}`, `rope_scaling.original_max_position_embeddings: 0 is not in 1..16777216`},
		"another quantization":     {v3 + `"quantization_config":{"quant_method":"mxfp4","weight_block_size":[128,128]}`, `quantization_config.quant_method: "mxfp4" is not read, but fp8, compressed-tensors, modelopt, awq, gptq, auto-round, blockwise_int8 and w8a8_int8 are; load it with transformers and dequantize=True in Mxfp4Config, and save it`},
		"another fp8":              {v3 + `"quantization_config":{"quant_method":"fp8","fmt":"e5m2","weight_block_size":[128,128]}`, `quantization_config.fmt: "e5m2" is not one of e4m3, e4m3fn, float8_e4m3fn, float8_e4m3`},
		"block of one":             {v3 + `"quantization_config":{"quant_method":"fp8","weight_block_size":[128]}`, `quantization_config.weight_block_size: not two integers, such as [128, 128]`},
		"block of zero":            {v3 + `"quantization_config":{"quant_method":"fp8","weight_block_size":[0,128]}`, `quantization_config.weight_block_size: 0 is not in 1..16777216`},
		"block of three":           {v3 + `"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128,1]}`, `quantization_config.weight_block_size: not two integers, such as [128, 128]`},
		"block a number":           {v3 + `"quantization_config":{"quant_method":"fp8","weight_block_size":128}`, `quantization_config.weight_block_size: not two integers, such as [128, 128]`},
		"block of fractions":       {v3 + `"quantization_config":{"quant_method":"fp8","weight_block_size":[128,1.5]}`, `quantization_config.weight_block_size: 1.5 is a float, not an integer`},
		"exceptions a name":        {v3 + `"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128],"modules_to_not_convert":"lm_head"}`, `quantization_config.modules_to_not_convert: not a list of names, nor null`},
		"method missing":           {v3 + `"quantization_config":{"weight_block_size":[128,128]}`, `quantization_config.quant_method: missing`},
		"quantization a string":    {v3 + `"quantization_config":"fp8"`, `quantization_config: "fp8" is not null or an object`},
		"too many MTP layers":      {v3 + `"num_nextn_predict_layers":65`, `num_nextn_predict_layers: 65 is not in 0..64`},
	} {
		t.Run(name, func(t *testing.T) {
			got := problems(t, test.text+"}")
			require.NotEmpty(t, got)
			assert.Equal(t, test.want, got[0].String())
		})
	}
}

// TestCalledYarn: a family whose files call "yarn" otherwise reads both names, and no third, in each spelling of RoPE.
func TestCalledYarn(t *testing.T) {
	form := *yarnForm
	form.called = map[string]string{"its_yarn": "yarn"}
	f := v3.derive("deepseek_v3", delta{rope: &form})
	read := func(keys string) (*Config, error) {
		doc, err := readDocument([]byte(`{"model_type":"deepseek_v3",` + keys + `,"factor":40,"original_max_position_embeddings":4096}}`))
		require.NoError(t, err)
		return f.decode(doc)
	}
	for _, name := range []string{"yarn", "its_yarn"} {
		for _, keys := range []string{`"rope_scaling":{"type":"`, `"rope_scaling":{"rope_type":"`, `"rope_parameters":{"rope_type":"`} {
			c, err := read(keys + name + `"`)
			require.NoError(t, err)
			assert.Equal(t, "yarn", c.RoPE.RopeScaling.Type)
		}
	}
	_, err := read(`"rope_scaling":{"type":"other"`)
	assert.ErrorContains(t, err, `rope_scaling.type: "other" is not one of yarn, its_yarn`)
}

// TestSmallestGroups: the least groups that the references can have are right, DeepSeek-V2's of one expert, DeepSeek-V3's
// of two; so is a token that takes all experts of its groups.
func TestSmallestGroups(t *testing.T) {
	c := parse(t, `{"model_type":"deepseek_v2","topk_method":"group_limited_greedy","n_group":64,"topk_group":6,"num_experts_per_tok":6}`)
	assert.True(t, c.LimitsGroups())
	c = parse(t, `{"model_type":"deepseek_v3","n_group":128,"topk_group":4,"num_experts_per_tok":8}`)
	assert.True(t, c.LimitsGroups())
	c = parse(t, `{"model_type":"deepseek_v3","n_group":2,"topk_group":2,"num_experts_per_tok":256}`)
	assert.Equal(t, 256, c.MoE.NumExpertsPerTok)
}

// TestMLASpellings: null, and values that mean nothing in a model.
func TestMLASpellings(t *testing.T) {
	const v3 = `{"model_type":"deepseek_v3"`
	c := parse(t, v3+`,"num_nextn_predict_layers":null,"quantization_config":null,"q_lora_rank":null,"mlp_bias":false,"auto_map":null}`)
	assert.Zero(t, c.NumNextNPredictLayers)
	assert.Zero(t, c.Quantization)
	assert.Zero(t, c.Attention.QLoraRank)
	assert.Equal(t, Native, c.Reference)
	c = parse(t, `{"model_type":"deepseek_v2","n_routed_experts":null,"topk_method":"group_limited_greedy"}`)
	assert.False(t, c.IsMoE(0), "a dense model has no groups to fit")
	c = parse(t, v3+`,"rope_scaling":{"rope_type":"yarn","factor":40,"original_max_position_embeddings":4096}}`)
	yarn := &RopeScaling{Type: "yarn", Factor: 40, OriginalMaxPositionEmbeddings: 4096, BetaFast: 32, BetaSlow: 1}
	assert.Equal(t, yarn, c.RoPE.RopeScaling)
	for _, again := range []string{``, `,"rope_theta":50000`, `,"rope_parameters":{"rope_theta":5e4,"rope_type":"yarn","factor":40,"original_max_position_embeddings":4096}`} {
		c = parse(t, v3+`,"rope_scaling":{"rope_type":"yarn","factor":40,"original_max_position_embeddings":4096,"rope_theta":5e4}`+again+`}`)
		assert.Equal(t, yarn, c.RoPE.RopeScaling)
		assert.Equal(t, 5e4, c.RoPE.RopeTheta)
	}
	c = parse(t, v3+`,"rope_scaling":{"rope_type":"default","rope_theta":5e4}}`)
	assert.Nil(t, c.RoPE.RopeScaling)
	assert.Equal(t, 5e4, c.RoPE.RopeTheta)
}

// TestWidths of heads, and which rules make them.
func TestWidths(t *testing.T) {
	for name, test := range map[string]struct {
		text            string
		latent, groups  bool
		rotary, qk, val int
	}{
		"V1":             {`{"model_type":"deepseek"}`, false, false, 128, 128, 128},
		"V2, greedy":     {`{"model_type":"deepseek_v2","num_experts_per_tok":6,"n_group":8,"topk_group":3}`, true, false, 64, 192, 128},
		"V2, with group": {`{"model_type":"deepseek_v2","num_experts_per_tok":6,"n_group":8,"topk_group":3,"topk_method":"group_limited_greedy"}`, true, true, 64, 192, 128},
		"V3":             {`{"model_type":"deepseek_v3","qk_nope_head_dim":32,"v_head_dim":48}`, true, true, 64, 96, 48},
	} {
		c := parse(t, test.text)
		assert.Equal(t, test.latent, c.LatentAttention(), name)
		assert.Equal(t, test.groups, c.LimitsGroups(), name)
		assert.Equal(t, []int{test.rotary, test.qk, test.val}, []int{c.HeadDim(), c.QKHeadDim(), c.ValueHeadDim()}, name)
	}
}

// TestRulesOfReferences pins the rules of the first families.
func TestRulesOfReferences(t *testing.T) {
	of := func(model string, r Reference) Rules {
		c, err := Defaults(model).As(r)
		require.NoError(t, err)
		return c.Rules()
	}
	assert.Equal(t, Rules{}, of("deepseek", Remote))
	assert.Equal(t, Rules{Router: routerRules{RouterFloat32: true}, MoE: moeRules{RoutedSum: ByChoice}},
		of("deepseek_v2", Remote))
	assert.Equal(t, Rules{
		Router: routerRules{RouterFloat32: true, NormTopK: normNever, ScalesNormalised: true},
		MoE:    moeRules{IgnoresMoELayerFreq: true},
		RoPE:   ropeRules{AnglesInFloat32: true, RotatesInFloat32: true},
	}, of("deepseek_v2", Native))
	assert.Equal(t, Rules{Router: routerRules{RouterFloat32: true, ScalesNormalised: true},
		MoE: moeRules{RoutedSum: ByChoice}}, of("deepseek_v3", Remote))
	assert.Equal(t, Rules{
		Router: routerRules{RouterFloat32: true, NormTopK: normAlways, ScalesNormalised: true},
		MoE:    moeRules{IgnoresMoELayerFreq: true},
		RoPE:   ropeRules{AnglesInFloat32: true},
	}, of("deepseek_v3", Native))
}

// TestReferencesDiffer pins Config.TopKWeights, and IsMoE.
func TestReferencesDiffer(t *testing.T) {
	const v2 = `{"model_type":"deepseek_v2","routed_scaling_factor":16.0,"moe_layer_freq":2,"num_experts_per_tok":`
	const v3 = `{"model_type":"deepseek_v3","num_experts_per_tok":`
	for name, test := range map[string]struct {
		text      string
		ref       Reference
		normalise bool
		scale     float64
	}{
		"V2 remote, not normalised":  {v2 + `6,"norm_topk_prob":false}`, Remote, false, 16},
		"V2 remote, normalised":      {v2 + `6,"norm_topk_prob":true}`, Remote, true, 1},
		"V2 remote, k 1":             {v2 + `1,"norm_topk_prob":true}`, Remote, false, 16},
		"V2 native ignores the flag": {v2 + `6,"norm_topk_prob":true}`, Native, false, 16},
		"V3 remote":                  {v3 + `8}`, Remote, true, 2.5},
		"V3 remote, k 1":             {v3 + `1}`, Remote, false, 2.5},
		"V3 native, k 1":             {v3 + `1}`, Native, true, 2.5},
		"V3 native, not normalised":  {v3 + `8,"norm_topk_prob":false}`, Native, false, 2.5},
		"V1":                         {`{"model_type":"deepseek","n_routed_experts":8,"num_experts_per_tok":2,"norm_topk_prob":true}`, Remote, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Parse(strings.NewReader(test.text))
			require.NoError(t, err)
			c, err = c.As(test.ref)
			require.NoError(t, err)
			normalise, scale := c.TopKWeights()
			assert.Equal(t, test.normalise, normalise)
			assert.Equal(t, test.scale, scale)
		})
	}
	c, err := Parse(strings.NewReader(v2 + `2}`))
	require.NoError(t, err)
	assert.Equal(t, []bool{true, true}, []bool{c.IsMoE(0), c.IsMoE(1)}, "native ignores moe_layer_freq")
	c, err = c.As(Remote)
	require.NoError(t, err)
	assert.Equal(t, []bool{true, false}, []bool{c.IsMoE(0), c.IsMoE(1)})
	c, err = Parse(strings.NewReader(`{"model_type":"deepseek"}`))
	require.NoError(t, err)
	_, err = c.As(Native)
	assert.EqualError(t, err, "model_type deepseek has no native reference")
}

// TestStaysUnquantised: an entry of modules_to_not_convert names a module, what is in it,
// or every module of that name.
func TestStaysUnquantised(t *testing.T) {
	c := Config{Quantization: Quantization{Except: []string{"model.layers.1", "lm_head", "o_proj"}}}
	for module, want := range map[string]bool{
		"model.layers.1": true, "model.layers.1.mlp.up_proj": true, "lm_head": true, "model.layers.0.self_attn.o_proj": true,
		"model.layers.10.mlp.up_proj": false, "model.layers.0.mlp.up_proj": false, "my_o_proj": false,
	} {
		assert.Equal(t, want, c.StaysUnquantised(module), module)
	}
}

// TestStoredHeadDim: V3's reference makes RoPE's tables of head_dim, V2's replaces it.
func TestStoredHeadDim(t *testing.T) {
	for config, cause := range map[string]string{
		`{"model_type":"deepseek_v3","qk_rope_head_dim":16,"head_dim":16}`:                         "",
		`{"model_type":"deepseek_v3","head_dim":64}`:                                               "",
		`{"head_dim":null,"model_type":"deepseek_v3"}`:                                             "",
		`{"head_dim":32,"model_type":"deepseek_v3","qk_rope_head_dim":16}`:                         "head_dim: 32 is not qk_rope_head_dim 16: the reference fails at RoPE's tables",
		`{"model_type":"deepseek_v3","head_dim":192}`:                                              "head_dim: 192 is not qk_rope_head_dim 64: the reference fails at RoPE's tables",
		`{"model_type":"deepseek_v3","qk_rope_head_dim":-2,"head_dim":"x"}`:                        "2 problems: qk_rope_head_dim: -2 is not in 1..16777216; head_dim: \"x\" is not an integer",
		`{"model_type":"deepseek_v2","num_experts_per_tok":6,"qk_rope_head_dim":16,"head_dim":32}`: "",
	} {
		_, err := Parse(strings.NewReader(config))
		if cause == "" {
			require.NoError(t, err, config)
		} else {
			require.EqualError(t, err, cause)
		}
	}
}
