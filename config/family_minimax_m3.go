package config

// minimaxM3 is transformers' MiniMaxM3VLTextConfig: MiniMax-M2's gate, a factor of the routed sum, shared experts, and the
// activation of gpt-oss.
var minimaxM3 = block.derive("minimax_m3_vl_text", delta{
	class: "MiniMaxM3VLForCausalLM",
	missing: map[string]any{
		"vocab_size": 200064, "hidden_size": 6144, "intermediate_size": 12288, "moe_intermediate_size": 3072,
		"num_hidden_layers": 60, "n_routed_experts": 128, "num_experts_per_tok": 4, "n_group": 0, "topk_group": 0,
		"routed_scaling_factor": 2.0, "rms_norm_eps": 1e-6,
	},
	fields: []field{
		sharedWidth(3072).named("shared_intermediate_size"), v4.row("swiglu_limit", 7.0), layerFrequency,
		{"swiglu_alpha", 1.702, number(func(c *Config) *float64 { return &c.SwiGLUAlpha }, positive)},
		oneOf("hidden_act", "silu", "swigluoai"), // whatever it says, swiglu_alpha counts
	},
	unread: []string{"n_shared_experts", "first_k_dense_replace", "n_group", "topk_group", "norm_topk_prob"},
	renamed: map[string]string{"n_routed_experts": "num_local_experts", "intermediate_size": "dense_intermediate_size",
		"moe_intermediate_size": "intermediate_size"},
	aliases:    map[string]string{"num_experts": "num_local_experts"},
	rules:      append([]rule{sparseFrom(func(*Config) int { return 0 })}, block.rules...),
	references: sumScaled.native(func(r *Rules) { r.MoE.Activation = SwiGLUShifted }),
})
