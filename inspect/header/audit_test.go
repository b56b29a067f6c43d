package header

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/inspect"
	"dsmoe/inspect/inspecttest"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text/problem"
)

func TestWholeCheckpointIsClean(t *testing.T) {
	for _, name := range []string{"v1-base", "v1-dense", "v1-rope-linear-tied-bias", "v1-16b-slice", "v2-lite",
		"v2-group-yarn", "v3", "v3-fp8"} {
		c := inspecttest.Whole(inspecttest.Override(t, configtest.Fixture(t, name+"/checkpoint"),
			"num_nextn_predict_layers", "0"))
		a := Audit(c)
		assert.True(t, a.Clean, name)
		assert.Empty(t, a.Findings, name)
		assert.Len(t, a.Checked, 3, name)
		assert.Equal(t, []string{"the values of the weights"}, a.NotChecked, name)
		assert.True(t, strings.HasPrefix(inspecttest.Printed(t, a), "ckpt: clean\n"), name)
	}
}

// TestAbsentMTP: prediction layers that the config announces may be absent, which is a
// note; of one that is there nothing may be.
func TestAbsentMTP(t *testing.T) {
	c := inspecttest.Whole(configtest.Fixture(t, "v3/checkpoint"))
	a := Audit(c)
	assert.True(t, a.Clean)
	assert.Contains(t, inspecttest.Printed(t, a),
		"ckpt: no problems, 1 note\n  note: config.json: num_nextn_predict_layers is 1, but there are no tensors of multi-token prediction layers\n")
	c.Findings = []inspect.Finding{inspect.Broken.Of(problem.Problem{File: "c.safetensors", Cause: "file is empty"})}
	assert.Equal(t, c.Findings, Audit(c).Findings, "nobody knows what is missing")

	c = inspecttest.Whole(configtest.Fixture(t, "v3/checkpoint"))
	c.Files[0].Tensors = append(c.Files[0].Tensors, tensor.Info{Name: "model.layers.5.eh_proj.weight",
		DType: tensor.BF16, Shape: []int{64, 64}})
	a = Audit(c)
	assert.False(t, a.Clean)
	got := inspecttest.Printed(t, a)
	assert.Contains(t, got, "missing: model.layers.5.enorm.weight: the config asks for it, shape [64]")
	assert.Contains(t, got, "shape: model.layers.5.eh_proj.weight: [64 64], the config asks for [64 128]")
	assert.NotContains(t, got, "note")
	assert.Contains(t, got, "against the 279 weights of config.json",
		"those of the prediction layer, without its copies, are among them")
}

func TestAuditFindings(t *testing.T) {
	base := func(t *testing.T) *config.Config { return configtest.Fixture(t, "v1-base/checkpoint") }
	with := func(t *testing.T, key, value string) *config.Config {
		return inspecttest.Override(t, base(t), key, value)
	}
	for name, test := range map[string]struct {
		damage func(t *testing.T, c *inspect.Checkpoint)
		want   []string // rows of the text
		lacks  string
	}{
		"more experts in the config": {
			func(t *testing.T, c *inspect.Checkpoint) { c.Config = with(t, "n_routed_experts", "18") },
			[]string{
				"missing: model.layers.{1..3}.mlp.experts.{16..17}.up_proj.weight (6 tensors): the config asks for it, shape [24 64]",
				"shape: model.layers.{1..3}.mlp.gate.weight (3 tensors): [16 64], the config asks for [18 64]",
				"hint: see n_routed_experts 18, first_k_dense_replace 1, moe_layer_freq 1, hidden_size 64",
			}, "unexpected",
		},
		"fewer layers in the config": {
			func(t *testing.T, c *inspect.Checkpoint) { c.Config = with(t, "num_hidden_layers", "3") },
			[]string{"unexpected: model.layers.3.mlp.experts.{0..15}.down_proj.weight (16 tensors): the config has no use for it, shape [64 24]",
				"hint: num_hidden_layers is 3"}, "missing",
		},
		"tied head": {
			func(t *testing.T, c *inspect.Checkpoint) {
				c.Files[1].Tensors = slices.DeleteFunc(slices.Clone(c.Files[1].Tensors),
					func(i tensor.Info) bool { return i.Name == "lm_head.weight" })
			},
			[]string{"missing: lm_head.weight: the config asks for it, shape [256 64]",
				"hint: see tie_word_embeddings false"}, "unexpected",
		},
		"dtype that the model does not compute with": {
			func(t *testing.T, c *inspect.Checkpoint) { c.Files[0].Tensors[0].DType = tensor.I8 },
			[]string{"dtype: model.embed_tokens.weight: dtype I8, the model computes with F32, F16, BF16, codes with scales and the blocks of GGUF"}, "missing",
		},
		"foreign name": {
			func(t *testing.T, c *inspect.Checkpoint) {
				c.Files[1].Tensors = append(slices.Clone(c.Files[1].Tensors), tensor.Info{Name: "\x1b[2J", DType: tensor.BF16,
					Shape: []int{1}})
			},
			[]string{`unexpected: "\x1b[2J": the config has no use for it, shape [1]`,
				"hint: no weight of model_type deepseek has this name"}, "missing",
		},
		"torch_dtype of another checkpoint": {
			func(t *testing.T, c *inspect.Checkpoint) { c.Config = with(t, "torch_dtype", `"float16"`) },
			[]string{"no problems, 1 note", "note: config.json: torch_dtype is float16, but no tensor is F16"}, "missing",
		},
		"file that cannot be read": {
			func(t *testing.T, c *inspect.Checkpoint) {
				c.Files = c.Files[:1]
				c.Findings = []inspect.Finding{inspect.Broken.Of(problem.Problem{File: "b.safetensors",
					Cause: "file is empty"})}
			},
			[]string{"1 problem\n", "broken: b.safetensors: file is empty",
				"not checked  which weights are missing: not every file can be used"}, "missing: model",
		},
		"config that cannot be read": {
			func(t *testing.T, c *inspect.Checkpoint) {
				c.Config = nil
				c.Findings = []inspect.Finding{inspect.Broken.Of(problem.Problem{File: "config.json", Cause: "missing"})}
			},
			[]string{"1 problem\n", "broken: config.json: missing",
				"not checked  the tensors against the config: config.json cannot be used"}, "missing: model",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := inspecttest.Whole(base(t))
			test.damage(t, c)
			a := Audit(c)
			assert.Equal(t, a.Problems == 0, a.Clean)
			assert.NotEmpty(t, a.Findings)
			got := inspecttest.Printed(t, a)
			for _, want := range test.want {
				assert.Contains(t, got, want)
			}
			assert.NotContains(t, got, test.lacks)
		})
	}
}

// TestBrokenTensorDoesNotHideMissingOnes: a finding about a file that was read says
// nothing about what is missing.
func TestBrokenTensorDoesNotHideMissingOnes(t *testing.T) {
	c := inspecttest.Whole(configtest.Fixture(t, "v1-base/checkpoint"))
	c.Files[0].Tensors = c.Files[0].Tensors[1:]
	c.Findings = []inspect.Finding{
		inspect.Broken.Of(problem.Problem{File: "a.safetensors", Tensor: "model.embed_tokens.weight",
			Cause: "missing, though the index puts it here"}),
		inspect.Broken.Of(problem.Problem{File: "model.safetensors.index.json", Cause: "odd"}),
	}
	kinds := []inspect.Kind{}
	for _, f := range Audit(c).Findings {
		kinds = append(kinds, f.Kind)
	}
	assert.Equal(t, []inspect.Kind{inspect.Broken, inspect.Broken, inspect.Missing}, kinds)
}

// TestHintsFollowFromTheTable: a hint names the keys that the row of the table depends
// on, and a layer that the model does not have.
func TestHintsFollowFromTheTable(t *testing.T) {
	const attn = "model.layers.1.self_attn."
	for _, test := range []struct{ fixture, key, value, tensor, want string }{
		{"v1-base", "num_key_value_heads", "2", attn + "k_proj.weight",
			"see hidden_size 64, num_attention_heads 4, num_key_value_heads 2"},
		{"v1-base", "attention_bias", "true", attn + "q_proj.bias",
			"see attention_bias true, hidden_size 64, num_attention_heads 4"},
		{"v1-base", "n_shared_experts", "null", "model.layers.1.mlp.shared_experts.up_proj.weight",
			"see n_routed_experts 16, first_k_dense_replace 1, moe_layer_freq 1, n_shared_experts null, hidden_size 64, moe_intermediate_size 24"},
		{"v1-base", "num_hidden_layers", "1", attn + "q_proj.weight", "num_hidden_layers is 1"},
		{"v1-base", "vocab_size", "100", "lm_head.weight", "see tie_word_embeddings false, hidden_size 64, vocab_size 100"},
		{"v2-group-yarn", "kv_lora_rank", "16", attn + "kv_a_proj_with_mqa.weight",
			"see hidden_size 64, kv_lora_rank 16, qk_rope_head_dim 16"},
		{"v2-group-yarn", "kv_lora_rank", "16", attn + "kv_b_proj.weight",
			"see kv_lora_rank 16, num_attention_heads 4, qk_nope_head_dim 24, v_head_dim 20"},
		{"v2-group-yarn", "v_head_dim", "8", attn + "o_proj.weight",
			"see hidden_size 64, num_attention_heads 4, v_head_dim 8"},
		{"v2-group-yarn", "q_lora_rank", "40", attn + "q_b_proj.weight",
			"see q_lora_rank 40, num_attention_heads 4, qk_nope_head_dim 24, qk_rope_head_dim 16"},
		{"v2-group-yarn", "q_lora_rank", "null", attn + "q_a_layernorm.weight", "see q_lora_rank null"},
		{"v2-group-yarn", "q_lora_rank", "null", attn + "q_proj.weight",
			"see q_lora_rank null, hidden_size 64, num_attention_heads 4, qk_nope_head_dim 24, qk_rope_head_dim 16"},
		{"v3", "n_routed_experts", "8", "model.layers.2.mlp.gate.e_score_correction_bias",
			"see n_routed_experts 8, first_k_dense_replace 2, moe_layer_freq 1"},
		{"v3", "num_hidden_layers", "3", "model.layers.4.mlp.gate.weight",
			"num_hidden_layers is 3, num_nextn_predict_layers is 1"},
	} {
		c := inspecttest.Whole(configtest.Fixture(t, test.fixture+"/checkpoint"))
		c.Config = inspecttest.Override(t, c.Config, test.key, test.value)
		found := findingsAbout(c, test.tensor)
		require.Len(t, found, 1, "%s: %s", test.fixture, test.tensor)
		assert.Equal(t, test.want, found[0].Hint, "%s: %s", test.fixture, test.tensor)
	}
}

// TestHintsOfPredictionLayers: they are numbered on from the decoder's and have weights
// of their own, which a decoder layer has no use for.
func TestHintsOfPredictionLayers(t *testing.T) {
	for name, want := range map[string]string{
		"model.layers.5.eh_proj.weight":          "see hidden_size 64",
		"model.layers.5.self_attn.o_proj.weight": "see hidden_size 64, num_attention_heads 4, v_head_dim 20",
		"model.layers.6.eh_proj.weight":          "num_hidden_layers is 5, num_nextn_predict_layers is 1",
		"model.layers.4.eh_proj.weight":          "num_hidden_layers is 5, num_nextn_predict_layers is 1",
		"model.layers.5.eh_proj.bias":            "no weight of model_type deepseek_v3 has this name",
	} {
		c := inspecttest.Whole(configtest.Fixture(t, "v3/checkpoint"))
		c.Files[1].Tensors = append(slices.Clone(c.Files[1].Tensors), tensor.Info{Name: name, DType: tensor.BF16,
			Shape: []int{1}})
		found := findingsAbout(c, name)
		require.Len(t, found, 1, name)
		assert.Equal(t, want, found[0].Hint, name)
	}
}

func findingsAbout(c *inspect.Checkpoint, name string) []inspect.Finding {
	return slices.DeleteFunc(Audit(c).Findings, func(f inspect.Finding) bool { return f.Tensor != name })
}

// TestAuditOfFP8: what keeps the model from computing with an FP8 weight is a finding of
// its kind, about the weight or about its scales.
func TestAuditOfFP8(t *testing.T) {
	const name = "model.layers.1.self_attn.o_proj.weight"
	fp8 := inspecttest.Override(t, configtest.Fixture(t, "v3-fp8/checkpoint"), "num_nextn_predict_layers", "0")
	excepting := inspecttest.Override(t, fp8, "quantization_config",
		`{"quant_method":"fp8","fmt":"e4m3","weight_block_size":[128,128],"modules_to_not_convert":["model.layers.1.self_attn.o_proj"]}`)
	for _, test := range []struct {
		config *config.Config
		weight string
		dtype  tensor.DType
		scales *tensor.Info    // nil: none
		want   inspect.Finding // zero: none
	}{
		{fp8, name, tensor.F8E4M3, &tensor.Info{DType: tensor.F32, Shape: []int{2, 1}}, inspect.Finding{}},
		{fp8, name, tensor.F8E4M3, &tensor.Info{DType: tensor.BF16, Shape: []int{2, 1}}, inspect.Finding{}},
		{fp8, name, tensor.F8E4M3, nil, inspect.Missing.Of(problem.Problem{Tensor: name + "_scale_inv",
			Cause: "the FP8 weight needs these scales, shape [2 1]"})},
		{fp8, name, tensor.F8E4M3, &tensor.Info{DType: tensor.F32, Shape: []int{1, 2}},
			inspect.Shape.Of(problem.Problem{File: "b.safetensors", Tensor: name + "_scale_inv",
				Cause: "[1 2], but one scale per block of [128 128] of the FP8 weight is [2 1]"})},
		{fp8, name, tensor.F8E4M3, &tensor.Info{DType: tensor.I32, Shape: []int{2, 1}},
			inspect.DType.Of(problem.Problem{File: "b.safetensors", Tensor: name + "_scale_inv",
				Cause: "dtype I32: scales are F32, F16, BF16 or F8_E8M0"})},
		{fp8, name, tensor.BF16, nil, inspect.DType.Of(problem.Problem{File: "a.safetensors", Tensor: name,
			Cause: "dtype BF16, but quantization_config says F8_E4M3 with scales"})},
		{excepting, name, tensor.BF16, nil, inspect.Finding{}},
		{excepting, name, tensor.F8E4M3, &tensor.Info{DType: tensor.F32, Shape: []int{2, 1}},
			inspect.DType.Of(problem.Problem{File: "a.safetensors", Tensor: name,
				Cause: "dtype F8_E4M3, but modules_to_not_convert of quantization_config lists it"})},
		{fp8, "model.embed_tokens.weight", tensor.F8E4M3, nil,
			inspect.DType.Of(problem.Problem{File: "a.safetensors", Tensor: "model.embed_tokens.weight",
				Cause: "dtype F8_E4M3, which only matrix products take"})},
		{inspecttest.Override(t, configtest.Fixture(t, "v3/checkpoint"), "num_nextn_predict_layers", "0"), name,
			tensor.F8E4M3, nil,
			inspect.DType.Of(problem.Problem{File: "a.safetensors", Tensor: name,
				Cause: "dtype F8_E4M3, but config.json has no quantization_config"})},
	} {
		c := inspecttest.Whole(test.config)
		inspecttest.Retype(t, c, test.weight, test.dtype)
		if test.weight == name {
			for i := range c.Files {
				c.Files[i].Tensors = slices.DeleteFunc(slices.Clone(c.Files[i].Tensors),
					func(x tensor.Info) bool { return x.Name == name+"_scale_inv" })
			}
		}
		if test.scales != nil {
			c.Files[1].Tensors = append(c.Files[1].Tensors, tensor.Info{Name: name + "_scale_inv", DType: test.scales.DType,
				Shape: test.scales.Shape})
		}
		found := Audit(c).Findings
		if test.want == (inspect.Finding{}) {
			assert.Empty(t, found)
			continue
		}
		require.Len(t, found, 1, test.want)
		found[0].Hint = ""
		assert.Equal(t, test.want, found[0])
	}
}

// TestScalesOfAnUnreadableFile: where a file could not be read, nobody knows that the
// scales are missing.
func TestScalesOfAnUnreadableFile(t *testing.T) {
	c := inspecttest.Whole(inspecttest.Override(t, configtest.Fixture(t, "v3-fp8/checkpoint"),
		"num_nextn_predict_layers", "0"))
	for i := range c.Files {
		c.Files[i].Tensors = slices.DeleteFunc(slices.Clone(c.Files[i].Tensors),
			func(x tensor.Info) bool { return strings.HasSuffix(x.Name, "_scale_inv") })
	}
	assert.Len(t, Audit(c).Findings, 72)
	c.Findings = []inspect.Finding{inspect.Broken.Of(problem.Problem{File: "c.safetensors", Cause: "file is empty"})}
	assert.Len(t, Audit(c).Findings, 1)
}

// TestLongNamesAreCut: a name of any length, and a pattern of many numbers, take a line
// that can be read.
func TestLongNamesAreCut(t *testing.T) {
	c := inspecttest.Whole(configtest.Fixture(t, "v1-base/checkpoint"))
	add := func(name string) {
		c.Files[1].Tensors = append(c.Files[1].Tensors, tensor.Info{Name: name, DType: tensor.BF16, Shape: []int{1}})
	}
	add(strings.Repeat("x", 1<<20))
	for e := range 300 {
		add("model.layers.1.mlp.experts." + strconv.Itoa(100+2*e) + ".up_proj.weight")
	}
	for range 2 {
		add("model." + strings.Repeat("y", 1<<20)) // there twice
	}
	got := inspecttest.Printed(t, Audit(c))
	assert.Less(t, len(got), 4000)
	assert.Contains(t, got, "xxx… (1048576 bytes): the config has no use for it")
	assert.Contains(t, got, "model.layers.1.mlp.experts.{100,102,104,106,108,110,112,…,698}.up_proj.weight (300 tensors): ")
	assert.Contains(t, got, "yyy… (1048582 bytes): is there twice: in model.yyy")
}

// TestAuditByNames: of DeepSeek-V4.1 names are audited, and that FP8 weights have scales; shapes are not.
func TestAuditByNames(t *testing.T) {
	c := configtest.Parse(t, `{"model_type": "deepseek_v41", "text_config": {"num_hidden_layers": 1, "n_routed_experts": 2,
		"num_experts_per_tok": 1}, "quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32]}}`)
	infos := []tensor.Info{{Name: "layers.0.engram.wkv.weight", DType: tensor.BF16, Shape: []int{1}}}
	for s := range table.FamilyOf(c).Slots(c) {
		infos = append(infos, tensor.Info{Name: table.FamilyOf(c).Namings[0].Of(c, s.Name), DType: tensor.BF16, Shape: []int{3}})
	}
	i := slices.IndexFunc(infos, func(x tensor.Info) bool { return x.Name == "layers.0.attn.wq_a.weight" })
	infos[i].DType, infos[i].Shape = tensor.F8E4M3, []int{33, 64}
	audit := func(infos []tensor.Info) []inspect.Finding {
		return Audit(&inspect.Checkpoint{Config: c, Files: []inspect.File{{Name: "a.safetensors", Tensors: infos}}}).Findings
	}
	found := audit(infos)
	require.Len(t, found, 1)
	require.Equal(t, "layers.0.attn.wq_a.scale", found[0].Tensor)
	infos = append(infos, tensor.Info{Name: "layers.0.attn.wq_a.scale", DType: tensor.F8E8M0, Shape: []int{2, 2}})
	require.Empty(t, audit(infos))
	require.Equal(t, inspect.Missing, audit(infos[:len(infos)-2])[0].Kind)
	require.Equal(t, inspect.Unexpected, audit(append(infos, tensor.Info{Name: "hc_head_fn", DType: tensor.F32}))[0].Kind)
}
