package config

// axk2 is transformers' AXK2Config, A.X-K2's: DeepSeek-V3's mixture, but other groups get 0. Without n_group there are no groups.
var axk2 = block.derive("axk2", delta{
	class: "AXK2ForCausalLM",
	missing: map[string]any{
		"vocab_size": 163840, "hidden_size": 2048, "intermediate_size": 5120, "moe_intermediate_size": 512,
		"num_hidden_layers": 48, "n_routed_experts": 128, "first_k_dense_replace": 1, "n_group": 0, "topk_group": 0,
		"routed_scaling_factor": 2.5, "rms_norm_eps": 1e-6,
	},
	fields:     []field{layerFrequency},
	aliases:    localExperts,
	rules:      append([]rule{sparseFrom(func(c *Config) int { return c.Layers.FirstKDenseReplace })}, block.rules...),
	references: block.native(func(r *Rules) { r.Router.MasksToZero = true }),
})
