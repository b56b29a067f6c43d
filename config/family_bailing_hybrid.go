package config

// bailingHybrid is transformers' BailingHybridConfig, Ling 3's: DeepSeek-V3's mixture behind linear and latent attention.
var bailingHybrid = block.derive("bailing_hybrid", delta{
	class: "BailingHybridForCausalLM",
	missing: map[string]any{
		"vocab_size": 157184, "hidden_size": 2560, "intermediate_size": 6144, "moe_intermediate_size": 768,
		"num_hidden_layers": 42, "n_routed_experts": 512, "first_k_dense_replace": 2, "n_group": 8, "topk_group": 4,
		"routed_scaling_factor": 2.5, "rms_norm_eps": 1e-6,
	},
	fields: []field{
		carriedPredictions,
		{"expert_swiglu_limit_list", nil, refused(limitedExperts)},
		{"share_expert_swiglu_limit_list", nil, refused(limitedExperts)},
	},
	aliases: namesOfLinear,
	rules:   append([]rule{sparseFrom(func(c *Config) int { return c.Layers.FirstKDenseReplace })}, block.rules...),
})

// carriedPredictions is the row of num_nextn_predict_layers of families whose prediction layers are not computed.
var carriedPredictions = field{"num_nextn_predict_layers", 0,
	natural(func(c *Config) *int { return &c.NumNextNPredictLayers }, maxLayers).deciding(never)}

const limitedExperts = "transformers' class does not clamp experts, and engines do: no reference is known to be right"
