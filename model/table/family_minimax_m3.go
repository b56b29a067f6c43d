package table

import "maps"

// familyMiniMaxM3 is the table of MiniMax-M3's text. Published files have it within a model; those that transformers saves
// without that have the projections of each MLP fused.
var familyMiniMaxM3 = otherNames(Family{
	ModelTypes: []string{"minimax_m3_vl_text"},
	Rows:       sharedOfOneWidth(blockRows()),
	Ignored:    familyV1.Ignored,
	Opaque:     []string{".self_attn."},
	Joined:     true,
}, minimaxM3Names, map[string]string{joinedDense: "mlp.gate_up_proj.weight",
	joinedShared: "mlp.shared_experts.gate_up_proj.weight"}).under("language_model.model.")

var minimaxM3Names = func() map[string]string {
	names := maps.Clone(expertsOfMixtral)
	names["mlp.shared_experts"] = "block_sparse_moe.shared_experts"
	names["mlp.gate.e_score_correction_bias"] = "block_sparse_moe.e_score_correction_bias"
	names["lm_head."] = "language_model.lm_head."
	return names
}()
