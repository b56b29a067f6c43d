// Package count is the arithmetic of a config: the weights and parameters of each module, the
// parameters that a token uses, the cost of its products, and the numbers of the DeepSeekMoE
// paper. Modules and MTP count, Segment and SegmentationOf lead to the paper's layers,
// PaperModelOf to its FLOPs. Everything follows from package table; no weight is read.
package count

import (
	"math/big"
	"slices"

	"dsmoe/config"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
)

// Total holds the totals of a module of the model, over all layers.
type Total struct {
	Module     table.Module // empty for the sum of several
	Tensors    int64        // number of weights
	Parameters int64        // elements of the tensors but for tables of integers
	// Activated counts the parameters that one token uses: all of a module, and
	// num_experts_per_tok / n_routed_experts of the routed experts.
	Activated int64
	// MACs counts the multiplications in the matrix products of one token with the activated
	// weights. An embedding's look-up has no multiplications; the product of a tied head is
	// counted with the embedding, which owns the weight.
	MACs int64
}

// Totals holds the modules of a config, in the order of the table.
type Totals []Total

// Modules adds up the table's rows by module. The sums equal the sums over Family.Slots; the time
// does not depend on the number of experts.
func Modules(c *config.Config) Totals {
	var totals Totals
	rows := table.FamilyOf(c).Rows
	for i := range rows {
		p, l, end := &rows[i], -1, 0
		if p.PerLayer() {
			l, end = 0, c.NumHiddenLayers
		}
		n, used := int64(1), int64(1)
		if p.PerExpert() {
			n, used = int64(c.MoE.NRoutedExperts), int64(c.MoE.NumExpertsPerTok)
		}
		multiplies := len(p.Shape) == 2 && (p.Module != table.Embedding || c.TieWordEmbeddings) &&
			p.Role != table.PositionBias && p.Role != table.EScoreCorrectionBias
		for ; l < end; l++ {
			if !p.Holds(c, l) {
				continue
			}
			at := slices.IndexFunc(totals, func(t Total) bool { return t.Module == p.Module })
			if at < 0 {
				at, totals = len(totals), append(totals, Total{Module: p.Module})
			}
			if t := &totals[at]; p.Integer() {
				t.Tensors++
			} else {
				t.add(p.Sizes(c, l), n, used, multiplies)
			}
		}
	}
	return totals
}

// MTP adds up the num_nextn_predict_layers multi-token prediction layers. The forward pass does
// not use them: none of their parameters is activated.
func MTP(c *config.Config) Total {
	sum := Total{Module: table.MTP}
	for s := range table.FamilyOf(c).MTPSlots(c) {
		sum.add(s.Shape, 1, 0, false)
	}
	return sum
}

// Sum adds up all modules without the excepted ones.
func (ts Totals) Sum(except ...table.Module) Total {
	var sum Total
	for _, t := range ts {
		if !slices.Contains(except, t.Module) {
			sum.Tensors += t.Tensors
			sum.Parameters += t.Parameters
			sum.Activated += t.Activated
			sum.MACs += t.MACs
		}
	}
	return sum
}

// add counts n tensors of the given shape, of which a token uses used; multiply reports whether
// a token is multiplied with them.
func (t *Total) add(shape []int, n, used int64, multiply bool) {
	size := int64(tensor.Info{Shape: shape}.Len())
	t.Tensors += n
	t.Parameters += n * size
	t.Activated += used * size
	if multiply {
		t.MACs += used * size
	}
}

// AttentionMACs returns the multiplications of one token's attention scores and of
// the sum of values over seq positions, in all layers:
//
//	num_hidden_layers · seq · num_attention_heads · (qk_head_dim + v_head_dim)
//
// It is full attention, as the reference computes it: a causal mask does not halve it. With an
// indexer a token attends to min(seq, index_topk) positions, and each indexer has scores of all:
//
//	indexers · seq · index_n_heads · (index_head_dim + 1)
//
// In a layer with a window a token attends to min(seq, sliding_window) positions, and to the entries of the layer,
// seq / rate, if it has some, of which an indexer scores all and chooses index_topk.
func AttentionMACs(c *config.Config, seq int) int64 {
	keys, scored := int64(0), int64(0)
	for l := range c.NumHiddenLayers {
		all := seq
		if rate := c.CompressRate(l); rate > 0 {
			all = seq / rate
		} else if c.Window(l) > 0 {
			all = 0
		}
		if hasIndexer(c, l) {
			scored += int64(all)
		}
		if c.HasIndexer() && (!c.Windowed() || c.Overlaps(l)) {
			all = min(all, c.Indexer.IndexTopK)
		}
		keys += int64(all + min(seq, c.Window(l)))
	}
	return keys*int64(c.Attention.NumAttentionHeads)*int64(c.QKHeadDim()+c.ValueHeadDim()) +
		scored*int64(c.Indexer.IndexNHeads)*int64(c.Indexer.IndexHeadDim+1)
}

func hasIndexer(c *config.Config, l int) bool { return c.HasIndexer() && c.IndexerOf(l) == l }

// Indexers returns how many layers have an indexer of their own.
func Indexers(c *config.Config) (n int64) {
	for l := range c.NumHiddenLayers {
		if hasIndexer(c, l) {
			n++
		}
	}
	return n
}

// Cache is the key-value cache of a sequence, in bytes of torch_dtype.
type Cache struct {
	Window  int64 `json:"window"`  // of the latest tokens, with windowed attention
	Entries int64 `json:"entries"` // of all tokens, or of the entries that stand for them
	Indexer int64 `json:"indexer"` // keys of indexers
}

// Sum returns the bytes of all parts.
func (x Cache) Sum() int64 { return x.Window + x.Entries + x.Indexer }

// CacheOf returns the key-value cache of a sequence. Attention caches for each token and layer
//
//	num_key_value_heads · (qk_head_dim + v_head_dim) values,
//	kv_lora_rank + qk_rope_head_dim with latent attention, from which all heads' keys and values are computed
//
// and an indexer a key of index_head_dim. In a layer with a window it caches the last sliding_window tokens; DeepSeek-V4
// head_dim values for each of them and for each entry, and an indexer's key for each entry.
func CacheOf(c *config.Config, tokens int64) (x Cache) {
	values := cachedValues(c)
	for l := range c.NumHiddenLayers {
		n := tokens
		if window := int64(c.Window(l)); window > 0 {
			x.Window += min(tokens, window) * values
			n = 0
		}
		if rate := c.CompressRate(l); rate > 0 {
			n = tokens / int64(rate)
		}
		x.Entries += n * values
		if hasIndexer(c, l) {
			x.Indexer += n * int64(c.Indexer.IndexHeadDim)
		}
	}
	size := table.TorchDType(c).Bytes
	return Cache{size(x.Window), size(x.Entries), size(x.Indexer)}
}

// cachedValues returns how many values a layer caches for a token, or for an entry.
func cachedValues(c *config.Config) int64 {
	switch {
	case c.Windowed():
		return int64(c.ValueHeadDim())
	case c.LatentAttention():
		return int64(c.Attention.KVLoraRank + c.Attention.QKRopeHeadDim)
	}
	return int64(c.Attention.NumKeyValueHeads) * int64(c.QKHeadDim()+c.ValueHeadDim())
}

// KVBytes returns what one token adds to the key-value cache, in bytes: once windows are full, nothing in their layers but
// the share of an entry, rounded up to whole values.
func KVBytes(c *config.Config) (n int64) {
	if !c.HasWindows() {
		return CacheOf(c, 1).Sum()
	}
	for l := range c.NumHiddenLayers {
		if rate := int64(c.CompressRate(l)); rate > 0 {
			values := cachedValues(c)
			if hasIndexer(c, l) {
				values += int64(c.Indexer.IndexHeadDim)
			}
			n += (values + rate - 1) / rate
		} else if c.Window(l) == 0 {
			n += cachedValues(c)
		}
	}
	return table.TorchDType(c).Bytes(n)
}

// Combinations returns C(n_routed_experts, num_experts_per_tok), the number of sets of experts, those without weights
// among them, that a gate can choose for a token, or nil for a dense model.
func Combinations(c *config.Config) *big.Int {
	if c.MoE.NRoutedExperts == 0 {
		return nil
	}
	return new(big.Int).Binomial(int64(c.Choices()), int64(c.MoE.NumExpertsPerTok))
}
