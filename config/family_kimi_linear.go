package config

// kimiLinear is transformers' KimiLinearConfig: DeepSeek-V3's mixture behind linear attention.
var kimiLinear = block.derive("kimi_linear", delta{
	class: "KimiLinearForCausalLM",
	missing: map[string]any{
		"vocab_size": 163840, "hidden_size": 2304, "intermediate_size": 9216, "moe_intermediate_size": 1024,
		"num_hidden_layers": 27, "first_k_dense_replace": 1, "routed_scaling_factor": 2.446, "rms_norm_eps": 1e-5,
	},
	fields: []field{
		{"routed_expert_hidden_size", nil, refused("this is Kimi-K3's mixture, whose experts have a width of their own")},
	},
	aliases: namesOfLinear,
	rules:   append([]rule{sparseFrom(func(c *Config) int { return c.Layers.FirstKDenseReplace })}, block.rules...),
})

// namesOfLinear are second names of keys in configs of kimi_linear and bailing_hybrid.
var namesOfLinear = map[string]string{"num_expert_group": "n_group", "moe_renormalize": "norm_topk_prob",
	"num_experts": "n_routed_experts", "num_local_experts": "n_routed_experts",
	"num_experts_per_token": "num_experts_per_tok", "num_shared_experts": "n_shared_experts"}
