package config

// kolibri1 is transformers' Kolibri1Config: experts are chosen by biased logits, without groups, and a norm stands behind the
// MLP. All layers have experts.
var kolibri1 = block.derive("kolibri1", delta{
	class: "Kolibri1ForCausalLM",
	missing: map[string]any{
		"vocab_size": 128000, "hidden_size": 2560, "moe_intermediate_size": 512, "num_hidden_layers": 50,
		"n_routed_experts": 384, "num_experts_per_tok": 6, "n_group": 0, "topk_group": 0, "norm_topk_prob": false,
		"rms_norm_eps": 1e-6,
	},
	fields:  []field{sharedWidth(512)},
	unread:  unreadByQwen,
	renamed: map[string]string{"n_routed_experts": "num_local_experts"},
	aliases: map[string]string{"num_experts": "num_local_experts"},
	references: v3.native(func(r *Rules) {
		r.Router.ChoosesByLogits, r.Router.NormsBare, r.MoE.NormsBlock = true, true, true
	}),
})
