package config

// glm4MoELite is transformers' Glm4MoeLiteConfig, GLM-4.7-Flash's: DeepSeek-V3's network.
var glm4MoELite = layerTyped.derive("glm4_moe_lite", delta{
	aliases: localExperts,
	class:   "Glm4MoeLiteForCausalLM",
	missing: map[string]any{
		"vocab_size": 154880, "hidden_size": 2048, "num_hidden_layers": 47, "intermediate_size": 10240,
		"moe_intermediate_size": 1536, "num_attention_heads": 20, "num_key_value_heads": 20, "n_routed_experts": 64,
		"num_experts_per_tok": 4, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.8,
		"first_k_dense_replace":    1, // as without mlp_layer_types
		"num_nextn_predict_layers": 0, "max_position_embeddings": 202752, "rms_norm_eps": 1e-5, "q_lora_rank": 768,
		"qk_nope_head_dim": 192, "v_head_dim": 256,
	},
})
