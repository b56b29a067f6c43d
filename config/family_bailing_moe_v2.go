package config

// ling2 is BailingMoeV2Config of the configuration_bailing_moe_v2.py that is published with Ling 2 and Ring 2: their
// config.json has the model_type of Ling 1. The prediction layers are not computed.
var ling2 = grouped.derive("bailing_moe_v2", delta{
	class: "BailingMoeV2ForCausalLM",
	also:  "bailing_moe",
	missing: map[string]any{
		"vocab_size": 157184, "hidden_size": 2048, "intermediate_size": 5120, "moe_intermediate_size": 512,
		"num_hidden_layers": 20, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128,
		"n_shared_experts": 1, "n_routed_experts": 256, "num_experts_per_tok": 8, "first_k_dense_replace": 1, "n_group": 8,
		"topk_group": 4, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 600000.0,
	},
	fields: []field{
		oneOf("model_type", "bailing_moe", "bailing_moe_v2"),
		grouped.row("use_qk_norm", true),
		{"n_shared_experts", nil, optional(func(c *Config) *int { return &c.MoE.NSharedExperts }, maxExperts)},
		{"num_nextn_predict_layers", 0, natural(func(c *Config) *int { return &c.NumNextNPredictLayers }, maxLayers).
			deciding(never)},
		{"use_bias", nil, always(false, "a bias of attention's output is not supported, no published model has it")},
	},
	unread: []string{"norm_topk_prob", "mlp_bias"},
	renamed: map[string]string{"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts",
		"attention_bias": "use_qkv_bias"},
	reference: Remote,
	rules:     groupedRules,
	references: map[Reference]Rules{Remote: {
		Attention: attentionRules{QKV: QKVJoined, QKNorm: PerHeadTransposed, OutputUnbiased: true},
		RoPE:      ropeRules{AnglesInFloat32: true},
		Router:    routerRules{RouterFloat32: true, CastsRouterBias: true, ScalesNormalised: true},
		MoE:       moeRules{IgnoresMoELayerFreq: true, RoutedSum: ByChoice},
	}},
})
