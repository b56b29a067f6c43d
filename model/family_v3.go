package model

// familyV3 is the table of DeepSeek-V3 and R1 (model_type "deepseek_v3").
var familyV3 = Family{
	ModelType: "deepseek_v3",
	Params: latentParams(Param{"model.layers.{l}.mlp.gate.e_score_correction_bias", Router, moe, []Dim{routed},
		layer(func(x *DeepseekDecoderLayer) *Weight { return &x.MoE.Gate.EScoreCorrectionBias })}),
	Ignored: familyV1.Ignored,
	// A multi-token prediction layer is a decoder layer with these beside it. It
	// predicts the token after the next and takes no part in the forward pass. DeepSeek's
	// files hold the main model's embedding and head a second time in it; others leave these
	// two out, as they are the main model's.
	MTP: []Param{
		{Name: "model.layers.{l}.embed_tokens.weight", Module: MTP, When: copied, Shape: []Dim{vocab, hidden}},
		{Name: "model.layers.{l}.enorm.weight", Module: MTP, Shape: []Dim{hidden}},
		{Name: "model.layers.{l}.hnorm.weight", Module: MTP, Shape: []Dim{hidden}},
		{Name: "model.layers.{l}.eh_proj.weight", Module: MTP, Shape: []Dim{hidden, twoHidden}},
		{Name: "model.layers.{l}.shared_head.norm.weight", Module: MTP, Shape: []Dim{hidden}},
		{Name: "model.layers.{l}.shared_head.head.weight", Module: MTP, When: copied, Shape: []Dim{vocab, hidden}},
	},
}
