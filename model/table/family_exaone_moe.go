package table

// familyExaoneMoE is the table of K-EXAONE.
var familyExaoneMoE = otherNames(Family{
	ModelTypes: []string{"exaone_moe"},
	Rows:       groupedRows(routerBias(moe)),
	Ignored:    familyV1.Ignored,
	Left:       []string{"mtp."},
}, map[string]string{"mlp.gate.e_score_correction_bias": "mlp.e_score_correction_bias"}, nil)
