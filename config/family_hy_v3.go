package config

// hyV3 is transformers' HYV3Config, Tencent Hy3's: no groups of experts, weights that are always normalised.
var hyV3 = grouped.derive("hy_v3", delta{
	class: "HYV3ForCausalLM",
	missing: map[string]any{
		"vocab_size": 120832, "hidden_size": 4096, "intermediate_size": 13312, "moe_intermediate_size": 1536,
		"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
		"n_routed_experts": 192, "num_experts_per_tok": 8, "first_k_dense_replace": 0, "n_group": 0, "topk_group": 0,
		"routed_scaling_factor": 2.826, "max_position_embeddings": 131072, "initializer_range": 0.006, "rms_norm_eps": 1e-5,
		"rope_theta": 11158840.0,
	},
	fields: []field{grouped.row("mlp_layer_types", nil), grouped.row("num_nextn_predict_layers", 0)},
	unread: []string{"first_k_dense_replace", "n_group", "topk_group", "norm_topk_prob"},
	renamed: map[string]string{"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts",
		"routed_scaling_factor": "router_scaling_factor"},
	rules:      append([]rule{sparseFrom(func(*Config) int { return 1 })}, grouped.rules...),
	references: grouped.native(func(r *Rules) { r.Attention.QKNorm, r.MoE.FlatShared = PerHeadTransposed, true }),
})
