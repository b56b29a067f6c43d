package table

// familyExaoneMoE is the table of K-EXAONE, whose files hold a prediction layer that the reference leaves out.
var familyExaoneMoE = otherNames(Family{
	ModelTypes: []string{"exaone_moe"},
	Rows:       groupedRows(routerBias(moe)),
	Ignored:    familyV1.Ignored,
	MTP:        familyV3.MTP,
	CarriesMTP: true,
}, map[string]string{"mlp.gate.e_score_correction_bias": "mlp.e_score_correction_bias"}, map[string]string{}).predicting(map[string]string{
	"eh_proj.weight": "mtp.fc.weight", "enorm.weight": "mtp.pre_fc_norm_embedding.weight",
	"hnorm.weight": "mtp.pre_fc_norm_hidden.weight", "shared_head.norm.weight": "mtp.norm.weight"})
