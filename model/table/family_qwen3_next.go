package table

// familyQwen3Next is the table of Qwen3-Next, whose prediction layers are named by themselves.
var familyQwen3Next = otherNames(Family{
	ModelTypes: []string{"qwen3_next"},
	Rows: behind(sharedOfOneWidth(blockRows()), Gate, Row{"model.layers.{l}.mlp.shared_expert_gate.weight", Router,
		SharedExpertGate, moe, []dim{one, hidden}, gguf{}}),
	Ignored: familyV1.Ignored,
	Opaque:  []string{".self_attn.", ".linear_attn.", "mtp."},
}, oneShared, nil)
