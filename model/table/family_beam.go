package table

// familyBeam is the table of Beam: a layer has a norm before and behind attention, and one before and behind the MLP.
var familyBeam = otherNames(Family{
	ModelTypes: []string{"beam"},
	Rows:       blockRows(fourNorms...),
	Ignored:    familyV1.Ignored,
	Opaque:     []string{".self_attn."},
}, map[string]string{"post_attention_layernorm": "pre_feedforward_layernorm", "}.attention_layernorm": "}.post_attention_layernorm",
	"post_mlp_layernorm": "post_feedforward_layernorm"}, nil)
