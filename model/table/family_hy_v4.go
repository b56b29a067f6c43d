package table

// familyHYV4 is the table of Hy4, whose streams are not computed. Published files have routed experts fused.
var familyHYV4 = otherNames(Family{
	ModelTypes: []string{"hy_v4"},
	Rows:       blockRows(),
	Ignored:    familyV1.Ignored,
	Opaque:     []string{".self_attn.", ".hc_pre.", "model.hc_head.", "model.mtp_layers."},
	Joined:     true,
}, nil, map[string]string{"mlp.gate_proj": "mlp.linear_gate",
	"mlp.shared_experts.gate_proj": "mlp.shared_experts.linear_gate"}).publishedFused()
