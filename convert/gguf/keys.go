package gguf

// The keys of a model: what each is in config.json.

import (
	"math"
	"slices"
	"strconv"

	"dsmoe/config"
)

// Keys that are no field of config.json, or more than one.
const (
	architectureKey = "general.architecture"
	tokensKey       = "tokenizer.ggml.tokens"
	nameKey         = "general.name"
	baseKey         = "general.basename"
	sizeKey         = "general.size_label"
	finetuneKey     = "general.finetune"
	versionKey      = "general.version"
	fileTypeKey     = "general.file_type"
	quantisationKey = "general.quantization_version"
	widenedKey      = "dsmoe.widened." // and a dtype: tensors that are F32 only because the format has them so

	blockCount   = "block_count"
	nextnLayers  = "nextn_predict_layers"
	headCountKV  = "attention.head_count_kv"
	keyLength    = "attention.key_length"
	valueLength  = "attention.value_length"
	keyMLA       = "attention.key_length_mla"
	valueMLA     = "attention.value_length_mla"
	ropeDims     = "rope.dimension_count"
	gatingFunc   = "expert_gating_func"
	groupCount   = "expert_group_count"
	groupUsed    = "expert_group_used_count"
	expertCount  = "expert_count"
	weightsScale = "expert_weights_scale"
	weightsNorm  = "expert_weights_norm"
	sharedCount  = "expert_shared_count"
	denseCount   = "leading_dense_block_count"
	vocabSize    = "vocab_size"
	queryRank    = "attention.q_lora_rank"

	indexerHeads = "attention.indexer.head_count"
	indexerWidth = "attention.indexer.key_length"
	indexerTopK  = "attention.indexer.top_k"
	indexerTypes = "attention.indexer.types" // which layers have an indexer of their own

	scalingType    = "rope.scaling.type"
	scalingFactor  = "rope.scaling.factor"
	scalingContext = "rope.scaling.original_context_length"
	yarnFast       = "rope.scaling.yarn_beta_fast"
	yarnSlow       = "rope.scaling.yarn_beta_slow"
	yarnLog        = "rope.scaling.yarn_log_multiplier"
)

// row maps a key, behind the architecture's name and a dot, to a field of config.json with
// the same value. A key that follows from several fields has no field here: it is only written.
type row struct {
	key   string
	kind  kind
	field string
	value func(c *config.Config) any // a uint32, float32 or bool; nil if it is not written
}

// rows are the keys of all models, in the order in which llama.cpp's converter writes them.
var rows = []row{
	{"context_length", u32, "max_position_embeddings",
		func(c *config.Config) any { return uint32(c.RoPE.MaxPositionEmbeddings) }},
	{"embedding_length", u32, "hidden_size", func(c *config.Config) any { return uint32(c.HiddenSize) }},
	{"feed_forward_length", u32, "intermediate_size", func(c *config.Config) any { return uint32(c.IntermediateSize) }},
	{"attention.head_count", u32, "num_attention_heads",
		func(c *config.Config) any { return uint32(c.Attention.NumAttentionHeads) }},
	{"rope.freq_base", f32, "rope_theta", func(c *config.Config) any { return float32(c.RoPE.RopeTheta) }},
	{"attention.layer_norm_rms_epsilon", f32, "rms_norm_eps", func(c *config.Config) any { return float32(c.RMSNormEps) }},
	{expertCount, u32, "n_routed_experts", func(c *config.Config) any { return unlessZero(c.MoE.NRoutedExperts) }},
	{"expert_used_count", u32, "num_experts_per_tok",
		func(c *config.Config) any { return unlessZero(c.MoE.NumExpertsPerTok) }},
	{"expert_feed_forward_length", u32, "moe_intermediate_size",
		func(c *config.Config) any { return uint32(c.MoE.MoEIntermediateSize) }},
}

// latentRows are the keys of models with latent attention.
var latentRows = []row{
	{"attention.kv_lora_rank", u32, "kv_lora_rank", func(c *config.Config) any { return uint32(c.Attention.KVLoraRank) }},
}

func unlessZero(n int) any {
	if n == 0 {
		return nil
	}
	return uint32(n)
}

// shortest spells the shortest decimal that is a float32, in JSON.
func shortest(x float64) string {
	s := strconv.FormatFloat(x, 'g', -1, 32)
	if math.Trunc(x) == x && math.Abs(x) < 1e9 {
		s = strconv.FormatFloat(x, 'f', 1, 32) // a float to Python
	}
	return s
}

// windowedRows are the keys of deepseek4 that equal a field.
var windowedRows = slices.Concat(only(rows, "context_length", "embedding_length", "attention.head_count",
	"rope.freq_base", "attention.layer_norm_rms_epsilon", expertCount, "expert_used_count",
	"expert_feed_forward_length"), []row{
	{headCountKV, u32, "num_key_value_heads", func(c *config.Config) any { return uint32(c.Attention.NumKeyValueHeads) }},
	{keyLength, u32, "head_dim", func(c *config.Config) any { return uint32(c.Attention.VHeadDim) }},
	{ropeDims, u32, "qk_rope_head_dim", func(c *config.Config) any { return uint32(c.Attention.QKRopeHeadDim) }},
	{queryRank, u32, "q_lora_rank", func(c *config.Config) any { return uint32(c.Attention.QLoraRank) }},
	{"attention.sliding_window", u32, "sliding_window",
		func(c *config.Config) any { return uint32(c.Windows.SlidingWindow) }},
	{sharedCount, u32, "n_shared_experts", func(c *config.Config) any { return uint32(c.MoE.NSharedExperts) }},
	{weightsScale, f32, "routed_scaling_factor",
		func(c *config.Config) any { return float32(c.Router.RoutedScalingFactor) }},
	{indexerHeads, u32, "index_n_heads", func(c *config.Config) any { return uint32(c.Indexer.IndexNHeads) }},
	{indexerWidth, u32, "index_head_dim", func(c *config.Config) any { return uint32(c.Indexer.IndexHeadDim) }},
	{indexerTopK, u32, "index_topk", func(c *config.Config) any { return uint32(c.Indexer.IndexTopK) }},
	{"attention.output_group_count", u32, "o_groups", func(c *config.Config) any { return uint32(c.Windows.OGroups) }},
	{"attention.output_lora_rank", u32, "o_lora_rank", func(c *config.Config) any { return uint32(c.Windows.OLoraRank) }},
	{"attention.compress_rope_freq_base", f32, "compress_rope_theta",
		func(c *config.Config) any { return float32(c.RoPE.CompressRopeTheta) }},
	{"hyper_connection.count", u32, "hc_mult", func(c *config.Config) any { return uint32(c.HyperConnections.HCMult) }},
	{"hyper_connection.sinkhorn_iterations", u32, "hc_sinkhorn_iters",
		func(c *config.Config) any { return uint32(c.HyperConnections.HCSinkhornIters) }},
	{"hyper_connection.epsilon", f32, "hc_eps", func(c *config.Config) any { return float32(c.HyperConnections.HCEps) }},
	{"hash_layer_count", u32, "num_hash_layers", func(c *config.Config) any { return uint32(firstLayers(c.Hashes)) }},
})

// only returns the rows with these keys.
func only(rows []row, keys ...string) []row {
	return slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return !slices.Contains(keys, r.key) })
}

// firstLayers returns how many layers, from the first on, have a property.
func firstLayers(has func(layer int) bool) (n int) {
	for has(n) {
		n++
	}
	return n
}

// isLite reports whether llama.cpp takes a model for DeepSeek-V2-Lite, whose queries have no
// q_lora_rank: llama_model_deepseek2::load_arch_hparams.
func isLite(layers, vocab int) bool {
	return layers == 26 || layers == 27 || layers == 48 && vocab == 128256
}
