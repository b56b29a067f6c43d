package table

// familyHYV3 is the table of Tencent Hy3, whose files hold a prediction layer that the reference leaves out.
var familyHYV3 = otherNames(Family{
	ModelTypes: []string{"hy_v3"},
	Rows:       namedInGGUF(groupedRows(routerBias(moe)), EScoreCorrectionBias, "blk.{l}.exp_probs_b"),
	Ignored:    familyV1.Ignored,
	MTP:        familyV3.MTP,
	CarriesMTP: true,
}, map[string]string{"mlp.gate.weight": "mlp.router.gate.weight", "mlp.gate.e_score_correction_bias": "mlp.expert_bias",
	"mlp.shared_experts": "mlp.shared_mlp", "shared_head.norm": "final_layernorm"},
	map[string]string{"mlp.gate.e_score_correction_bias": "mlp.e_score_correction_bias", "shared_head.norm": "final_layernorm"})
