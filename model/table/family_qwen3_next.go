package table

// familyQwen3Next is the table of Qwen3-Next, whose prediction layers are named by themselves.
var familyQwen3Next = otherNames(Family{
	ModelTypes: []string{"qwen3_next"},
	Rows: namedInGGUF(behind(sharedOfOneWidth(blockRows()), Gate, Row{"model.layers.{l}.mlp.shared_expert_gate.weight", Router,
		SharedExpertGate, moe, []dim{one, hidden}, stored("blk.{l}.ffn_gate_inp_shexp.weight")}),
		PostAttentionLayernorm, "blk.{l}.post_attention_norm.weight"),
	Ignored: familyV1.Ignored,
	Opaque:  []string{".self_attn.", ".linear_attn.", "mtp."},
}, oneShared, nil)
