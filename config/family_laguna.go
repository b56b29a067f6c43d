package config

// laguna is transformers' LagunaConfig: a sigmoid in float32 over logits in the weights' dtype, which a tanh may bound, weights
// that are always normalised and cast, and a factor of the routed sum.
var laguna = block.derive("laguna", delta{
	class: "LagunaForCausalLM",
	missing: map[string]any{
		"vocab_size": 100352, "hidden_size": 2048, "intermediate_size": 8192, "moe_intermediate_size": 512,
		"num_hidden_layers": 40, "n_group": 0, "topk_group": 0, "rms_norm_eps": 1e-6,
	},
	fields: []field{
		sharedWidth(512),
		{"moe_router_logit_softcapping", nil, number(func(c *Config) *float64 { return &c.Router.LogitCap }, notNegative)},
		{"moe_apply_router_weight_on_input", nil, always(false, "transformers' class refuses it")},
	},
	unread:  []string{"n_shared_experts", "first_k_dense_replace", "n_group", "topk_group", "norm_topk_prob"},
	renamed: map[string]string{"n_routed_experts": "num_experts", "routed_scaling_factor": "moe_routed_scaling_factor"},
	rules:   append([]rule{sparseFrom(func(*Config) int { return 1 })}, block.rules...),
	references: sumScaled.native(func(r *Rules) {
		r.Router.WidensLogits, r.Router.CastsTopKWeights = true, true
	}),
})
