package config

// mistralLarge4 is transformers' MistralLarge4TextConfig: a softmax in float32, groups whose others get 0, no router bias, and
// weights that are always normalised.
var mistralLarge4 = block.derive("mistral_large4_text", delta{
	class: "MistralLarge4ForConditionalGeneration",
	missing: map[string]any{
		"vocab_size": 204800, "hidden_size": 6144, "intermediate_size": 24576, "moe_intermediate_size": 6144,
		"num_hidden_layers": 72, "n_routed_experts": 128, "num_experts_per_tok": 4, "first_k_dense_replace": 1,
		"rms_norm_eps": 1e-5, "scoring_func": "softmax",
	},
	unread:  []string{"norm_topk_prob"},
	aliases: map[string]string{"num_local_experts": "n_routed_experts", "num_experts": "n_routed_experts"},
	rules:   append([]rule{sparseFrom(func(c *Config) int { return c.Layers.FirstKDenseReplace })}, block.rules...),
	references: block.native(func(r *Rules) {
		r.Router.UnbiasedChoice, r.Router.MasksToZero = true, true
	}),
})
