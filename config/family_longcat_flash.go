package config

// longcatFlash is transformers' LongcatFlashConfig: a softmax in float32, a bias, weights that are never normalised, and experts
// that give what they take. All layers have a mixture.
var longcatFlash = block.derive("longcat_flash", delta{
	class: "LongcatFlashForCausalLM",
	missing: map[string]any{
		"vocab_size": 131072, "hidden_size": 6144, "intermediate_size": 12288, "moe_intermediate_size": 2048,
		"num_hidden_layers": 28, "n_shared_experts": 0, "n_routed_experts": 512, "num_experts_per_tok": 12, "n_group": 0,
		"topk_group": 0, "routed_scaling_factor": 6.0, "rms_norm_eps": 1e-5, "scoring_func": "softmax",
	},
	fields: []field{
		{"zero_expert_num", 256, natural(func(c *Config) *int { return &c.MoE.ZeroExperts }, maxExperts)},
	},
	unread: []string{"n_shared_experts", "first_k_dense_replace", "n_group", "topk_group", "norm_topk_prob",
		"mlp_layer_types"},
	renamed: map[string]string{"num_hidden_layers": "num_layers", "num_experts_per_tok": "moe_topk",
		"intermediate_size": "ffn_hidden_size", "moe_intermediate_size": "expert_ffn_hidden_size"},
	aliases: localExperts,
	references: v3.native(func(r *Rules) {
		r.Router.CastsRouterBias, r.Router.NormTopK = true, normNever
	}),
})
