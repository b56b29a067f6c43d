package config

// flint is transformers' FlintConfig: a sigmoid in float32 without a router bias and without groups.
var flint = block.derive("flint", delta{
	class: "FlintForCausalLM",
	missing: map[string]any{
		"vocab_size": 150144, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 512,
		"num_hidden_layers": 49, "num_experts_per_tok": 6, "n_group": 0, "topk_group": 0, "rms_norm_eps": 1e-6,
	},
	fields:  []field{sharedWidth(1024), denseLayers([]int{0, 1}), sparseStep},
	unread:  unreadByQwen,
	renamed: map[string]string{"n_routed_experts": "num_experts"},
	rules:   append([]rule{sparseBySteps}, block.rules...),
	references: v3.native(func(r *Rules) {
		r.Router.KeepsGate, r.Router.UnbiasedChoice, r.Router.NormsBare, r.MoE.FlatShared = true, true, true, true
	}),
})
