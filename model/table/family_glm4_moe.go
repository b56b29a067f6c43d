package table

// familyGLM4MoE is the table of GLM-4.5, 4.6 and 4.7.
var familyGLM4MoE = Family{
	ModelTypes: []string{"glm4_moe"},
	Rows:       groupedRows(routerBias(moe)),
	Ignored:    familyV1.Ignored,
	MTP:        familyV3.MTP,
}
