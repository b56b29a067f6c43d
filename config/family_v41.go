package config

import (
	"errors"

	"dsmoe/text/problem"
)

// v41 is DeepSeek-V4.1: the keys of text_config that names depend on, with DeepSeek-V4.1-Flash's values. Nothing is
// computed from the others.
var v41 = family{
	modelType: "deepseek_v41", reference: Native, within: true,
	fields: []field{
		v4.row("num_hidden_layers", 40),
		v4.row("n_routed_experts", 384),
		v4.row("num_experts_per_tok", 6),
		v4.row("n_shared_experts", 1),
		v4.row("quantization_config", nil),
	},
	unread: []field{v4.row("moe_layer_freq", 1)},
	rules:  []rule{topKFitsExperts},
}

// Computable returns why nothing is computed with a checkpoint of c: its quantization_config is not read, or the family
// is not computed with. It is nil for most.
func (c *Config) Computable() error {
	if c.Quantization.Unread != nil {
		return problem.In("", c.Quantization.Unread...)
	}
	if c.ModelType != v41.modelType {
		return nil
	}
	return errors.New("model_type deepseek_v41: no reference is known to be right, so nothing is computed with it; " +
		"dsmoe inspect (summary, ls, tree, audit by names, stats, hash) and dsmoe convert without another dtype, layout " +
		"or choice of layers and experts are for it")
}
