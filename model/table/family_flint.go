package table

// familyFlint is the table of Flint.
var familyFlint = otherNames(Family{
	ModelTypes: []string{"flint"},
	Rows:       sharedOfOneWidth(blockRows()),
	Ignored:    familyV1.Ignored,
	Opaque:     []string{".self_attn."},
}, oneShared, nil)
