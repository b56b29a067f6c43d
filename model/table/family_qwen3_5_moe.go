package table

// familyQwen35MoE is the table of Qwen3.5's mixtures, whose prediction layers are named by themselves.
var familyQwen35MoE = otherNames(Family{
	ModelTypes: []string{"qwen3_5_moe_text"},
	Rows:       familyQwen3Next.Rows,
	Ignored:    familyV1.Ignored,
	Opaque:     familyQwen3Next.Opaque,
}, oneShared, nil).under("model.language_model.").orPlain()
