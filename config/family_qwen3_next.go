package config

// qwen3Next is transformers' Qwen3NextConfig: a softmax in float32 over logits in the weights' dtype, no router bias, no
// groups, weights that are cast; and a gate of the shared expert.
var qwen3Next = block.derive("qwen3_next", delta{
	class: "Qwen3NextForCausalLM",
	missing: map[string]any{
		"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "moe_intermediate_size": 512,
		"num_hidden_layers": 48, "n_routed_experts": 512, "num_experts_per_tok": 10, "n_group": 0, "topk_group": 0,
		"rms_norm_eps": 1e-6, "scoring_func": "softmax",
	},
	fields:  []field{sharedWidth(512), denseLayers(nil), sparseStep},
	unread:  unreadByQwen,
	renamed: map[string]string{"n_routed_experts": "num_experts"},
	rules:   append([]rule{sparseBySteps}, block.rules...),
	references: v3.native(func(r *Rules) {
		r.Router.RouterFloat32, r.Router.ScoresInFloat32, r.Router.UnbiasedChoice, r.Router.NormsBare,
			r.Router.CastsTopKWeights, r.MoE.FlatShared, r.MoE.GatesShared = false, true, true, true, true, true, true
	}),
})

// unreadByQwen are keys that Qwen3-Next and Flint do not read.
var unreadByQwen = []string{"n_shared_experts", "first_k_dense_replace", "n_group", "topk_group", "routed_scaling_factor",
	"mlp_layer_types"}
