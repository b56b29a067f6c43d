package table

// familyStep3p5 is the table of Step 3.5 and 3.7, whose files have each projection of all routed experts in one tensor.
var familyStep3p5 = otherNames(Family{
	ModelTypes:   []string{"step3p5"},
	Rows:         sharedOfOneWidth(blockRows()),
	Ignored:      familyV1.Ignored,
	Opaque:       []string{".self_attn."},
	Joined:       true,
	LeavesLayers: true,
}, map[string]string{"mlp.gate.weight": "moe.gate.weight", "mlp.gate.e_score_correction_bias": "moe.router_bias",
	"mlp.shared_experts": "share_expert", stackedGates: "moe.gate_proj.weight", stackedUps: "moe.up_proj.weight",
	stackedDowns: "moe.down_proj.weight"}, nil).publishedFused()
