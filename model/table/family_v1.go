package table

// familyV1 is the table of the first DeepSeekMoE (model_type "deepseek",
// modeling_deepseek.py).
var familyV1 = Family{
	ModelTypes: []string{"deepseek"},
	Rows: []Row{
		{"model.embed_tokens.weight", Embedding, EmbedTokens, nil, []dim{vocab, hidden},
			stored("token_embd.weight")},

		{"model.layers.{l}.self_attn.q_proj.weight", Attention, QProj, nil, []dim{queries, hidden},
			rotated("blk.{l}.attn_q.weight", queryHeads)},
		{"model.layers.{l}.self_attn.q_proj.bias", Attention, qProjBias, bias, []dim{queries},
			rotated("blk.{l}.attn_q.bias", queryHeads)},
		{"model.layers.{l}.self_attn.k_proj.weight", Attention, KProj, nil, []dim{keys, hidden},
			rotated("blk.{l}.attn_k.weight", keyHeads)},
		{"model.layers.{l}.self_attn.k_proj.bias", Attention, kProjBias, bias, []dim{keys},
			rotated("blk.{l}.attn_k.bias", keyHeads)},
		{"model.layers.{l}.self_attn.v_proj.weight", Attention, VProj, nil, []dim{keys, hidden},
			stored("blk.{l}.attn_v.weight")},
		{"model.layers.{l}.self_attn.v_proj.bias", Attention, vProjBias, bias, []dim{keys},
			stored("blk.{l}.attn_v.bias")},
		{"model.layers.{l}.self_attn.o_proj.weight", Attention, OProj, nil, []dim{hidden, queries},
			stored("blk.{l}.attn_output.weight")},
		{"model.layers.{l}.self_attn.o_proj.bias", Attention, oProjBias, bias, []dim{hidden},
			stored("blk.{l}.attn_output.bias")},

		{"model.layers.{l}.mlp.gate_proj.weight", DenseMLP, GateProj, dense, []dim{denseFF, hidden},
			stored("blk.{l}.ffn_gate.weight")},
		{"model.layers.{l}.mlp.up_proj.weight", DenseMLP, UpProj, dense, []dim{denseFF, hidden},
			stored("blk.{l}.ffn_up.weight")},
		{"model.layers.{l}.mlp.down_proj.weight", DenseMLP, DownProj, dense, []dim{hidden, denseFF},
			stored("blk.{l}.ffn_down.weight")},

		{"model.layers.{l}.mlp.experts.{e}.gate_proj.weight", RoutedExperts, GateProj, moe, []dim{expertFF, hidden},
			stored("blk.{l}.ffn_gate_exps.weight")},
		{"model.layers.{l}.mlp.experts.{e}.up_proj.weight", RoutedExperts, UpProj, moe, []dim{expertFF, hidden},
			stored("blk.{l}.ffn_up_exps.weight")},
		{"model.layers.{l}.mlp.experts.{e}.down_proj.weight", RoutedExperts, DownProj, moe, []dim{hidden, expertFF},
			stored("blk.{l}.ffn_down_exps.weight")},

		{"model.layers.{l}.mlp.gate.weight", Router, Gate, moe, []dim{routed, hidden},
			stored("blk.{l}.ffn_gate_inp.weight")},

		{"model.layers.{l}.mlp.shared_experts.gate_proj.weight", SharedExperts, GateProj, shared, []dim{sharedFF, hidden},
			stored("blk.{l}.ffn_gate_shexp.weight")},
		{"model.layers.{l}.mlp.shared_experts.up_proj.weight", SharedExperts, UpProj, shared, []dim{sharedFF, hidden},
			stored("blk.{l}.ffn_up_shexp.weight")},
		{"model.layers.{l}.mlp.shared_experts.down_proj.weight", SharedExperts, DownProj, shared, []dim{hidden, sharedFF},
			stored("blk.{l}.ffn_down_shexp.weight")},

		{"model.layers.{l}.input_layernorm.weight", Norms, InputLayernorm, nil, []dim{hidden},
			stored("blk.{l}.attn_norm.weight")},
		{"model.layers.{l}.post_attention_layernorm.weight", Norms, PostAttentionLayernorm, nil, []dim{hidden},
			stored("blk.{l}.ffn_norm.weight")},

		{"model.norm.weight", Norms, normRole, nil, []dim{hidden},
			stored("output_norm.weight")},
		{"lm_head.weight", Head, LMHead, untied, []dim{vocab, hidden},
			stored("output.weight")},
	},
	Ignored: []Row{
		// Written by transformers before 4.32, computed from rope_theta ever since.
		{Name: "model.layers.{l}.self_attn.rotary_emb.inv_freq"},
		// The reference ties the head to the embedding, but for usesStoredHead.
		{Name: "lm_head.weight", When: tied},
	},
}
