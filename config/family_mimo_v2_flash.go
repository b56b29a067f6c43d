package config

// mimoV2Flash is transformers' MiMoV2FlashConfig: DeepSeek-V3's mixture without shared experts, whatever the config says.
var mimoV2Flash = block.derive("mimo_v2_flash", delta{
	class: "MiMoV2FlashForCausalLM",
	missing: map[string]any{
		"vocab_size": 152576, "hidden_size": 4096, "intermediate_size": 16384, "moe_intermediate_size": 2048,
		"num_hidden_layers": 48, "n_shared_experts": 0, "rms_norm_eps": 1e-5,
	},
	unread:  []string{"n_shared_experts", "first_k_dense_replace"},
	aliases: map[string]string{"num_local_experts": "n_routed_experts"},
	rules:   append([]rule{sparseFrom(func(*Config) int { return 1 })}, block.rules...),
})
