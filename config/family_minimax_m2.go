package config

// minimaxM2 is transformers' MiniMaxM2Config: no shared experts, no groups and no scaling; a gate in the weights' dtype,
// and norms over all heads.
var minimaxM2 = grouped.derive("minimax_m2", delta{
	class: "MiniMaxM2ForCausalLM",
	missing: map[string]any{
		"vocab_size": 200064, "hidden_size": 3072, "intermediate_size": 0, "moe_intermediate_size": 1536, "num_hidden_layers": 62,
		"num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128, "n_shared_experts": 0, "n_routed_experts": 256,
		"num_experts_per_tok": 8, "first_k_dense_replace": 0, "n_group": 0, "topk_group": 0, "max_position_embeddings": 196608,
		"rope_theta": 5e6,
	},
	fields: []field{{"rotary_dim", nil, natural(func(c *Config) *int { return &c.Attention.QKRopeHeadDim }, maxDim)}},
	unread: []string{"first_k_dense_replace", "intermediate_size", "n_shared_experts", "n_group", "topk_group",
		"norm_topk_prob", "routed_scaling_factor", "attention_bias", "mlp_bias"},
	renamed: map[string]string{"n_routed_experts": "num_local_experts", "moe_intermediate_size": "intermediate_size"},
	rules:   groupedRules,
	references: grouped.native(func(r *Rules) {
		r.Attention.QKNorm, r.Router.RouterFloat32, r.Router.ScoresInFloat32, r.Router.CastsRouterBias,
			r.Router.NormsBare = AllHeads, false, true, true, true
	}),
})
