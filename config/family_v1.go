package config

import (
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// v1 is the first DeepSeekMoE: the keys of DeepseekConfig (configuration_deepseek.py) that the model or its training
// depend on, and the defaults of its __init__.
var v1 = family{
	modelType: "deepseek", class: "DeepseekForCausalLM", reference: Remote, fields: v1Fields, rules: v1Rules,
	unread: []field{
		{"routed_scaling_factor", 1.0, number(func(c *Config) *float64 { return &c.Router.RoutedScalingFactor }, positive).
			deciding(topKWeightsDiffer)},
	},
	rope:       &ropeForm{types: []string{"linear", "dynamic"}, number: parseFloat},
	references: map[Reference]Rules{Remote: {}},
}

var v1Fields = slices.Concat([]field{
	{"model_type", nil, str(func(c *Config) *string { return &c.ModelType }).deciding(networksDiffer)},
	{"vocab_size", 102400, integer(func(c *Config) *int { return &c.VocabSize }, 1, maxDim)},
	{"hidden_size", 4096, integer(func(c *Config) *int { return &c.HiddenSize }, 1, maxDim)},
	{"intermediate_size", 11008, integer(func(c *Config) *int { return &c.IntermediateSize }, 1, maxDim).
		deciding(either(func(c *Config) bool { return len(c.MoELayers()) < c.NumHiddenLayers }))},
	{"moe_intermediate_size", 1407, integer(func(c *Config) *int { return &c.MoE.MoEIntermediateSize }, 1, maxDim).
		deciding(haveMoELayer)},
	{"num_hidden_layers", 30, integer(func(c *Config) *int { return &c.NumHiddenLayers }, 1, maxLayers)},
	{"num_attention_heads", 32, integer(func(c *Config) *int { return &c.Attention.NumAttentionHeads }, 1, maxDim)},
	// null: num_attention_heads
	{"num_key_value_heads", 32, optional(func(c *Config) *int { return &c.Attention.NumKeyValueHeads }, maxDim)},
	{"n_shared_experts", nil, optional(func(c *Config) *int { return &c.MoE.NSharedExperts }, maxExperts).
		deciding(haveMoELayer)},
	{"n_routed_experts", nil, optional(func(c *Config) *int { return &c.MoE.NRoutedExperts }, maxExperts)},
	{"num_experts_per_tok", nil, optional(func(c *Config) *int { return &c.MoE.NumExpertsPerTok }, maxExperts)},
	{"moe_layer_freq", 1, integer(func(c *Config) *int { return &c.Layers.MoELayerFreq }, 1, maxLayers).
		deciding(layersDiffer)},
	{"first_k_dense_replace", nil, integer(func(c *Config) *int { return &c.Layers.FirstKDenseReplace }, 0, maxLayers).
		deciding(layersDiffer)},
	{"norm_topk_prob", nil, boolean(func(c *Config) *bool { return &c.Router.NormTopKProb }).deciding(topKWeightsDiffer)},
	{"scoring_func", "softmax", str(func(c *Config) *string { return &c.Router.ScoringFunc })},
	{"aux_loss_alpha", 0.001, number(func(c *Config) *float64 { return &c.Router.AuxLossAlpha }, notNegative)},
	{"seq_aux", true, boolean(func(c *Config) *bool { return &c.Router.SeqAux })},
	{"hidden_act", "silu", str(func(c *Config) *string { return &c.HiddenAct })},
	{"max_position_embeddings", 2048, integer(func(c *Config) *int { return &c.RoPE.MaxPositionEmbeddings }, 1, maxDim).
		deciding(either(func(c *Config) bool {
			return c.RoPE.RopeScaling != nil && c.RoPE.RopeScaling.Type == "dynamic"
		}))},
	{"initializer_range", 0.02, number(func(c *Config) *float64 { return &c.InitializerRange }, notNegative).
		deciding(never)},
	{"rms_norm_eps", 1e-6, number(func(c *Config) *float64 { return &c.RMSNormEps }, positive)},
	{"pretraining_tp", 1, integer(func(c *Config) *int { return &c.PretrainingTP }, 1, maxDim).deciding(never)},
	{"tie_word_embeddings", nil, boolean(func(c *Config) *bool { return &c.TieWordEmbeddings })},
	{"rope_theta", 10000.0, number(func(c *Config) *float64 { return &c.RoPE.RopeTheta }, positive)},
	{"rope_scaling", nil, readBy(readRopeScaling).showing(func(c *Config) jsontext.Value {
		return jsontext.Value(c.RoPE.RopeScaling.String())
	})},
	{"rope_parameters", nil, readBy(readRopeParameters).ifSet()},
	{"attention_bias", nil, boolean(func(c *Config) *bool { return &c.Attention.AttentionBias })},
}, storedFields)

// storedFields are the keys of how weights are stored, the same in all families but V4.1.
var storedFields = []field{
	{"torch_dtype", nil, readBy(readTorchDType).ifSet().showing(func(c *Config) jsontext.Value {
		if c.TorchDType == "" {
			return jsontext.Value("null")
		}
		return toJSON(c.TorchDType)
	}).deciding(never)},
	{"dtype", nil, readBy(readTorchDType).ifSet()},
	{"quantization_config", nil, readBy(readQuantization).ifSet().showing(shownQuantization).deciding(never)},
	{"quantization", nil, refused("weights of MLX are not read; dequantise them with mlx_lm.convert --dequantize")},
	// AutoRound writes these where there is no quantization_config.
	{"rotation_config", nil, refused(rotates)},
	{"spinquant_config", nil, refused(rotates)},
}

const rotates = "rotates while the model runs, which its weights do not hold; save the model without it"

// v1Rules are checked between fields that are each in order.
var v1Rules = []rule{
	headsDivideHidden,
	{[]string{"num_hidden_layers", "vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size",
		"n_shared_experts", "n_routed_experts"}, sizeIsSane},
	groupsDivideHeads,
	topKFitsExperts,
	scoringIsSoftmax,
	activationIsSiLU,
	{[]string{"pretraining_tp", "vocab_size", "hidden_size", "num_key_value_heads", "num_attention_heads",
		"intermediate_size"}, slicesDivide},
	// With pretraining_tp > 1 DeepseekAttention.forward multiplies with slices of the weights and leaves the biases out.
	{[]string{"pretraining_tp", "attention_bias"}, func(c *Config) error {
		return errorIf(c.PretrainingTP > 1 && c.Attention.AttentionBias,
			"%d with attention_bias: the reference would leave the biases out",
			c.PretrainingTP)
	}},
}

// headsDivideHidden: DeepseekAttention.__init__ demands head_dim * num_heads ==
// hidden_size; rotate_half needs two halves.
var headsDivideHidden = rule{[]string{"hidden_size", "num_attention_heads"}, func(c *Config) error {
	if c.HiddenSize%c.Attention.NumAttentionHeads != 0 {
		return fmt.Errorf("%d is not divisible by num_attention_heads %d", c.HiddenSize, c.Attention.NumAttentionHeads)
	}
	return errorIf(c.HeadDim()%2 != 0,
		"%d over num_attention_heads %d makes a head dimension of %d, which is odd: RoPE rotates its halves",
		c.HiddenSize, c.Attention.NumAttentionHeads, c.HeadDim())
}}

// groupsDivideHeads: repeat_kv gives each key head the same number of query heads.
var groupsDivideHeads = rule{[]string{"num_key_value_heads", "num_attention_heads"}, func(c *Config) error {
	return errorIf(c.Attention.NumAttentionHeads%c.Attention.NumKeyValueHeads != 0,
		"num_attention_heads %d is not divisible by %d",
		c.Attention.NumAttentionHeads, c.Attention.NumKeyValueHeads)
}}

// slicesDivide: with pretraining_tp > 1 the reference cuts its weights into slices
// of width // pretraining_tp and would lose the rest of an uneven cut.
func slicesDivide(c *Config) error {
	widths := []struct {
		key string
		n   int
	}{
		{"vocab_size", c.VocabSize},
		{"hidden_size", c.HiddenSize},
		{"num_key_value_heads * head_dim", c.Attention.NumKeyValueHeads * c.HeadDim()},
		{"intermediate_size", c.IntermediateSize},
	}
	for _, w := range widths {
		if w.n%c.PretrainingTP != 0 {
			return fmt.Errorf("%d does not divide %s %d: the reference would drop the rest", c.PretrainingTP, w.key, w.n)
		}
	}
	return nil
}
