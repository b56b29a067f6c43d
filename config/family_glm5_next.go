package config

// glm5Next is transformers' Glm5NextTextConfig: DeepSeek-V3's mixture with swiglu_limit, behind streams.
var glm5Next = block.derive("glm5_next_text", delta{
	class: "Glm5NextForConditionalGeneration",
	missing: map[string]any{
		"vocab_size": 154880, "hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 2048,
		"num_hidden_layers": 45, "n_routed_experts": 288, "routed_scaling_factor": 2.5, "rms_norm_eps": 1e-5,
	},
	fields: []field{
		oneOf("model_type", "glm5_next", "glm5_next_text"), v4.row("swiglu_limit", 10.0), carriedPredictions,
	},
	unread:  []string{"first_k_dense_replace"},
	aliases: localExperts,
	rules:   append([]rule{sparseFrom(func(*Config) int { return 3 })}, block.rules...),
})
