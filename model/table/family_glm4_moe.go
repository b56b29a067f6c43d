package table

// familyGLM4MoE is the table of GLM-4.5, 4.6 and 4.7, and of Solar-Open, which has no prediction layers.
var familyGLM4MoE = Family{
	ModelTypes: []string{"glm4_moe", "solar_open"},
	Rows: namedInGGUF(groupedRows(routerBias(moe)), PostAttentionLayernorm,
		"blk.{l}.post_attention_norm.weight"),
	Ignored: familyV1.Ignored,
	MTP:     familyV3.MTP,
}
