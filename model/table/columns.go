package table

import (
	"slices"

	"dsmoe/config"
	"dsmoe/model/tensor"
)

// moeLayers are the keys that Config.IsMoE depends on.
var moeLayers = []string{"n_routed_experts", "first_k_dense_replace", "moe_layer_freq"}

// Conditions of the table.
var (
	dense  = &when{moeLayers, func(c *config.Config, layer int) bool { return !c.IsMoE(layer) && c.HasMLP(layer) }}
	moe    = &when{moeLayers, (*config.Config).IsMoE}
	hashed = &when{[]string{"mlp_layer_types"}, (*config.Config).Hashes}
	scored = &when{[]string{"mlp_layer_types"}, func(c *config.Config, layer int) bool { return !c.Hashes(layer) }}
	shared = &when{append(slices.Clip(moeLayers), "n_shared_experts"),
		func(c *config.Config, layer int) bool { return c.IsMoE(layer) && c.MoE.NSharedExperts > 0 }}

	bias   = &when{[]string{"attention_bias"}, func(c *config.Config, _ int) bool { return c.Attention.AttentionBias }}
	wholeQ = &when{[]string{"q_lora_rank"}, func(c *config.Config, _ int) bool { return c.Attention.QLoraRank == 0 }}
	loraQ  = &when{[]string{"q_lora_rank"}, func(c *config.Config, _ int) bool { return c.Attention.QLoraRank > 0 }}

	loraQBias = &when{[]string{"q_lora_rank", "attention_bias"},
		func(c *config.Config, _ int) bool { return c.Attention.QLoraRank > 0 && c.Attention.AttentionBias }}

	// copied is that of a prediction layer's copy of a weight of the main model, see
	// Row.Copied: no key of the config says whether a checkpoint has it.
	copied = &when{nil, func(*config.Config, int) bool { return true }}

	tied   = &when{[]string{"tie_word_embeddings"}, func(c *config.Config, _ int) bool { return c.TieWordEmbeddings }}
	untied = &when{[]string{"tie_word_embeddings"}, func(c *config.Config, _ int) bool { return !c.TieWordEmbeddings }}
)

// Dimensions of the table.
var (
	vocab     = dim{[]string{"vocab_size"}, func(c *config.Config, _ int) int { return c.VocabSize }}
	hidden    = dim{[]string{"hidden_size"}, func(c *config.Config, _ int) int { return c.HiddenSize }}
	twoHidden = dim{[]string{"hidden_size"}, func(c *config.Config, _ int) int { return 2 * c.HiddenSize }}

	denseFF  = dim{[]string{"intermediate_size"}, func(c *config.Config, _ int) int { return c.IntermediateSize }}
	expertFF = dim{[]string{"moe_intermediate_size"}, func(c *config.Config,
		_ int) int {
		return c.MoE.MoEIntermediateSize
	}}
	sharedFF = dim{[]string{"moe_intermediate_size", "n_shared_experts"},
		func(c *config.Config, _ int) int { return c.MoE.MoEIntermediateSize * c.MoE.NSharedExperts }}
	routed = dim{[]string{"n_routed_experts"}, func(c *config.Config, _ int) int { return c.MoE.NRoutedExperts }}

	// DeepseekAttention: heads are hidden_size / num_attention_heads wide.
	queries = dim{[]string{"hidden_size", "num_attention_heads"},
		func(c *config.Config, _ int) int {
			return c.Attention.NumAttentionHeads * (c.HiddenSize / c.Attention.NumAttentionHeads)
		}}
	keys = dim{[]string{"hidden_size", "num_attention_heads", "num_key_value_heads"},
		func(c *config.Config, _ int) int {
			return c.Attention.NumKeyValueHeads * (c.HiddenSize / c.Attention.NumAttentionHeads)
		}}

	// DeepseekV2Attention.
	qRank      = dim{[]string{"q_lora_rank"}, func(c *config.Config, _ int) int { return c.Attention.QLoraRank }}
	kvRank     = dim{[]string{"kv_lora_rank"}, func(c *config.Config, _ int) int { return c.Attention.KVLoraRank }}
	kvRankRope = dim{[]string{"kv_lora_rank", "qk_rope_head_dim"},
		func(c *config.Config, _ int) int { return c.Attention.KVLoraRank + c.Attention.QKRopeHeadDim }}
	latentQueries = dim{[]string{"num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim"},
		func(c *config.Config, _ int) int { return c.Attention.NumAttentionHeads * c.QKHeadDim() }}
	latentKeysValues = dim{[]string{"num_attention_heads", "qk_nope_head_dim", "v_head_dim"},
		func(c *config.Config, _ int) int {
			return c.Attention.NumAttentionHeads * (c.Attention.QKNopeHeadDim + c.Attention.VHeadDim)
		}}
	latentContext = dim{[]string{"num_attention_heads", "v_head_dim"},
		func(c *config.Config, _ int) int { return c.Attention.NumAttentionHeads * c.Attention.VHeadDim }}

	// Heads, of GGUF's column.
	queryHeads = dim{[]string{"num_attention_heads"}, func(c *config.Config,
		_ int) int {
		return c.Attention.NumAttentionHeads
	}}
	keyHeads = dim{[]string{"num_key_value_heads"}, func(c *config.Config,
		_ int) int {
		return c.Attention.NumKeyValueHeads
	}}
)

// What GGUF's column has.

// stored is a tensor with the elements as they lie.
func stored(name string) gguf { return gguf{Name: name} }

// rotated has the rows of each head paired as RoPE rotates them in llama.cpp: row i of the
// first half of the head, then row i of the second. DeepseekModel.permute of
// conversion/deepseek.py.
func rotated(name string, heads dim) gguf {
	return gguf{Pieces: []ggufPiece{{name, func(c *config.Config, shape []int) Order {
		n, width := int64(heads.Size(c, -1)), int64(1)
		if len(shape) > 1 {
			width = int64(shape[1])
		}
		half := int64(shape[0]) / n / 2
		return Order{Shape: shape, View: view([]int64{n, half, 2, width}, 2*half*width, width, half*width, 1)}
	}}}}
}

func view(shape []int64, stride ...int64) *tensor.View {
	return &tensor.View{Shape: shape, Stride: stride}
}

// latentSizes are num_attention_heads, qk_nope_head_dim, v_head_dim and kv_lora_rank.
func latentSizes(c *config.Config) (heads, nope, value, rank int64) {
	return int64(c.Attention.NumAttentionHeads), int64(c.Attention.QKNopeHeadDim), int64(c.Attention.VHeadDim),
		int64(c.Attention.KVLoraRank)
}

// latentKeys has of kv_b_proj the rows that make keys, those of each head transposed:
// [heads, kv_lora_rank, qk_nope_head_dim].
func latentKeys(name string) ggufPiece {
	return ggufPiece{name, func(c *config.Config, _ []int) Order {
		heads, nope, value, rank := latentSizes(c)
		return Order{Shape: []int{int(heads), int(rank), int(nope)},
			View: view([]int64{heads, rank, nope}, (nope+value)*rank, 1, rank)}
	}}
}

// latentValues has of kv_b_proj the rows that make values: [heads, v_head_dim, kv_lora_rank].
func latentValues(name string) ggufPiece {
	return ggufPiece{name, func(c *config.Config, _ []int) Order {
		heads, nope, value, rank := latentSizes(c)
		return Order{Shape: []int{int(heads), int(value), int(rank)}, First: nope * rank,
			View: view([]int64{heads, value, rank}, (nope+value)*rank, rank, 1)}
	}}
}
