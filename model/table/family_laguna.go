package table

// familyLaguna is the table of Laguna, whose router bias lies beside the experts.
var familyLaguna = otherNames(Family{
	ModelTypes: []string{"laguna"},
	Rows:       sharedOfOneWidth(blockRows()),
	Ignored:    familyV1.Ignored,
	Opaque:     []string{".self_attn."},
}, map[string]string{"mlp.shared_experts": "mlp.shared_expert",
	"mlp.gate.e_score_correction_bias": "mlp.experts.e_score_correction_bias"}, nil)
