package config

// What a Config says of the network by its fields alone, whatever its family.

// LatentEps is eps of the norms inside latent attention, whatever RMSNormEps is: the class default of
// DeepseekV2RMSNorm.
const LatentEps = 1e-6

// LatentAttention reports whether attention is multi-head latent attention,
// DeepseekV2Attention: keys and values come from kv_lora_rank compressed values.
func (c *Config) LatentAttention() bool { return c.Attention.KVLoraRank > 0 }

// LimitsGroups reports whether a token may choose only from topk_group of the n_group groups of
// experts. With topk_method greedy or null, and in DeepSeek-V4, n_group and topk_group have no effect.
func (c *Config) LimitsGroups() bool {
	return c.Router.TopKMethod == "group_limited_greedy" || c.Router.TopKMethod == "noaux_tc" && c.Router.NGroup > 0
}

// HeadDim is the width that RoPE rotates in one attention head: qk_rope_head_dim, or the rotated share of head_dim; in
// families without these hidden_size / num_attention_heads, the reference's head_dim. It is even.
func (c *Config) HeadDim() int {
	if c.Attention.QKRopeHeadDim > 0 {
		return c.Attention.QKRopeHeadDim
	}
	return c.HiddenSize / c.Attention.NumAttentionHeads
}

// RotaryFirst reports whether RoPE rotates the first channels of a head; with latent and windowed attention it rotates the
// last ones.
func (c *Config) RotaryFirst() bool { return !c.LatentAttention() && !c.Windowed() }

// QKHeadDim is the width of one query or key head.
func (c *Config) QKHeadDim() int { return c.Attention.QKNopeHeadDim + c.HeadDim() }

// ValueHeadDim is the width of one value head.
func (c *Config) ValueHeadDim() int {
	if c.Attention.VHeadDim > 0 {
		return c.Attention.VHeadDim
	}
	return c.HeadDim()
}

// The types of layers.
const (
	fullAttention    = "full_attention"
	slidingAttention = "sliding_attention"
	compressedSparse = "compressed_sparse_attention"
	heavyCompression = "heavily_compressed_attention"
	hashMoE          = "hash_moe"
	denseMLP         = "dense"
	sparseMLP        = "sparse"
	noMLP            = "none"
)

// Windowed reports whether queries attend to a window of the latest tokens and to entries that stand for several
// tokens each: DeepseekV4Attention.
func (c *Config) Windowed() bool { return c.Windows.OGroups > 0 }

// Window returns how many of the latest tokens a query of layer l sees, its own included; 0 if it sees all.
func (c *Config) Window(l int) int {
	if c.Windowed() || c.layerType(l) == slidingAttention {
		return c.Windows.SlidingWindow
	}
	return 0
}

// HasWindows reports whether some layer of the decoder has a window.
func (c *Config) HasWindows() bool {
	for l := range c.NumHiddenLayers {
		if c.Window(l) > 0 {
			return true
		}
	}
	return false
}

// Rotates reports whether RoPE rotates queries and keys of layer l.
func (c *Config) Rotates(l int) bool { return !c.Rules().RoPE.RotatesWindows || c.Window(l) > 0 }

// CompressRate returns how many tokens an entry of layer l stands for; 0 if the layer has no entries.
func (c *Config) CompressRate(l int) int {
	switch c.layerType(l) {
	case compressedSparse:
		return c.Windows.CompressRateCSA
	case heavyCompression:
		return c.Windows.CompressRateHCA
	}
	return 0
}

// Overlaps reports whether layer l has compressed sparse attention: an entry is made of the tokens of the one before,
// too, and an indexer chooses the entries of each query.
func (c *Config) Overlaps(l int) bool { return c.layerType(l) == compressedSparse }

// EntryTokens returns how many tokens of a sequence exercise all weights of layer l's compressor: those of its first
// entry, or of two entries where they overlap. 0 if it has none.
func (c *Config) EntryTokens(l int) int {
	if c.Overlaps(l) {
		return 2 * c.CompressRate(l)
	}
	return c.CompressRate(l)
}

// layerType is sliding_attention for prediction layers.
func (c *Config) layerType(l int) string {
	if l >= 0 && l < min(len(c.Layers.LayerTypes), c.NumHiddenLayers) {
		return c.Layers.LayerTypes[l]
	}
	return slidingAttention
}

// Hashes reports whether layer l chooses experts by tid2eid, a table with a row of experts for each token of the
// vocabulary.
func (c *Config) Hashes(l int) bool {
	return l < c.NumHiddenLayers && c.mlpType(l) == hashMoE
}

// HasIndexer reports whether an indexer chooses the keys that each query attends to.
func (c *Config) HasIndexer() bool { return c.Indexer.IndexTopK > 0 }

// IndexerOf returns the layer whose indexer chooses for layer l: l itself, or the nearest before it
// with an indexer of its own. Prediction layers have their own. With windowed attention it is -1 for
// layers whose entries nothing chooses.
func (c *Config) IndexerOf(l int) int {
	if c.Windowed() && !c.Overlaps(l) {
		return -1
	}
	for l > 0 && l < c.NumHiddenLayers && l < len(c.Indexer.IndexerTypes) && c.Indexer.IndexerTypes[l] == sharedIndexer {
		l--
	}
	return l
}

// sharedIndexer stands in IndexerTypes for a layer that takes the choice of the indexer before it.
const sharedIndexer = "shared"

// Within returns the key of the object of config.json that holds the language model's
// configuration; "" if the document itself does.
func (c *Config) Within() string {
	return c.wrapper.key
}

// Prefix returns what a checkpoint puts before the names of the language model's tensors, such
// as "language_model."; usually "".
func (c *Config) Prefix() string {
	return c.wrapper.prefix
}
