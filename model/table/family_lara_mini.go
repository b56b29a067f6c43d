package table

// familyLaraMini is the table of Lara Mini, whose published files have routed experts fused.
var familyLaraMini = otherNames(Family{
	ModelTypes: []string{"lara_mini"},
	Rows:       sharedOfOneWidth(blockRows()),
	Ignored:    familyV1.Ignored,
	Opaque:     []string{".self_attn.", ".linear_attn."},
	Joined:     true,
}, oneShared, nil).publishedFused()
