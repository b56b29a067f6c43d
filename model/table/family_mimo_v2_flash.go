package table

// familyMiMoV2Flash is the table of MiMo-V2-Flash, whose prediction layers are named by themselves.
var familyMiMoV2Flash = Family{
	ModelTypes: []string{"mimo_v2_flash"},
	Rows:       blockRows(),
	Ignored:    familyV1.Ignored,
	Opaque:     []string{".self_attn.", "model.mtp."},
}
