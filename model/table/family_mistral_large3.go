package table

// familyMistralLarge3 is the table of Mistral Large 3's text.
var familyMistralLarge3 = otherNames(Family{
	ModelTypes: []string{"mistral_large_3"},
	Rows:       blockRows(),
	Ignored:    familyV1.Ignored,
	Opaque:     []string{".attention.", "vision_encoder.", "patch_merger.", "pre_mm_projector_norm.", "vision_language_adapter."},
}, mistralNames, nil)
