package table

// familyAfmoe is the table of Trinity: a layer has a norm before and behind attention, and one before and behind the MLP.
var familyAfmoe = otherNames(Family{
	ModelTypes: []string{"afmoe"},
	Rows:       blockRows(fourNorms...),
	Ignored:    familyV1.Ignored,
	Opaque:     []string{".self_attn."},
}, map[string]string{"post_attention_layernorm": "pre_mlp_layernorm", "attention_layernorm": "post_attention_layernorm",
	"mlp.gate.weight": "mlp.router.gate.weight", "mlp.gate.e_score_correction_bias": "mlp.expert_bias"}, nil)
