package config

import (
	"errors"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// mistralLarge3 is Mistral Large 3, whose files have a params.json with Mistral's own keys in place of config.json: see
// document.named. Its mixture is Mistral Large 4's.
var mistralLarge3 = block.derive("mistral_large_3", delta{
	class: "MistralLarge3ForCausalLM",
	missing: map[string]any{"scoring_func": "softmax", "rms_norm_eps": 1e-6, "n_shared_experts": 0, "n_routed_experts": nil,
		"num_experts_per_tok": nil},
	fields: []field{
		{"quantization", nil, refused("scales called qscale_weight and qscale_act are not read; Mistral publishes models with " +
			"them a second time, with config.json and model.safetensors: download these files")},
		{"moe.route_every_n", nil, refusal(func(v jsontext.Value) error { _, err := parseInteger(v, 1, 1); return err }).ifSet()},
		oneOf("moe.renorm_strategy", "WEIGHTS"),
		{"moe.use_load_balancing_bias", nil, always(false, "a router bias of this family is not known").ifSet()},
	},
	unread: []string{"norm_topk_prob", "mlp_bias", "initializer_range", "torch_dtype", "dtype"},
	renamed: map[string]string{"hidden_size": "dim", "intermediate_size": "hidden_dim", "num_hidden_layers": "n_layers",
		"rms_norm_eps": "norm_eps", "hidden_act": "activation", "tie_word_embeddings": "tied_embeddings",
		"n_routed_experts": "moe.num_experts", "num_experts_per_tok": "moe.num_experts_per_tok",
		"moe_intermediate_size": "moe.expert_hidden_dim", "n_shared_experts": "moe.num_shared_experts",
		"first_k_dense_replace": "moe.first_k_dense_replace", "routed_scaling_factor": "moe.routed_scale",
		"n_group": "moe.num_expert_groups", "topk_group": "moe.num_expert_groups_per_tok"},
	rules: slices.Concat(
		saysSize("vocab_size", func(c *Config) int { return c.VocabSize }),
		saysSize("hidden_size", func(c *Config) int { return c.HiddenSize }),
		saysSize("intermediate_size", func(c *Config) int { return c.IntermediateSize }),
		saysSize("num_hidden_layers", func(c *Config) int { return c.NumHiddenLayers }),
		saysSize("n_routed_experts", func(c *Config) int { return c.MoE.NRoutedExperts }),
		saysSize("num_experts_per_tok", func(c *Config) int { return c.MoE.NumExpertsPerTok }),
		saysSize("moe_intermediate_size", func(c *Config) int { return c.MoE.MoEIntermediateSize }),
		[]rule{sparseFrom(func(c *Config) int { return c.Layers.FirstKDenseReplace })}, block.rules),
	references: mistralLarge4.references,
})

// saysSize demands a key that has no default.
func saysSize(key string, get func(c *Config) int) []rule {
	return []rule{{[]string{key}, func(c *Config) error {
		if get(c) == 0 {
			return errors.New("missing")
		}
		return nil
	}}}
}
