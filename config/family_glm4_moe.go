package config

// glm4MoE is transformers' Glm4MoeConfig, GLM-4.5's, 4.6's and 4.7's.
var glm4MoE = grouped.derive("glm4_moe", delta{
	aliases: localExperts,
	class:   "Glm4MoeForCausalLM",
	missing: map[string]any{
		"vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 10944, "moe_intermediate_size": 1408,
		"num_hidden_layers": 46, "num_attention_heads": 96, "num_key_value_heads": 8, "n_routed_experts": 128,
		"num_experts_per_tok": 8, "first_k_dense_replace": 1, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
		"partial_rotary_factor": 0.5,
	},
	fields: []field{
		grouped.row("use_qk_norm", false),
		grouped.row("num_nextn_predict_layers", 1),
	},
	rules:      groupedRules,
	references: grouped.native(func(r *Rules) { r.Attention.OutputUnbiased = true }),
})
