package table

// familyV3 is the table of DeepSeek-V3 and R1, Kimi-K2, GLM-4.7-Flash and Sarvam-105B.
var familyV3 = Family{
	ModelTypes: []string{"deepseek_v3", "kimi_k2", "glm4_moe_lite", "sarvam_mla"},
	Rows:       behind(familyV2.Rows, Gate, routerBias(moe)),
	Ignored:    familyV1.Ignored,
	// A multi-token prediction layer is a decoder layer with these beside it. It
	// predicts the token after the next, which the model's logits do not depend on.
	// DeepSeek's files hold the main model's embedding and head a second time in it; others
	// leave these two out, as they are the main model's.
	MTP: []Row{
		{"model.layers.{l}.embed_tokens.weight", MTP, EmbedTokens, copied, []dim{vocab, hidden},
			stored("blk.{l}.nextn.embed_tokens.weight")},
		{"model.layers.{l}.enorm.weight", MTP, ENorm, nil, []dim{hidden},
			stored("blk.{l}.nextn.enorm.weight")},
		{"model.layers.{l}.hnorm.weight", MTP, HNorm, nil, []dim{hidden},
			stored("blk.{l}.nextn.hnorm.weight")},
		{"model.layers.{l}.eh_proj.weight", MTP, EHProj, nil, []dim{hidden, twoHidden},
			stored("blk.{l}.nextn.eh_proj.weight")},
		{"model.layers.{l}.shared_head.norm.weight", MTP, SharedHeadNorm, nil, []dim{hidden},
			stored("blk.{l}.nextn.shared_head_norm.weight")},
		{"model.layers.{l}.shared_head.head.weight", MTP, SharedHeadHead, copied, []dim{vocab, hidden},
			stored("blk.{l}.nextn.shared_head_head.weight")},
	},
}

// routerBias is the row of the bias of the scores that experts are chosen by, in the layers of a condition.
func routerBias(when *when) Row {
	return Row{"model.layers.{l}.mlp.gate.e_score_correction_bias", Router, EScoreCorrectionBias, when, []dim{routed},
		stored("blk.{l}.exp_probs_b.bias")}
}
