package config

// ling1 is BailingMoeConfig of the configuration_bailing_moe.py that is published with Ling-lite and Ling-plus: a softmax
// in float32 over logits in the weights' dtype. Its attention divides queries, and is not computed.
var ling1 = block.derive("bailing_moe", delta{
	class: "BailingMoeForCausalLM",
	missing: map[string]any{
		"vocab_size": 30592, "hidden_size": 1024, "intermediate_size": 0, "moe_intermediate_size": 0, "num_hidden_layers": 24,
		"n_routed_experts": 16, "num_experts_per_tok": 2, "n_shared_experts": 0, "n_group": 0, "topk_group": 0,
		"rms_norm_eps": 1e-5, "scoring_func": "softmax",
	},
	unread:    []string{"n_group", "topk_group", "routed_scaling_factor", "mlp_layer_types"},
	renamed:   map[string]string{"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"},
	reference: Remote,
	references: map[Reference]Rules{Remote: {
		Router: routerRules{ScoresInFloat32: true, UnbiasedChoice: true, NormsBare: true, ScalesNormalised: true},
		MoE:    moeRules{IgnoresMoELayerFreq: true, RoutedSum: ByChoice},
	}},
})
