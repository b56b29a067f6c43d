package table

import "slices"

// familyAXK1 is the table of A.X-K1: DeepSeek-V3's without a router bias, and with a norm behind the experts. The
// files hold the norm of dense layers too, which the reference does not read; save_pretrained leaves that out, and
// writes the bias, 0, that the class has.
var familyAXK1 = Family{
	ModelTypes: []string{"axk1"},
	Rows: behind(familyV2.Rows, PostAttentionLayernorm,
		Row{postMLPNorm, Norms, PostMLPLayernorm, moe, []dim{hidden}, gguf{}}),
	Ignored: append(slices.Clip(familyV1.Ignored), Row{Name: postMLPNorm, When: dense},
		Row{Name: "model.layers.{l}" + addedBias, When: moe}),
}

const postMLPNorm = "model.layers.{l}.post_mlp_layernorm.weight"
