package config

// hyV4 is transformers' HYV4Config: DeepSeek-V3's mixture with swiglu_limit of routed experts alone, behind streams.
var hyV4 = block.derive("hy_v4", delta{
	class: "HYV4ForCausalLM",
	missing: map[string]any{
		"vocab_size": 120832, "hidden_size": 2816, "intermediate_size": 6912, "moe_intermediate_size": 768,
		"num_hidden_layers": 34, "routed_scaling_factor": 2.827, "initializer_range": 0.006, "rms_norm_eps": 1e-5,
	},
	fields: []field{
		oneOf("model_type", "hy_v4", "hy_v4_vl", "hy_v4_vl_text"),
		v4.row("swiglu_limit", 10.0),
	},
	unread:     []string{"first_k_dense_replace"},
	aliases:    localExperts,
	rules:      append([]rule{sparseFrom(func(*Config) int { return 1 })}, block.rules...),
	references: block.native(func(r *Rules) { r.MoE.LimitsRouted = true }),
})
