package table

// familyMistral4 is the table of Mistral Small 4, whose published files have routed experts fused.
var familyMistral4 = otherNames(Family{
	ModelTypes: []string{"mistral4"},
	Rows:       blockRows(),
	Ignored:    familyV1.Ignored,
	Opaque:     []string{".self_attn."},
	Joined:     true,
}, nil, nil).publishedFused()
