package table

// familyDots3Note is the table of dots3.note's text, whose prediction layers are not computed.
var familyDots3Note = Family{
	ModelTypes:   []string{"dots3_note_text"},
	Rows:         sharedOfOneWidth(blockRows()),
	Ignored:      familyV1.Ignored,
	Opaque:       []string{".self_attn.", "model.mtp."},
	LeavesLayers: true,
}
