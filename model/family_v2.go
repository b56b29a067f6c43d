package model

// familyV2 is the table of DeepSeek-V2 and V2-Lite (model_type "deepseek_v2").
var familyV2 = Family{ModelType: "deepseek_v2", Params: latentParams(), Ignored: familyV1.Ignored}

// latentParams are the rows of a model with latent attention: the first DeepSeekMoE's
// with other attention, and with router behind the gate's weight.
func latentParams(router ...Param) []Param {
	var params []Param
	for _, p := range familyV1.Params {
		switch p.Name {
		case "model.layers.{l}.self_attn.q_proj.weight":
			params = append(params, latentAttention...)
		case "model.layers.{l}.mlp.gate.weight":
			params = append(append(params, p), router...)
		default:
			if p.Module != Attention {
				params = append(params, p)
			}
		}
	}
	return params
}

// latentAttention is DeepseekV2Attention.
var latentAttention = []Param{
	{"model.layers.{l}.self_attn.q_proj.weight", stored("blk.{l}.attn_q.weight"), Attention, wholeQ, []Dim{latentQueries, hidden},
		layer(func(x *DeepseekDecoderLayer) *Weight { return &x.MLA.QProj.Weight })},
	{"model.layers.{l}.self_attn.q_a_proj.weight", stored("blk.{l}.attn_q_a.weight"), Attention, loraQ, []Dim{qRank, hidden},
		layer(func(x *DeepseekDecoderLayer) *Weight { return &x.MLA.QAProj.Weight })},
	{"model.layers.{l}.self_attn.q_a_proj.bias", stored("blk.{l}.attn_q_a.bias"), Attention, loraQBias, []Dim{qRank},
		layer(func(x *DeepseekDecoderLayer) *Weight { return &x.MLA.QAProj.Bias })},
	{"model.layers.{l}.self_attn.q_a_layernorm.weight", stored("blk.{l}.attn_q_a_norm.weight"), Norms, loraQ, []Dim{qRank},
		layer(func(x *DeepseekDecoderLayer) *Weight { return &x.MLA.QALayernorm.Weight })},
	{"model.layers.{l}.self_attn.q_b_proj.weight", stored("blk.{l}.attn_q_b.weight"), Attention, loraQ, []Dim{latentQueries, qRank},
		layer(func(x *DeepseekDecoderLayer) *Weight { return &x.MLA.QBProj.Weight })},
	{"model.layers.{l}.self_attn.kv_a_proj_with_mqa.weight", stored("blk.{l}.attn_kv_a_mqa.weight"), Attention, nil, []Dim{kvRankRope, hidden},
		layer(func(x *DeepseekDecoderLayer) *Weight { return &x.MLA.KVAProjWithMQA.Weight })},
	{"model.layers.{l}.self_attn.kv_a_proj_with_mqa.bias", stored("blk.{l}.attn_kv_a_mqa.bias"), Attention, bias, []Dim{kvRankRope},
		layer(func(x *DeepseekDecoderLayer) *Weight { return &x.MLA.KVAProjWithMQA.Bias })},
	{"model.layers.{l}.self_attn.kv_a_layernorm.weight", stored("blk.{l}.attn_kv_a_norm.weight"), Norms, nil, []Dim{kvRank},
		layer(func(x *DeepseekDecoderLayer) *Weight { return &x.MLA.KVALayernorm.Weight })},
	{"model.layers.{l}.self_attn.kv_b_proj.weight", split("blk.{l}.attn_kv_b.weight", latentKeys("blk.{l}.attn_k_b.weight"), latentValues("blk.{l}.attn_v_b.weight")), Attention, nil, []Dim{latentKeysValues, kvRank},
		layer(func(x *DeepseekDecoderLayer) *Weight { return &x.MLA.KVBProj.Weight })},
	{"model.layers.{l}.self_attn.o_proj.weight", stored("blk.{l}.attn_output.weight"), Attention, nil, []Dim{hidden, latentContext},
		layer(func(x *DeepseekDecoderLayer) *Weight { return &x.MLA.OProj.Weight })},
	{"model.layers.{l}.self_attn.o_proj.bias", stored("blk.{l}.attn_output.bias"), Attention, bias, []Dim{hidden},
		layer(func(x *DeepseekDecoderLayer) *Weight { return &x.MLA.OProj.Bias })},
}
