package table

import (
	"slices"

	"dsmoe/config"
)

// familyVL2 is the table of the language models of DeepSeek-VL2 and DeepSeek-OCR: with latent attention or plain
// one, and DeepSeek-V3's router or DeepSeek-V2's.
var familyVL2 = Family{
	ModelTypes: []string{"deepseek_vl_v2"},
	Rows:       behind(eitherAttention(familyV2.Rows), Gate, routerBias(biased)),
	Ignored:    familyV1.Ignored,
}

// eitherAttention puts the rows of the first DeepSeekMoE's attention before those of latent attention, each on its condition.
// q_proj and o_proj are rows of both: their widths are those of the heads.
func eitherAttention(latent []Row) (rows []Row) {
	for _, row := range latent {
		switch {
		case row.Role == QProj:
			row.Shape = []dim{headQueries, hidden}
			rows = append(rows, row)
			for _, plain := range familyV1.Rows {
				switch plain.Role {
				case qProjBias, KProj, kProjBias, VProj, vProjBias:
					plain.When = and(plain.When, plainOnly)
					rows = append(rows, plain)
				}
			}
		case row.Role == OProj:
			row.Shape = []dim{hidden, headContext}
			rows = append(rows, row)
		case row.Role == oProjBias || row.Module != Attention && row.Role != KVALayernorm:
			rows = append(rows, row)
		default:
			row.When = and(row.When, latentOnly)
			rows = append(rows, row)
		}
	}
	return rows
}

// and returns the condition that both hold; a may be nil.
func and(a, b *when) *when {
	if a == nil {
		return b
	}
	return &when{slices.Concat(a.Keys, b.Keys),
		func(c *config.Config, layer int) bool { return a.Holds(c, layer) && b.Holds(c, layer) }}
}

// Conditions and dimensions of the table.
var (
	latentOnly = &when{[]string{"use_mla"}, func(c *config.Config, _ int) bool { return c.LatentAttention() }}
	plainOnly  = &when{[]string{"use_mla"}, func(c *config.Config, _ int) bool { return !c.LatentAttention() }}
	biased     = &when{append(slices.Clip(moeLayers), "topk_method"),
		func(c *config.Config, layer int) bool { return c.IsMoE(layer) && c.Router.TopKMethod == "noaux_tc" }}

	headWidths  = []string{"hidden_size", "num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "use_mla"}
	headQueries = dim{headWidths, func(c *config.Config, _ int) int {
		return c.Attention.NumAttentionHeads *
			c.QKHeadDim()
	}}
	headContext = dim{[]string{"hidden_size", "num_attention_heads", "use_mla", "v_head_dim"},
		func(c *config.Config, _ int) int { return c.Attention.NumAttentionHeads * c.ValueHeadDim() }}
)
