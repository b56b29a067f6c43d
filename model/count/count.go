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
		if layers := layersOf(c, &rows[i]); layers != nil {
			totals.of(rows[i].Module).addRow(c, &rows[i], layers)
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

// of returns the module's total, and appends a new total if the module has none yet.
func (ts *Totals) of(m table.Module) *Total {
	i := slices.IndexFunc(*ts, func(t Total) bool { return t.Module == m })
	if i < 0 {
		i = len(*ts)
		*ts = append(*ts, Total{Module: m})
	}
	return &(*ts)[i]
}

// addRow adds the weights that layers have of a row.
func (t *Total) addRow(c *config.Config, p *table.Row, layers []int) {
	n, used := int64(1), int64(1)
	if p.PerExpert() {
		n, used = int64(c.NRoutedExperts), int64(c.NumExpertsPerTok)
	}
	multiplies := len(p.Shape) == 2 && (p.Module != table.Embedding || c.TieWordEmbeddings) &&
		p.Role != table.PositionBias
	for _, l := range layers {
		if shape := p.Sizes(c, l); p.Integer() {
			t.Tensors++
		} else {
			t.add(shape, n, used, multiplies)
		}
	}
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

// layersOf lists the layers with a weight of the row; -1 for a row that is not per layer.
func layersOf(c *config.Config, p *table.Row) (layers []int) {
	if !p.PerLayer() && p.Holds(c, -1) {
		return []int{-1}
	}
	for l := range c.NumHiddenLayers {
		if p.PerLayer() && p.Holds(c, l) {
			layers = append(layers, l)
		}
	}
	return layers
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
func AttentionMACs(c *config.Config, seq int) int64 {
	keys := seq
	if c.HasIndexer() {
		keys = min(seq, c.IndexTopK)
	}
	attention := int64(c.NumHiddenLayers) * int64(keys) * int64(c.NumAttentionHeads)
	return attention*int64(c.QKHeadDim()+c.ValueHeadDim()) +
		Indexers(c)*int64(seq)*int64(c.IndexNHeads)*int64(c.IndexHeadDim+1)
}

// Indexers returns how many layers have an indexer of their own.
func Indexers(c *config.Config) (n int64) {
	for l := range c.NumHiddenLayers {
		if c.HasIndexer() && c.IndexerOf(l) == l {
			n++
		}
	}
	return n
}

// KVBytes returns the key-value cache of one token in bytes, in torch_dtype:
//
//	2 · num_hidden_layers · num_key_value_heads · head_dim · bytes of table.TorchDType
//
// Latent attention caches the row from which all heads' keys and values are computed:
//
//	num_hidden_layers · (kv_lora_rank + qk_rope_head_dim) · bytes of table.TorchDType
//
// An indexer caches a key of index_head_dim beside it.
func KVBytes(c *config.Config) int64 {
	values := 2 * int64(c.NumKeyValueHeads) * int64(c.HeadDim())
	if c.LatentAttention() {
		values = int64(c.KVLoraRank + c.QKRopeHeadDim)
	}
	return table.TorchDType(c).Bytes(int64(c.NumHiddenLayers)*values + Indexers(c)*int64(c.IndexHeadDim))
}

// Combinations returns C(n_routed_experts, num_experts_per_tok), the number of sets
// of experts that a gate can choose for a token, or nil for a dense model.
func Combinations(c *config.Config) *big.Int {
	if c.NRoutedExperts == 0 {
		return nil
	}
	return new(big.Int).Binomial(int64(c.NRoutedExperts), int64(c.NumExpertsPerTok))
}
