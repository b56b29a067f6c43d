package config

import "github.com/go-json-experiment/json/jsontext"

// exaoneMoE is transformers' ExaoneMoeConfig, K-EXAONE's: without layer_types each sliding_window_pattern-th layer sees all
// tokens. Such layers have no RoPE.
var exaoneMoE = grouped.derive("exaone_moe", delta{
	class: "ExaoneMoeForCausalLM",
	missing: map[string]any{
		"vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 16384, "moe_intermediate_size": 1024,
		"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "n_routed_experts": 64,
		"num_experts_per_tok": 8, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "max_position_embeddings": 2048,
		"rms_norm_eps": 1e-5,
	},
	fields: []field{
		grouped.row("mlp_layer_types", nil),
		{"sliding_window", 4096, integer(func(c *Config) *int { return &c.Windows.SlidingWindow }, 1, maxDim)},
		{"sliding_window_pattern", 4, single(func(c *Config) *int { return &c.Layers.WindowPattern },
			func(v jsontext.Value) (int, error) {
				if v.Kind() == '"' {
					return 0, nil // a string, which the reference does not read
				}
				return parseInteger(v, 1, maxLayers)
			}).deciding(never)}, // layer_types has what it says
		grouped.row("layer_types", nil),
		{"num_nextn_predict_layers", 0, natural(func(c *Config) *int { return &c.NumNextNPredictLayers }, 1).
			deciding(never)}, // the reference leaves the layer out; files have names for one
	},
	unread:  []string{"attention_bias", "mlp_bias"},
	renamed: map[string]string{"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"},
	rules: append([]rule{
		sparseFrom(func(c *Config) int { return c.Layers.FirstKDenseReplace }),
		windowed(func(c *Config, n int) []string {
			if c.Layers.WindowPattern == 0 {
				return nil
			}
			return typed(n, fullAttention, slidingAttention, func(l int) bool { return (l+1)%c.Layers.WindowPattern == 0 })
		}),
	}, grouped.rules...),
	references: grouped.native(func(r *Rules) {
		r.Attention.QKNorm, r.RoPE.RotatesWindows, r.MoE.DensePredictions = PerHeadTransposed, true, true
	}),
})
