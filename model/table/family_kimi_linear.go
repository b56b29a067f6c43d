package table

import "maps"

// familyKimiLinear is the table of Kimi-Linear. Files that transformers saved have dense layers under block_sparse_moe, too.
var familyKimiLinear = func() Family {
	f := Family{
		ModelTypes: []string{"kimi_linear"},
		Rows:       blockRows(),
		Ignored:    familyV1.Ignored,
		Opaque:     []string{".self_attn."},
	}
	names := maps.Clone(expertsOfMixtral)
	names["mlp.shared_experts"] = "block_sparse_moe.shared_experts"
	published := otherNames(f, names, nil)
	names["mlp."] = "block_sparse_moe."
	saved := otherNames(f, names, nil).Namings[0]
	saved.Name, saved.Whose = "", "a name in files that transformers saved"
	published.Namings = append(published.Namings, saved)
	published.spelled = spellings(published.Namings)
	return published
}()
