package config

// laraMini is transformers' LaraMiniConfig: a softmax in float32, no router bias, no groups, weights that are cast. All layers
// have experts.
var laraMini = block.derive("lara_mini", delta{
	class: "LaraMiniForCausalLM",
	missing: map[string]any{
		"vocab_size": 151936, "hidden_size": 1024, "moe_intermediate_size": 512, "num_hidden_layers": 34,
		"n_routed_experts": 128, "num_experts_per_tok": 4, "n_group": 0, "topk_group": 0, "rms_norm_eps": 1e-6,
		"tie_word_embeddings": true, "scoring_func": "softmax",
	},
	fields:  []field{sharedWidth(512)},
	unread:  unreadByQwen,
	renamed: map[string]string{"n_routed_experts": "num_experts"},
	references: v3.native(func(r *Rules) {
		r.Router.UnbiasedChoice, r.Router.NormsBare, r.Router.CastsTopKWeights, r.MoE.FlatShared = true, true, true, true
	}),
})
