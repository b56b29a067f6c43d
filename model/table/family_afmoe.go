package table

// familyAfmoe is the table of Trinity: a layer has a norm before and behind attention, and one before and behind the MLP.
var familyAfmoe = otherNames(Family{
	ModelTypes: []string{"afmoe"},
	Rows: blockRows(
		Row{"model.layers.{l}.post_mlp_layernorm.weight", Norms, PostMLPLayernorm, nil, []dim{hidden}, gguf{}},
		Row{"model.layers.{l}.attention_layernorm.weight", Norms, attentionLayernorm, nil, []dim{hidden}, gguf{}}),
	Ignored: familyV1.Ignored,
	Opaque:  []string{".self_attn."},
}, map[string]string{"post_attention_layernorm": "pre_mlp_layernorm", "attention_layernorm": "post_attention_layernorm",
	"mlp.gate.weight": "mlp.router.gate.weight", "mlp.gate.e_score_correction_bias": "mlp.expert_bias"}, nil)
