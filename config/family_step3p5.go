package config

// step3p5 is transformers' Step3p7TextConfig, of Step 3.5 and 3.7: a sigmoid in float32, weights that are always normalised, a
// factor of the routed sum, and limits by layer.
var step3p5 = block.derive("step3p5", delta{
	class: "Step3p7ForConditionalGeneration",
	missing: map[string]any{
		"vocab_size": 128815, "hidden_size": 4096, "intermediate_size": 11264, "moe_intermediate_size": 1280,
		"num_hidden_layers": 45, "n_routed_experts": 288, "n_group": 0, "topk_group": 0, "rms_norm_eps": 1e-5,
	},
	fields: []field{
		sharedWidth(1280).named("share_expert_dim"),
		{"moe_layers_enum", nil, readBy(readSparseLayers).ifSet()},
		{"swiglu_limits", nil, limits(func(c *Config) *[]float64 { return &c.SwiGLULimits })},
		{"swiglu_limits_shared", nil, limits(func(c *Config) *[]float64 { return &c.SharedSwiGLULimits })},
	},
	unread:  []string{"n_shared_experts", "first_k_dense_replace", "n_group", "topk_group", "norm_topk_prob"},
	renamed: map[string]string{"routed_scaling_factor": "moe_router_scaling_factor"},
	aliases: map[string]string{"num_local_experts": "n_routed_experts", "moe_num_experts": "n_routed_experts",
		"moe_top_k": "num_experts_per_tok", "share_expert_dims": "share_expert_dim"},
	rules: append([]rule{
		sparseFrom(func(*Config) int { return 3 }),
		{[]string{"swiglu_limits", "num_hidden_layers"}, limitsOfLayers(func(c *Config) []float64 { return c.SwiGLULimits })},
		{[]string{"swiglu_limits_shared", "num_hidden_layers"},
			limitsOfLayers(func(c *Config) []float64 { return c.SharedSwiGLULimits })},
	}, block.rules...),
	references: sumScaled.native(func(r *Rules) { r.MoE.Activation = SwiGLULimited }),
})
