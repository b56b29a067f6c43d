package config

// mistral4 is transformers' Mistral4Config, Mistral Small 4's: a softmax in the weights' dtype, groups whose others get 0, no
// router bias.
var mistral4 = block.derive("mistral4", delta{
	class: "Mistral4ForCausalLM",
	missing: map[string]any{
		"vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 2048,
		"num_hidden_layers": 36, "n_routed_experts": 128, "num_experts_per_tok": 4, "rms_norm_eps": 1e-6,
		"scoring_func": "softmax",
	},
	unread:  []string{"mlp_layer_types"},
	aliases: localExperts,
	references: v3.native(func(r *Rules) {
		r.Router.RouterFloat32, r.Router.UnbiasedChoice, r.Router.MasksToZero = false, true, true
	}),
})
