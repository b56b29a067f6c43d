package config

// nemotronH is transformers' NemotronHConfig: DeepSeek-V3's gate, experts without gate_proj, perhaps in a latent space, whose
// outputs are added in float32. A layer is one module: a mixture, an MLP, attention or a state space.
var nemotronH = block.derive("nemotron_h", delta{
	class: "NemotronHForCausalLM",
	missing: map[string]any{
		"vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 21504, "moe_intermediate_size": 7688,
		"num_hidden_layers": 4, "n_routed_experts": 8, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5,
	},
	fields: []field{
		sharedWidth(7688).named("moe_shared_expert_intermediate_size"),
		{"moe_latent_size", nil, optional(func(c *Config) *int { return &c.MoE.LatentSize }, maxDim)},
		oneOf("hidden_act", "relu2"),
		{"layers_block_type", nil, readBy(readModules).ifSet()},
		{"hybrid_override_pattern", nil, readBy(readModules).ifSet()},
	},
	unread:  []string{"n_shared_experts", "first_k_dense_replace", "mlp_layer_types"},
	renamed: map[string]string{"rms_norm_eps": "layer_norm_epsilon", "hidden_act": "mlp_hidden_act"},
	aliases: localExperts,
	rules: append([]rule{{[]string{"layers_block_type", "hybrid_override_pattern"}, func(c *Config) error {
		return errorIf(c.Layers.MLPLayerTypes == nil, "missing: transformers' class would have four layers without it")
	}}}, block.rules...),
	references: block.native(func(r *Rules) {
		r.MoE.Activation, r.MoE.SumsInFloat32, r.NormsOnce = SquaredReLU, true, true
	}),
})
