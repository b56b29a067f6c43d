package config

// beam is transformers' BeamConfig: DeepSeek-V3's gate with a factor of the routed sum, no shared experts, an activation that is
// rounded once, and a norm behind the MLP.
var beam = block.derive("beam", delta{
	class: "BeamForCausalLM",
	missing: map[string]any{
		"vocab_size": 151936, "hidden_size": 5120, "intermediate_size": 20480, "moe_intermediate_size": 2560,
		"num_hidden_layers": 52, "n_shared_experts": 0, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5,
		"rms_norm_eps": 1e-6,
	},
	unread:  []string{"n_shared_experts", "first_k_dense_replace"},
	renamed: map[string]string{"n_routed_experts": "num_experts"},
	rules:   append([]rule{sparseFrom(func(*Config) int { return 3 })}, block.rules...),
	references: block.native(func(r *Rules) {
		r.MoE.ScalesSum, r.MoE.Activation, r.MoE.NormsBlock, r.NormsOnce = true, SwiGLUOnce, true, true
	}),
})
