package table

import "dsmoe/config"

// familyV32 is the table of DeepSeek-V3.2 and GLM-5: DeepSeek-V3's, with an indexer behind the
// attention of every layer that has one, prediction layers included.
var familyV32 = Family{
	ModelTypes: []string{"deepseek_v32", "glm_moe_dsa"},
	Rows:       behind(familyV3.Rows, oProjBias, indexer...),
	Ignored:    familyV3.Ignored,
	MTP:        familyV3.MTP,
}

// indexer is DeepseekV32Indexer.
var indexer = []Row{
	{"model.layers.{l}.self_attn.indexer.wq_b.weight", Indexer, WQB, indexes, []dim{indexQueries, qRank},
		stored("blk.{l}.indexer.attn_q_b.weight")},
	{"model.layers.{l}.self_attn.indexer.wk.weight", Indexer, WK, indexes, []dim{indexWidth, hidden},
		stored("blk.{l}.indexer.attn_k.weight")},
	{"model.layers.{l}.self_attn.indexer.k_norm.weight", Indexer, KNorm, indexes, []dim{indexWidth},
		stored("blk.{l}.indexer.k_norm.weight")},
	{"model.layers.{l}.self_attn.indexer.k_norm.bias", Indexer, KNormBias, indexes, []dim{indexWidth},
		stored("blk.{l}.indexer.k_norm.bias")},
	{"model.layers.{l}.self_attn.indexer.weights_proj.weight", Indexer, WeightsProj, indexes, []dim{indexHeads, hidden},
		stored("blk.{l}.indexer.proj.weight")},
}

// indexes is the condition of a layer with an indexer of its own.
var indexes = &when{[]string{"indexer_types"},
	func(c *config.Config, layer int) bool { return c.IndexerOf(layer) == layer }}

// Dimensions of the indexer.
var (
	indexWidth   = dim{[]string{"index_head_dim"}, func(c *config.Config, _ int) int { return c.Indexer.IndexHeadDim }}
	indexHeads   = dim{[]string{"index_n_heads"}, func(c *config.Config, _ int) int { return c.Indexer.IndexNHeads }}
	indexQueries = dim{[]string{"index_n_heads", "index_head_dim"},
		func(c *config.Config, _ int) int { return c.Indexer.IndexNHeads * c.Indexer.IndexHeadDim }}
)
