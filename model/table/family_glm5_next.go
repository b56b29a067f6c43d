package table

// familyGLM5Next is the table of GLM-5.3, whose streams and prediction layers are not computed.
var familyGLM5Next = otherNames(Family{
	ModelTypes: []string{"glm5_next_text"},
	Rows:       blockRows(),
	Ignored:    familyV1.Ignored,
	Opaque:     []string{".self_attn.", ".hc_attn_", ".hc_ffn_"},
	MTP:        familyV3.MTP,
	CarriesMTP: true,
}, nil, nil).under("model.language_model.").orPlain()
