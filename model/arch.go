package model

import (
	"math/big"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/model/tensor"
)

// Count is what a module of the model amounts to, over all layers. Counts follow
// from the table and the config; no weight is read.
type Count struct {
	Module     Module
	Tensors    int64
	Parameters int64
	// Activated are the parameters that one token uses: all of them, and of the
	// routed experts num_experts_per_tok / n_routed_experts.
	Activated int64
	// MACs are the multiplications in the matrix products of one token with the
	// activated weights. Looking up an embedding is none; a tied head's product is
	// counted with the embedding, whose weight it is.
	MACs int64
}

// Counts are the modules that a config has, in the order of the table.
type Counts []Count

// CountModules adds up the table's rows by module, as the weights that Family.Slots
// yields would. It takes a time that does not depend on the number of experts.
func CountModules(c *config.Config) Counts {
	var counts Counts
	index := map[Module]int{}
	for i := range FamilyOf(c).Params {
		p := &FamilyOf(c).Params[i]
		n := p.repeats(c)
		if n == 0 {
			continue
		}
		if _, ok := index[p.Module]; !ok {
			index[p.Module] = len(counts)
			counts = append(counts, Count{Module: p.Module})
		}
		counts[index[p.Module]].add(p.slot(c, 0, 0).Shape, n, p.activated(c, n), p.multiplies(c))
	}
	return counts
}

// CountMTP adds up the multi-token prediction layers, num_nextn_predict_layers of them.
// They take no part in the forward pass: nothing of them is activated.
func CountMTP(c *config.Config) Count {
	sum := Count{Module: MTP}
	for s := range FamilyOf(c).MTPSlots(c) {
		sum.add(s.Shape, 1, 0, false)
	}
	return sum
}

// add counts n tensors of the given shape, of which a token uses some.
func (x *Count) add(shape []int, n, used int64, multiplies bool) {
	size := int64(tensor.Info{Shape: shape}.Len())
	x.Tensors += n
	x.Parameters += n * size
	x.Activated += used * size
	if multiplies {
		x.MACs += used * size
	}
}

// repeats returns for how many layers and experts the row holds.
func (p *Param) repeats(c *config.Config) int64 {
	n := p.layers(c)
	if p.isExpert() {
		n *= int64(c.NRoutedExperts)
	}
	return n
}

// layers returns for how many layers the row holds; 1 or 0 for a row without "{l}".
func (p *Param) layers(c *config.Config) (n int64) {
	first, end := 0, c.NumHiddenLayers
	if !strings.Contains(p.Name, "{l}") {
		first, end = -1, 0
	}
	for l := first; l < end; l++ {
		if p.holds(c, l) {
			n++
		}
	}
	return n
}

// activated returns how many of the row's n weights a token uses.
func (p *Param) activated(c *config.Config, n int64) int64 {
	if p.isExpert() {
		return n / int64(c.NRoutedExperts) * int64(c.NumExpertsPerTok)
	}
	return n
}

func (p *Param) isExpert() bool { return strings.Contains(p.Name, "{e}") }

// multiplies says whether the row is a matrix that a token is multiplied with.
func (p *Param) multiplies(c *config.Config) bool {
	return len(p.Shape) == 2 && (p.Module != Embedding || c.TieWordEmbeddings)
}

// Sum adds up all modules but those excepted; the sum's Module is empty.
func (cs Counts) Sum(except ...Module) Count {
	var sum Count
	for _, x := range cs {
		if !slices.Contains(except, x.Module) {
			sum.Tensors += x.Tensors
			sum.Parameters += x.Parameters
			sum.Activated += x.Activated
			sum.MACs += x.MACs
		}
	}
	return sum
}

// AttentionMACs returns the multiplications of one token's attention scores and of
// the sum of values over seq positions, in all layers:
//
//	num_hidden_layers · seq · num_attention_heads · (qk_head_dim + v_head_dim)
//
// It is full attention, as the reference computes it: a causal mask does not halve it.
func AttentionMACs(c *config.Config, seq int) int64 {
	return int64(c.NumHiddenLayers) * int64(seq) * int64(c.NumAttentionHeads) * int64(c.QKHeadDim()+c.ValueHeadDim())
}

// KVBytes returns the key-value cache of one token in bytes, in torch_dtype:
//
//	2 · num_hidden_layers · num_key_value_heads · head_dim · bytes of TorchDType
//
// Latent attention caches what all heads' keys and values come from:
//
//	num_hidden_layers · (kv_lora_rank + qk_rope_head_dim) · bytes of TorchDType
func KVBytes(c *config.Config) int64 {
	values := 2 * int64(c.NumKeyValueHeads) * int64(c.HeadDim())
	if c.KVLoraRank > 0 {
		values = int64(c.KVLoraRank + c.QKRopeHeadDim)
	}
	return int64(c.NumHiddenLayers) * values * int64(TorchDType(c).Bits()) / 8
}

// TorchDType returns torch_dtype as a dtype. A config without one means F32, the
// type in which PyTorch creates weights.
func TorchDType(c *config.Config) tensor.DType {
	switch c.TorchDType {
	case "bfloat16":
		return tensor.BF16
	case "float16":
		return tensor.F16
	case "float64":
		return tensor.F64
	}
	return tensor.F32
}

// Combinations returns C(n_routed_experts, num_experts_per_tok), the number of sets
// of experts that a gate can choose for a token, or nil if there are no experts.
func Combinations(c *config.Config) *big.Int {
	if c.NRoutedExperts == 0 {
		return nil
	}
	return new(big.Int).Binomial(int64(c.NRoutedExperts), int64(c.NumExpertsPerTok))
}
