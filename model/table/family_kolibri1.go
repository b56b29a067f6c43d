package table

// familyKolibri1 is the table of Kolibri 1: a layer has a norm before and behind attention, and one before and behind the MLP.
var familyKolibri1 = otherNames(Family{
	ModelTypes: []string{"kolibri1"},
	Rows:       sharedOfOneWidth(blockRows(fourNorms...)),
	Ignored:    familyV1.Ignored,
	Opaque:     []string{".self_attn."},
}, map[string]string{"post_mlp_layernorm": "post_ffn_norm", "}.attention_layernorm": "}.post_attn_norm",
	"mlp.gate.e_score_correction_bias": "moe.router.expert_bias"}, nil)
