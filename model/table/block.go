package table

import (
	"slices"

	"dsmoe/config"
)

// blockRows are the rows of the families whose attention is not computed: the first DeepSeekMoE's but for attention, and a
// router bias. Tensors of attention are known by their names alone: see Family.Opaque. llama.cpp's traces have GGUF's names,
// files with them are not read or written.
func blockRows(behind ...Row) (rows []Row) {
	for _, row := range familyV1.Rows {
		if row.Module != Attention {
			rows = append(rows, row)
		}
		switch row.Role {
		case Gate:
			rows = append(rows, routerBias(chosenByBias))
		case PostAttentionLayernorm:
			rows = append(rows, behind...)
		}
	}
	return rows
}

// sharedOfOneWidth returns rows with one shared expert of a width of its own.
func sharedOfOneWidth(rows []Row) []Row {
	for i := range rows {
		at := Place{Row: &rows[i]}
		switch {
		case at.Is(SharedExperts, DownProj):
			rows[i].Shape = []dim{hidden, oneSharedFF}
		case at.Module() == SharedExperts:
			rows[i].Shape = []dim{oneSharedFF, hidden}
		}
	}
	return rows
}

// inLatent returns rows with routed experts in a latent space, if the config has one.
func inLatent(rows []Row) []Row {
	for i := range rows {
		at := Place{Row: &rows[i]}
		switch {
		case at.Is(RoutedExperts, DownProj):
			rows[i].Shape = []dim{expertWidth, expertFF}
		case at.Module() == RoutedExperts:
			rows[i].Shape = []dim{expertFF, expertWidth}
		}
	}
	return behind(behind(rows, Gate,
		Row{"model.layers.{l}.mlp.fc2_latent_proj.weight", Latent, FC2LatentProj, latent, []dim{hidden, expertWidth},
			stored("blk.{l}.ffn_latent_up.weight")}), Gate,
		Row{"model.layers.{l}.mlp.fc1_latent_proj.weight", Latent, FC1LatentProj, latent, []dim{expertWidth, hidden},
			stored("blk.{l}.ffn_latent_down.weight")})
}

// Conditions and dimensions of these rows.
var (
	latent = &when{append(slices.Clip(moeLayers), "moe_latent_size"),
		func(c *config.Config, layer int) bool { return c.IsMoE(layer) && c.MoE.LatentSize > 0 }}

	expertWidth  = dim{[]string{"hidden_size", "moe_latent_size"}, func(c *config.Config, _ int) int { return c.ExpertWidth() }}
	choices      = dim{[]string{"n_routed_experts", "zero_expert_num"}, func(c *config.Config, _ int) int { return c.Choices() }}
	chosenByBias = &when{moeLayers, func(c *config.Config, layer int) bool { return c.IsMoE(layer) && c.ChoosesByBias() }}

	oneSharedFF = dim{[]string{"shared_expert_intermediate_size", "n_shared_experts"},
		func(c *config.Config, _ int) int { return c.MoE.SharedIntermediateSize * c.MoE.NSharedExperts }}
)

// fourNorms are the rows of the norms behind attention and MLP.
var fourNorms = []Row{
	{"model.layers.{l}.post_mlp_layernorm.weight", Norms, PostMLPLayernorm, nil, []dim{hidden}, stored("blk.{l}.post_ffw_norm.weight")},
	{"model.layers.{l}.attention_layernorm.weight", Norms, attentionLayernorm, nil, []dim{hidden},
		stored("blk.{l}.post_attention_norm.weight")},
}

// oneShared is what some files call the shared expert.
var oneShared = map[string]string{"mlp.shared_experts": "mlp.shared_expert"}

// expertsOfMixtral are what some files call routed experts and their matrices.
var expertsOfMixtral = map[string]string{"mlp.gate.": "block_sparse_moe.gate.",
	"mlp.experts.{e}.gate_proj": "block_sparse_moe.experts.{e}.w1",
	"mlp.experts.{e}.up_proj":   "block_sparse_moe.experts.{e}.w3",
	"mlp.experts.{e}.down_proj": "block_sparse_moe.experts.{e}.w2"}
