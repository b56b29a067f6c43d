package config

// solarOpen is transformers' SolarOpenConfig. Every layer has experts: it reads neither first_k_dense_replace nor
// intermediate_size.
var solarOpen = grouped.derive("solar_open", delta{
	aliases: localExperts,
	class:   "SolarOpenForCausalLM",
	missing: map[string]any{
		"vocab_size": 196608, "hidden_size": 4096, "intermediate_size": 0, "moe_intermediate_size": 1280, "num_hidden_layers": 48,
		"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "n_routed_experts": 128,
		"num_experts_per_tok": 8, "first_k_dense_replace": 0, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
		"rope_theta": 1e6, "use_qk_norm": false,
	},
	unread:     []string{"first_k_dense_replace", "intermediate_size"},
	references: grouped.native(func(r *Rules) { r.Attention.OutputUnbiased = true }),
})
