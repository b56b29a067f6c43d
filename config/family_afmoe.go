package config

// afmoe is transformers' AfmoeConfig, Trinity's: a gate in the weights' dtype, without groups, whose weights are always
// normalised, and a norm behind the MLP.
var afmoe = block.derive("afmoe", delta{
	class: "AfmoeForCausalLM",
	missing: map[string]any{
		"vocab_size": 200192, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 1408,
		"num_hidden_layers": 32, "n_shared_experts": 2, "n_routed_experts": 64, "num_experts_per_tok": 6,
		"first_k_dense_replace": 1, "n_group": 0, "topk_group": 0, "rms_norm_eps": 1e-5,
	},
	unread: []string{"n_group", "topk_group", "norm_topk_prob", "mlp_layer_types"},
	renamed: map[string]string{"first_k_dense_replace": "num_dense_layers", "n_routed_experts": "num_experts",
		"n_shared_experts": "num_shared_experts", "routed_scaling_factor": "route_scale"},
	references: v3.native(func(r *Rules) {
		r.Router.RouterFloat32, r.Router.WidensLogits, r.MoE.NormsBlock, r.NormsOnce = false, true, true, true
	}),
})
