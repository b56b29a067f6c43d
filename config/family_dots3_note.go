package config

// dots3Note is transformers' Dots3NoteTextConfig: DeepSeek-V3's mixture with shared experts of a width of their own.
var dots3Note = block.derive("dots3_note_text", delta{
	class: "Dots3NoteForCausalLM",
	missing: map[string]any{
		"vocab_size": 152064, "hidden_size": 5120, "intermediate_size": 13824, "moe_intermediate_size": 1536,
		"num_hidden_layers": 46, "first_k_dense_replace": 1, "rms_norm_eps": 1e-5,
	},
	fields: []field{sharedWidth(1536).named("shared_experts_intermediate_size"), layerFrequency},
	aliases: map[string]string{"num_local_experts": "n_routed_experts",
		"moe_shared_expert_intermediate_size": "shared_experts_intermediate_size"},
	rules: append([]rule{sparseFrom(func(c *Config) int { return c.Layers.FirstKDenseReplace })}, block.rules...),
})
