package table

import "slices"

// familyAXK1 is the table of A.X-K1: DeepSeek-V3's without a router bias, and with a norm behind the experts. The
// files hold the norm of dense layers too, which the reference does not read.
var familyAXK1 = Family{
	ModelTypes: []string{"axk1"},
	Rows:       expertsNormed(latentRows()),
	Ignored:    append(slices.Clip(familyV1.Ignored), Row{Name: postMLPNorm, When: dense}),
}

const postMLPNorm = "model.layers.{l}.post_mlp_layernorm.weight"

// expertsNormed puts the row of the norm behind the experts after those of its layer.
func expertsNormed(rows []Row) []Row {
	last := slices.IndexFunc(rows, func(r Row) bool { return r.Role == PostAttentionLayernorm })
	return slices.Insert(rows, last+1, Row{postMLPNorm, Norms, PostMLPLayernorm, moe, []dim{hidden}, gguf{}})
}
