package table

// familyMiniMaxM2 is the table of MiniMax-M2.
var familyMiniMaxM2 = otherNames(Family{
	ModelTypes: []string{"minimax_m2"},
	Rows:       groupedRows(routerBias(moe)),
	Ignored:    familyV1.Ignored,
	Joined:     true,
}, map[string]string{"mlp.gate.weight": "block_sparse_moe.gate.weight",
	"mlp.gate.e_score_correction_bias": "block_sparse_moe.e_score_correction_bias",
	"mlp.experts.{e}.gate_proj":        "block_sparse_moe.experts.{e}.w1",
	"mlp.experts.{e}.up_proj":          "block_sparse_moe.experts.{e}.w3",
	"mlp.experts.{e}.down_proj":        "block_sparse_moe.experts.{e}.w2"},
	map[string]string{"mlp.gate.e_score_correction_bias": "mlp.e_score_correction_bias"})
