package table

// familyErnie45MoE is the table of ERNIE-4.5, whose router bias has an axis more.
var familyErnie45MoE = otherNames(Family{
	ModelTypes: []string{"ernie4_5_moe"},
	Rows:       groupedRows(routerBias(moe).shaped(one, routed)),
	Ignored:    familyV1.Ignored,
	Left:       []string{"model.mtp_"},
}, map[string]string{"mlp.gate.e_score_correction_bias": "mlp.moe_statics.e_score_correction_bias"},
	map[string]string{"mlp.gate.e_score_correction_bias": "mlp.gate.moe_statics.e_score_correction_bias"})
