package model

// familyV3 is the table of DeepSeek-V3 and R1 (model_type "deepseek_v3").
var familyV3 = Family{
	ModelType: "deepseek_v3",
	Params: latentParams(Param{"model.layers.{l}.mlp.gate.e_score_correction_bias", stored("blk.{l}.exp_probs_b.bias"), Router, moe, []Dim{routed},
		layer(func(x *DeepseekDecoderLayer) *Weight { return &x.MoE.Gate.EScoreCorrectionBias })}),
	Ignored: familyV1.Ignored,
	// A multi-token prediction layer is a decoder layer with these beside it. It
	// predicts the token after the next, which the model's logits do not depend on.
	// DeepSeek's files hold the main model's embedding and head a second time in it; others
	// leave these two out, as they are the main model's.
	MTP: []Param{
		{"model.layers.{l}.embed_tokens.weight", stored("blk.{l}.nextn.embed_tokens.weight"), MTP, copied, []Dim{vocab, hidden},
			prediction(func(x *MtpLayer) *Weight { return &x.EmbedTokens })},
		{"model.layers.{l}.enorm.weight", stored("blk.{l}.nextn.enorm.weight"), MTP, nil, []Dim{hidden},
			prediction(func(x *MtpLayer) *Weight { return &x.ENorm.Weight })},
		{"model.layers.{l}.hnorm.weight", stored("blk.{l}.nextn.hnorm.weight"), MTP, nil, []Dim{hidden},
			prediction(func(x *MtpLayer) *Weight { return &x.HNorm.Weight })},
		{"model.layers.{l}.eh_proj.weight", stored("blk.{l}.nextn.eh_proj.weight"), MTP, nil, []Dim{hidden, twoHidden},
			prediction(func(x *MtpLayer) *Weight { return &x.EHProj.Weight })},
		{"model.layers.{l}.shared_head.norm.weight", stored("blk.{l}.nextn.shared_head_norm.weight"), MTP, nil, []Dim{hidden},
			prediction(func(x *MtpLayer) *Weight { return &x.SharedHead.Norm.Weight })},
		{"model.layers.{l}.shared_head.head.weight", stored("blk.{l}.nextn.shared_head_head.weight"), MTP, copied, []Dim{vocab, hidden},
			prediction(func(x *MtpLayer) *Weight { return &x.SharedHead.Head.Weight })},
	},
}
