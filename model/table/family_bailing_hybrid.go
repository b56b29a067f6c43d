package table

// familyBailingHybrid is the table of Ling 3, whose prediction layers transformers leaves out.
var familyBailingHybrid = otherNames(Family{
	ModelTypes: []string{"bailing_hybrid"},
	Rows:       blockRows(),
	Ignored:    familyV1.Ignored,
	Opaque:     []string{".attention."},
	MTP:        familyV3.MTP,
	CarriesMTP: true,
}, bailingNames, nil)
