package config

import "slices"

// axk1 is transformers' AXK1Config, A.X-K1's: DeepSeek-V3's network with a norm behind the experts, no router bias in the
// files and no prediction layers. mlp_layer_types, where it is set, says which layers are dense.
var axk1 = layerTyped.derive("axk1", delta{
	aliases: localExperts,
	class:   "AXK1ForCausalLM",
	missing: map[string]any{
		"vocab_size": 163840, "n_routed_experts": 192, "first_k_dense_replace": 1, "num_attention_heads": 64,
		"num_key_value_heads": 64, "max_position_embeddings": 32768, "num_nextn_predict_layers": 0,
	},
	fields: []field{
		{"first_k_dense_replace", nil, readBy(readDenseWithoutTypes)},
		{"num_nextn_predict_layers", nil, natural(func(c *Config) *int { return &c.NumNextNPredictLayers }, 0)},
	},
	rules:      slices.Concat([]rule{queriesAreCompressed}, v3.rules),
	references: v3.native(func(r *Rules) { r.MoE.NormsExperts, r.Router.UnbiasedChoice = true, true }),
})
