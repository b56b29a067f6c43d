package table

import "maps"

// familyKimiLinear is the table of Kimi-Linear. Files that transformers saved have dense layers under block_sparse_moe, too.
var familyKimiLinear = otherNames(Family{
	ModelTypes: []string{"kimi_linear"},
	Rows:       blockRows(),
	Ignored:    familyV1.Ignored,
	Opaque:     []string{".self_attn."},
}, kimiLinearNames, nil)

var kimiLinearNames = func() map[string]string {
	names := maps.Clone(expertsOfMixtral)
	names["mlp.shared_experts"] = "block_sparse_moe.shared_experts"
	return names
}()
