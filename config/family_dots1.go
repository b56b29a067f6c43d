package config

// dots1 is transformers' Dots1Config. Without layer_types the layers from max_window_layers on have a window; it does not
// read use_sliding_window.
var dots1 = grouped.derive("dots1", delta{
	aliases: localExperts,
	class:   "Dots1ForCausalLM",
	missing: map[string]any{
		"vocab_size": 152064, "hidden_size": 4608, "intermediate_size": 10944, "moe_intermediate_size": 1408,
		"num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 32, "n_shared_experts": 0,
		"n_routed_experts": 0, "num_experts_per_tok": 0, "norm_topk_prob": false, "max_position_embeddings": 2048,
	},
	fields: []field{
		grouped.row("sliding_window", 4096),
		{"max_window_layers", 62, integer(func(c *Config) *int { return &c.Layers.MaxWindowLayers }, 0, maxLayers).
			deciding(never)}, // layer_types has what it says
		grouped.row("layer_types", nil),
	},
	rules: append([]rule{windowed(func(c *Config, n int) []string {
		return typed(n, slidingAttention, fullAttention, func(l int) bool {
			return c.Windows.SlidingWindow > 0 &&
				l >= c.Layers.MaxWindowLayers
		})
	})}, grouped.rules...),
})
