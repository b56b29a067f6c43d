package config

// sarvamMLA is transformers' SarvamMLAConfig, Sarvam-105B's: DeepSeek-V3's network. Its files have head_dim 576,
// kv_lora_rank and qk_rope_head_dim together, which the reference does not read.
var sarvamMLA = v3.derive("sarvam_mla", delta{
	missing: map[string]any{
		"vocab_size": 262144, "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 32,
		"num_attention_heads": 64, "num_key_value_heads": 0, "n_routed_experts": 128, "q_lora_rank": 0, "n_group": 1,
		"topk_group": 1, "first_k_dense_replace": 1, "initializer_range": 0.006, "num_nextn_predict_layers": 0,
	},
	unread: []string{"head_dim", "auto_map", "num_nextn_predict_layers"},
	aliases: map[string]string{"num_experts": "n_routed_experts", "num_local_experts": "n_routed_experts",
		"num_shared_experts": "n_shared_experts"},
	rope: &ropeForm{types: yarnForm.types, keys: yarnForm.keys, number: yarnForm.number,
		called: map[string]string{"deepseek_yarn": "yarn"}},
	references: v3.native(func(r *Rules) { r.Router.KeepsGate = true }),
})

// sarvamMoE is transformers' SarvamMoEConfig, Sarvam-30B's: GLM-4.5's network, all channels of a head rotated, with
// queries, keys and values in one tensor of the files.
var sarvamMoE = grouped.derive("sarvam_moe", delta{
	class: glm4MoE.class,
	missing: map[string]any{
		"vocab_size": 262144, "hidden_size": 4096, "intermediate_size": 8192, "moe_intermediate_size": 1024,
		"num_hidden_layers": 19, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 64,
		"n_routed_experts": 128, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5,
		"max_position_embeddings": 131072, "initializer_range": 0.006, "rms_norm_eps": 1e-6, "rope_theta": 8e6,
	},
	fields: []field{grouped.row("use_qk_norm", true)},
	aliases: map[string]string{"num_experts": "n_routed_experts", "num_local_experts": "n_routed_experts",
		"num_shared_experts": "n_shared_experts", "use_qkv_bias": "attention_bias"},
	rules: groupedRules,
	references: glm4MoE.native(func(r *Rules) {
		r.Attention.QKV, r.Router.KeepsGate = QKVInFiles, true
	}),
})
