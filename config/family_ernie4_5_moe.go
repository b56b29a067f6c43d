package config

// ernie45MoE is transformers' Ernie4_5_MoeConfig, ERNIE-4.5's: a softmax, whose chosen weights are divided by their sum, or
// by moe_norm_min, and then cast; and layers with experts in a range.
var ernie45MoE = grouped.derive("ernie4_5_moe", delta{
	class: "Ernie4_5_MoeForCausalLM",
	missing: map[string]any{
		"vocab_size": 103424, "hidden_size": 2560, "intermediate_size": 12288, "moe_intermediate_size": 1536,
		"num_hidden_layers": 28, "num_attention_heads": 20, "num_key_value_heads": 4, "n_shared_experts": 2,
		"n_routed_experts": 64, "num_experts_per_tok": 6, "first_k_dense_replace": 0, "n_group": 0, "topk_group": 0,
		"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "rope_theta": 5e5,
		"use_qk_norm": false, "scoring_func": "softmax", "rope_interleave": true,
	},
	fields: []field{
		{"n_shared_experts", nil, natural(func(c *Config) *int { return &c.MoE.NSharedExperts }, maxExperts)},
		{"moe_layer_start_index", 1, integer(func(c *Config) *int { return &c.Layers.MoEStart }, 0,
			maxLayers).deciding(layersDiffer)},
		{"moe_layer_end_index", -1, integer(func(c *Config) *int { return &c.Layers.MoEEnd }, -1,
			maxLayers).deciding(layersDiffer)},
		{"moe_layer_interval", 1, integer(func(c *Config) *int { return &c.Layers.MoEInterval }, 1,
			maxLayers).deciding(layersDiffer)},
		{"moe_norm_min", 1e-12, number(func(c *Config) *float64 { return &c.Router.MoENormMin }, notNegative)},
		{"use_bias", nil, withoutBias},
	},
	unread: []string{"first_k_dense_replace", "n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor",
		"attention_bias", "mlp_bias"},
	renamed: map[string]string{"n_routed_experts": "moe_num_experts", "num_experts_per_tok": "moe_k",
		"n_shared_experts": "moe_num_shared_experts"},
	rules: append([]rule{sparseBetween}, grouped.rules...),
	references: grouped.native(func(r *Rules) {
		r.RoPE.RotatesInFloat32, r.RoPE.JoinsTables, r.Router.KeepsGate, r.Router.NormsBare, r.Router.CastsTopKWeights,
			r.MoE.FlatShared = true, true, true, true,
			true, true
	}),
})

// sparseBetween: the layers of a range have experts, those whose numbers, counted from 1, are multiples of an interval.
var sparseBetween = rule{[]string{"moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval",
	"num_hidden_layers"}, func(c *Config) error {
	end := c.Layers.MoEEnd
	if end == -1 {
		end = c.NumHiddenLayers - 1
	}
	c.Layers.MLPLayerTypes = typed(c.NumHiddenLayers, sparseMLP, denseMLP, func(l int) bool {
		return (l+1)%c.Layers.MoEInterval == 0 && c.Layers.MoEStart <= l && l <= end
	})
	return nil
}}
