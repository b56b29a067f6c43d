package config

import "errors"

// v41Defaults are DeepSeek-V4.1-Flash's.
var v41Defaults = Config{
	ModelType:        "deepseek_v41",
	NumHiddenLayers:  40,
	NSharedExperts:   1,
	NRoutedExperts:   384,
	NumExpertsPerTok: 6,
	MoELayerFreq:     1,
	Reference:        Native,
}

// v41Fields are the keys of text_config that names depend on. Nothing is computed from the others.
var v41Fields = append(only(v4Fields, "num_hidden_layers", "n_routed_experts", "num_experts_per_tok"),
	field{"n_shared_experts", integer(func(c *Config) *int { return &c.NSharedExperts }, 1, 1)},
	only(v4Fields, "quantization_config")[0])

var v41Rules = []rule{{[]string{"num_experts_per_tok", "n_routed_experts"}, topKFitsExperts}}

// Computable returns why nothing is computed with a model of c; nil for most families.
func (c *Config) Computable() error {
	if c.ModelType != v41Defaults.ModelType {
		return nil
	}
	return errors.New("model_type deepseek_v41: no reference is known to be right, so nothing is computed with it; " +
		"dsmoe inspect (summary, ls, tree, audit by names, stats, hash) and dsmoe convert without another dtype, layout " +
		"or choice of layers and experts are for it")
}
