package table

import (
	"slices"
	"strconv"

	"dsmoe/config"
)

// families is the list of all tables; a new family is a file and a line here.
var families = []*Family{&familyV1, &familyV2, &familyV3, &familyAXK1, &familyVL2, &familyV32, &familyV4, &familyV41}

// FamilyOf returns the table of c's model_type. Every model_type that package
// config accepts has one.
func FamilyOf(c *config.Config) *Family {
	for _, f := range families {
		if slices.Contains(f.ModelTypes, c.ModelType) {
			return f
		}
	}
	panic("table: no table for model_type " + strconv.Quote(c.ModelType))
}

// moeLayers are the keys that Config.IsMoE depends on.
var moeLayers = []string{"n_routed_experts", "first_k_dense_replace", "moe_layer_freq"}

// Conditions of the table.
var (
	dense  = &When{moeLayers, func(c *config.Config, layer int) bool { return !c.IsMoE(layer) }}
	moe    = &When{moeLayers, (*config.Config).IsMoE}
	hashed = &When{[]string{"mlp_layer_types"}, (*config.Config).Hashes}
	scored = &When{[]string{"mlp_layer_types"}, func(c *config.Config, layer int) bool { return !c.Hashes(layer) }}
	shared = &When{append(slices.Clip(moeLayers), "n_shared_experts"),
		func(c *config.Config, layer int) bool { return c.IsMoE(layer) && c.NSharedExperts > 0 }}

	bias   = &When{[]string{"attention_bias"}, func(c *config.Config, _ int) bool { return c.AttentionBias }}
	wholeQ = &When{[]string{"q_lora_rank"}, func(c *config.Config, _ int) bool { return c.QLoraRank == 0 }}
	loraQ  = &When{[]string{"q_lora_rank"}, func(c *config.Config, _ int) bool { return c.QLoraRank > 0 }}

	loraQBias = &When{[]string{"q_lora_rank", "attention_bias"},
		func(c *config.Config, _ int) bool { return c.QLoraRank > 0 && c.AttentionBias }}

	// copied is that of a prediction layer's copy of a weight of the main model, see
	// Row.Copied: no key of the config says whether a checkpoint has it.
	copied = &When{nil, func(*config.Config, int) bool { return true }}

	tied   = &When{[]string{"tie_word_embeddings"}, func(c *config.Config, _ int) bool { return c.TieWordEmbeddings }}
	untied = &When{[]string{"tie_word_embeddings"}, func(c *config.Config, _ int) bool { return !c.TieWordEmbeddings }}
)

// Dimensions of the table.
var (
	vocab     = Dim{[]string{"vocab_size"}, func(c *config.Config, _ int) int { return c.VocabSize }}
	hidden    = Dim{[]string{"hidden_size"}, func(c *config.Config, _ int) int { return c.HiddenSize }}
	twoHidden = Dim{[]string{"hidden_size"}, func(c *config.Config, _ int) int { return 2 * c.HiddenSize }}

	denseFF  = Dim{[]string{"intermediate_size"}, func(c *config.Config, _ int) int { return c.IntermediateSize }}
	expertFF = Dim{[]string{"moe_intermediate_size"}, func(c *config.Config, _ int) int { return c.MoEIntermediateSize }}
	sharedFF = Dim{[]string{"moe_intermediate_size", "n_shared_experts"},
		func(c *config.Config, _ int) int { return c.MoEIntermediateSize * c.NSharedExperts }}
	routed = Dim{[]string{"n_routed_experts"}, func(c *config.Config, _ int) int { return c.NRoutedExperts }}

	// DeepseekAttention: HeadDim is hidden_size / num_attention_heads.
	queries = Dim{[]string{"hidden_size", "num_attention_heads"},
		func(c *config.Config, _ int) int { return c.NumAttentionHeads * c.HeadDim() }}
	keys = Dim{[]string{"hidden_size", "num_attention_heads", "num_key_value_heads"},
		func(c *config.Config, _ int) int { return c.NumKeyValueHeads * c.HeadDim() }}

	// DeepseekV2Attention.
	qRank      = Dim{[]string{"q_lora_rank"}, func(c *config.Config, _ int) int { return c.QLoraRank }}
	kvRank     = Dim{[]string{"kv_lora_rank"}, func(c *config.Config, _ int) int { return c.KVLoraRank }}
	kvRankRope = Dim{[]string{"kv_lora_rank", "qk_rope_head_dim"},
		func(c *config.Config, _ int) int { return c.KVLoraRank + c.QKRopeHeadDim }}
	latentQueries = Dim{[]string{"num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim"},
		func(c *config.Config, _ int) int { return c.NumAttentionHeads * c.QKHeadDim() }}
	latentKeysValues = Dim{[]string{"num_attention_heads", "qk_nope_head_dim", "v_head_dim"},
		func(c *config.Config, _ int) int { return c.NumAttentionHeads * (c.QKNopeHeadDim + c.VHeadDim) }}
	latentContext = Dim{[]string{"num_attention_heads", "v_head_dim"},
		func(c *config.Config, _ int) int { return c.NumAttentionHeads * c.VHeadDim }}
)
