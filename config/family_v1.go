package config

import (
	"fmt"
)

// v1Defaults are the defaults of DeepseekConfig.__init__ (configuration_deepseek.py). Fields that
// are not here are 0, false or null.
var v1Defaults = Config{
	ModelType:             "deepseek",
	VocabSize:             102400,
	HiddenSize:            4096,
	IntermediateSize:      11008,
	MoEIntermediateSize:   1407,
	NumHiddenLayers:       30,
	NumAttentionHeads:     32,
	NumKeyValueHeads:      32,
	MoELayerFreq:          1,
	ScoringFunc:           "softmax",
	AuxLossAlpha:          0.001,
	SeqAux:                true,
	HiddenAct:             "silu",
	MaxPositionEmbeddings: 2048,
	InitializerRange:      0.02,
	RMSNormEps:            1e-6,
	PretrainingTP:         1,
	RopeTheta:             10000,
	RoutedScalingFactor:   1,
	Reference:             Remote,
}

// v1Fields are the keys of DeepseekConfig that the model or its training depend on.
var v1Fields = []field{
	{"model_type", str(func(c *Config) *string { return &c.ModelType })},
	{"vocab_size", integer(func(c *Config) *int { return &c.VocabSize }, 1, maxDim)},
	{"hidden_size", integer(func(c *Config) *int { return &c.HiddenSize }, 1, maxDim)},
	{"intermediate_size", integer(func(c *Config) *int { return &c.IntermediateSize }, 1, maxDim)},
	{"moe_intermediate_size", integer(func(c *Config) *int { return &c.MoEIntermediateSize }, 1, maxDim)},
	{"num_hidden_layers", integer(func(c *Config) *int { return &c.NumHiddenLayers }, 1, maxLayers)},
	{"num_attention_heads", integer(func(c *Config) *int { return &c.NumAttentionHeads }, 1, maxDim)},
	// null: num_attention_heads
	{"num_key_value_heads", optional(func(c *Config) *int { return &c.NumKeyValueHeads }, maxDim)},
	{"n_shared_experts", optional(func(c *Config) *int { return &c.NSharedExperts }, maxExperts)},
	{"n_routed_experts", optional(func(c *Config) *int { return &c.NRoutedExperts }, maxExperts)},
	{"num_experts_per_tok", optional(func(c *Config) *int { return &c.NumExpertsPerTok }, maxExperts)},
	{"moe_layer_freq", integer(func(c *Config) *int { return &c.MoELayerFreq }, 1, maxLayers)},
	{"first_k_dense_replace", integer(func(c *Config) *int { return &c.FirstKDenseReplace }, 0, maxLayers)},
	{"norm_topk_prob", boolean(func(c *Config) *bool { return &c.NormTopKProb })},
	{"scoring_func", str(func(c *Config) *string { return &c.ScoringFunc })},
	{"aux_loss_alpha", number(func(c *Config) *float64 { return &c.AuxLossAlpha }, notNegative)},
	{"seq_aux", boolean(func(c *Config) *bool { return &c.SeqAux })},
	{"hidden_act", str(func(c *Config) *string { return &c.HiddenAct })},
	{"max_position_embeddings", integer(func(c *Config) *int { return &c.MaxPositionEmbeddings }, 1, maxDim)},
	{"initializer_range", number(func(c *Config) *float64 { return &c.InitializerRange }, notNegative)},
	{"rms_norm_eps", number(func(c *Config) *float64 { return &c.RMSNormEps }, positive)},
	{"pretraining_tp", integer(func(c *Config) *int { return &c.PretrainingTP }, 1, maxDim)},
	{"tie_word_embeddings", boolean(func(c *Config) *bool { return &c.TieWordEmbeddings })},
	{"rope_theta", number(func(c *Config) *float64 { return &c.RopeTheta }, positive)},
	{"rope_scaling", reader{read: readRopeScaling}},
	{"rope_parameters", reader{read: readRopeParameters}},
	{"attention_bias", boolean(func(c *Config) *bool { return &c.AttentionBias })},
	{"torch_dtype", reader{read: readTorchDType}},
	{"dtype", reader{read: readTorchDType}},
	{"quantization_config", reader{read: readQuantization}},
	{"quantization", reader{read: refuseMLX}},
	{"rotation_config", reader{read: refuseRotation}},
	{"spinquant_config", reader{read: refuseRotation}},
}

// v1Rules are checked between fields that are each in order.
var v1Rules = []rule{
	{[]string{"hidden_size", "num_attention_heads"}, headsDivideHidden},
	{[]string{"num_hidden_layers", "vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size",
		"n_shared_experts", "n_routed_experts"}, sizeIsSane},
	{[]string{"num_key_value_heads", "num_attention_heads"}, groupsDivideHeads},
	{[]string{"num_experts_per_tok", "n_routed_experts"}, topKFitsExperts},
	{[]string{"scoring_func", "n_routed_experts"}, scoringIsSoftmax},
	{[]string{"hidden_act"}, activationIsSiLU},
	{[]string{"pretraining_tp", "vocab_size", "hidden_size", "num_key_value_heads", "num_attention_heads",
		"intermediate_size"}, slicesDivide},
	{[]string{"pretraining_tp", "attention_bias"}, slicesKeepBias},
}

// headsDivideHidden: DeepseekAttention.__init__ demands head_dim * num_heads ==
// hidden_size; rotate_half needs two halves.
func headsDivideHidden(c *Config) error {
	if c.HiddenSize%c.NumAttentionHeads != 0 {
		return fmt.Errorf("%d is not divisible by num_attention_heads %d", c.HiddenSize, c.NumAttentionHeads)
	}
	if c.HeadDim()%2 != 0 {
		return fmt.Errorf(
			"%d over num_attention_heads %d makes a head dimension of %d, which is odd: RoPE rotates its halves",
			c.HiddenSize, c.NumAttentionHeads, c.HeadDim())
	}
	return nil
}

// groupsDivideHeads: repeat_kv gives each key head the same number of query heads.
func groupsDivideHeads(c *Config) error {
	if c.NumAttentionHeads%c.NumKeyValueHeads != 0 {
		return fmt.Errorf("num_attention_heads %d is not divisible by %d", c.NumAttentionHeads, c.NumKeyValueHeads)
	}
	return nil
}

// slicesDivide: with pretraining_tp > 1 the reference cuts its weights into slices
// of width // pretraining_tp and would lose the rest of an uneven cut.
func slicesDivide(c *Config) error {
	widths := []struct {
		key string
		n   int
	}{
		{"vocab_size", c.VocabSize},
		{"hidden_size", c.HiddenSize},
		{"num_key_value_heads * head_dim", c.NumKeyValueHeads * c.HeadDim()},
		{"intermediate_size", c.IntermediateSize},
	}
	for _, w := range widths {
		if w.n%c.PretrainingTP != 0 {
			return fmt.Errorf("%d does not divide %s %d: the reference would drop the rest", c.PretrainingTP, w.key, w.n)
		}
	}
	return nil
}

// slicesKeepBias: with pretraining_tp > 1 DeepseekAttention.forward multiplies with
// slices of the weights and leaves the biases out.
func slicesKeepBias(c *Config) error {
	if c.PretrainingTP > 1 && c.AttentionBias {
		return fmt.Errorf("%d with attention_bias: the reference would leave the biases out", c.PretrainingTP)
	}
	return nil
}
