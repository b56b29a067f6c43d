package model

// familyV1 is the table of the first DeepSeekMoE (model_type "deepseek",
// modeling_deepseek.py).
var familyV1 = Family{
	ModelType: "deepseek",
	Params: []Param{
		{"model.embed_tokens.weight", stored("token_embd.weight"), Embedding, nil, []Dim{vocab, hidden},
			top(func(m *DeepseekForCausalLM) *Weight { return &m.Model.EmbedTokens })},

		{"model.layers.{l}.self_attn.q_proj.weight", rotated("blk.{l}.attn_q.weight", queryHeads), Attention, nil, []Dim{queries, hidden},
			layer(func(x *DeepseekDecoderLayer) *Weight { return &x.SelfAttn.QProj.Weight })},
		{"model.layers.{l}.self_attn.q_proj.bias", rotated("blk.{l}.attn_q.bias", queryHeads), Attention, bias, []Dim{queries},
			layer(func(x *DeepseekDecoderLayer) *Weight { return &x.SelfAttn.QProj.Bias })},
		{"model.layers.{l}.self_attn.k_proj.weight", rotated("blk.{l}.attn_k.weight", keyHeads), Attention, nil, []Dim{keys, hidden},
			layer(func(x *DeepseekDecoderLayer) *Weight { return &x.SelfAttn.KProj.Weight })},
		{"model.layers.{l}.self_attn.k_proj.bias", rotated("blk.{l}.attn_k.bias", keyHeads), Attention, bias, []Dim{keys},
			layer(func(x *DeepseekDecoderLayer) *Weight { return &x.SelfAttn.KProj.Bias })},
		{"model.layers.{l}.self_attn.v_proj.weight", stored("blk.{l}.attn_v.weight"), Attention, nil, []Dim{keys, hidden},
			layer(func(x *DeepseekDecoderLayer) *Weight { return &x.SelfAttn.VProj.Weight })},
		{"model.layers.{l}.self_attn.v_proj.bias", stored("blk.{l}.attn_v.bias"), Attention, bias, []Dim{keys},
			layer(func(x *DeepseekDecoderLayer) *Weight { return &x.SelfAttn.VProj.Bias })},
		{"model.layers.{l}.self_attn.o_proj.weight", stored("blk.{l}.attn_output.weight"), Attention, nil, []Dim{hidden, queries},
			layer(func(x *DeepseekDecoderLayer) *Weight { return &x.SelfAttn.OProj.Weight })},
		{"model.layers.{l}.self_attn.o_proj.bias", stored("blk.{l}.attn_output.bias"), Attention, bias, []Dim{hidden},
			layer(func(x *DeepseekDecoderLayer) *Weight { return &x.SelfAttn.OProj.Bias })},

		{"model.layers.{l}.mlp.gate_proj.weight", stored("blk.{l}.ffn_gate.weight"), DenseMLP, dense, []Dim{denseFF, hidden},
			layer(func(x *DeepseekDecoderLayer) *Weight { return &x.MLP.GateProj.Weight })},
		{"model.layers.{l}.mlp.up_proj.weight", stored("blk.{l}.ffn_up.weight"), DenseMLP, dense, []Dim{denseFF, hidden},
			layer(func(x *DeepseekDecoderLayer) *Weight { return &x.MLP.UpProj.Weight })},
		{"model.layers.{l}.mlp.down_proj.weight", stored("blk.{l}.ffn_down.weight"), DenseMLP, dense, []Dim{hidden, denseFF},
			layer(func(x *DeepseekDecoderLayer) *Weight { return &x.MLP.DownProj.Weight })},

		{"model.layers.{l}.mlp.experts.{e}.gate_proj.weight", stored("blk.{l}.ffn_gate_exps.weight"), RoutedExperts, moe, []Dim{expertFF, hidden},
			expert(func(x *DeepseekMLP) *Weight { return &x.GateProj.Weight })},
		{"model.layers.{l}.mlp.experts.{e}.up_proj.weight", stored("blk.{l}.ffn_up_exps.weight"), RoutedExperts, moe, []Dim{expertFF, hidden},
			expert(func(x *DeepseekMLP) *Weight { return &x.UpProj.Weight })},
		{"model.layers.{l}.mlp.experts.{e}.down_proj.weight", stored("blk.{l}.ffn_down_exps.weight"), RoutedExperts, moe, []Dim{hidden, expertFF},
			expert(func(x *DeepseekMLP) *Weight { return &x.DownProj.Weight })},

		{"model.layers.{l}.mlp.gate.weight", stored("blk.{l}.ffn_gate_inp.weight"), Router, moe, []Dim{routed, hidden},
			layer(func(x *DeepseekDecoderLayer) *Weight { return &x.MoE.Gate.Weight })},

		{"model.layers.{l}.mlp.shared_experts.gate_proj.weight", stored("blk.{l}.ffn_gate_shexp.weight"), SharedExperts, shared, []Dim{sharedFF, hidden},
			layer(func(x *DeepseekDecoderLayer) *Weight { return &x.MoE.SharedExperts.GateProj.Weight })},
		{"model.layers.{l}.mlp.shared_experts.up_proj.weight", stored("blk.{l}.ffn_up_shexp.weight"), SharedExperts, shared, []Dim{sharedFF, hidden},
			layer(func(x *DeepseekDecoderLayer) *Weight { return &x.MoE.SharedExperts.UpProj.Weight })},
		{"model.layers.{l}.mlp.shared_experts.down_proj.weight", stored("blk.{l}.ffn_down_shexp.weight"), SharedExperts, shared, []Dim{hidden, sharedFF},
			layer(func(x *DeepseekDecoderLayer) *Weight { return &x.MoE.SharedExperts.DownProj.Weight })},

		{"model.layers.{l}.input_layernorm.weight", stored("blk.{l}.attn_norm.weight"), Norms, nil, []Dim{hidden},
			layer(func(x *DeepseekDecoderLayer) *Weight { return &x.InputLayernorm.Weight })},
		{"model.layers.{l}.post_attention_layernorm.weight", stored("blk.{l}.ffn_norm.weight"), Norms, nil, []Dim{hidden},
			layer(func(x *DeepseekDecoderLayer) *Weight { return &x.PostAttentionLayernorm.Weight })},

		{"model.norm.weight", stored("output_norm.weight"), Norms, nil, []Dim{hidden},
			top(func(m *DeepseekForCausalLM) *Weight { return &m.Model.Norm.Weight })},
		{"lm_head.weight", stored("output.weight"), Head, untied, []Dim{vocab, hidden},
			top(func(m *DeepseekForCausalLM) *Weight { return &m.LMHead.Weight })},
	},
	Ignored: []Param{
		// Written by transformers before 4.32, computed from rope_theta ever since.
		{Name: "model.layers.{l}.self_attn.rotary_emb.inv_freq"},
		// The reference ties the head to the embedding, but for usesStoredHead.
		{Name: "lm_head.weight", When: tied},
	},
}
