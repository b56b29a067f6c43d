package config

// qwen35MoE is transformers' Qwen3_5MoeTextConfig: Qwen3-Next's mixture, whose weights are always normalised. All layers have
// experts.
var qwen35MoE = block.derive("qwen3_5_moe_text", delta{
	class: "Qwen3_5MoeForCausalLM",
	missing: map[string]any{
		"vocab_size": 248320, "hidden_size": 2048, "moe_intermediate_size": 512, "num_hidden_layers": 40, "n_group": 0,
		"topk_group": 0, "rms_norm_eps": 1e-6, "scoring_func": "softmax",
	},
	fields:     []field{sharedWidth(512)},
	unread:     append([]string{"norm_topk_prob"}, unreadByQwen...),
	renamed:    map[string]string{"n_routed_experts": "num_experts"},
	references: qwen3Next.references,
})
