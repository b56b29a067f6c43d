package model

import (
	"math"
	"slices"

	"dsmoe/config"
	"dsmoe/model/table"
)

// Indexer chooses the keys that each query attends to, mirroring DeepseekV32Indexer: its queries
// have index_n_heads heads, its keys one.
type Indexer struct {
	WQB         Linear    // [index_n_heads·index_head_dim, q_lora_rank]
	WK          Linear    // [index_head_dim, hidden_size]
	KNorm       LayerNorm // [index_head_dim]
	WeightsProj Linear    // [index_n_heads, hidden_size], the weights of the heads
}

// LayerNorm is weight · (x - mean(x)) / sqrt(var(x) + 1e-6) + bias.
type LayerNorm struct{ Weight, Bias Weight } // [width] each

// at returns the weight with a role.
func (x *Indexer) at(r table.Role) *Weight {
	return map[table.Role]*Weight{table.WQB: &x.WQB.Weight, table.WK: &x.WK.Weight, table.KNorm: &x.KNorm.Weight,
		table.KNormBias: &x.KNorm.Bias, table.WeightsProj: &x.WeightsProj.Weight}[r]
}

// indexerOf returns the indexer that a layer has; nil if it has none of its own.
func indexerOf(c *config.Config, l int) *Indexer {
	if !c.HasIndexer() || c.IndexerOf(l) != l {
		return nil
	}
	return &Indexer{}
}

// indexed returns the mask of layer l's attention: of the keys that the causal mask shows, each query sees
// those that the indexer chose. low is what q_a_layernorm gives, x the layer's normed input. A
// layer without an indexer of its own takes the choice of the last one before it. Without indexers
// the mask is the causal one.
func (p *pass[V]) indexed(l int, name string, x, low V) *Mask {
	switch ix, of := p.m.Layer(l).Indexer, p.config.IndexerOf(l); {
	case !p.config.HasIndexer():
		return p.mask
	case ix != nil:
		p.keys = &keyChoice{of, p.chooseKeys(name+".indexer", ix, x, low)}
	case p.keys == nil || p.keys.layer != of:
		idx, err := p.keysOf(of)
		p.stopIf(err)
		p.keys = &keyChoice{of, idx}
	}
	return p.mask.of(p.keys.idx, p.topKeys())
}

// keyChoice is the choice of the indexer of a layer, [batch, seq, topKeys].
type keyChoice struct {
	layer int
	idx   []int
}

// topKeys is how many keys an indexer chooses for each query: index_topk, or all.
func (p *pass[V]) topKeys() int { return min(p.config.IndexTopK, p.in.Seq) }

// chooseKeys returns the keys that each query attends to, [batch, seq, topKeys], mirroring
// DeepseekV32Indexer.forward:
//
//	q      = wq_b(low), k = k_norm(wk(x)); the first qk_rope_head_dim channels of both rotated
//	s      = relu(q·kᵀ / sqrt(index_head_dim)) of each head, in float32
//	w      = weights_proj(x) / sqrt(index_n_heads), in float32
//	scores = Σ_heads w·s + mask
//	keys   = the index_topk largest scores
//
// Among equal scores the lowest key wins; the reference leaves ties open, and relu makes them: the
// score of a key is exactly 0 if no head has one above 0. Keys that the mask hides are -1 and stand
// last; the others ascend.
func (p *pass[V]) chooseKeys(name string, ix *Indexer, x, low V) []int {
	c, seq := p.config, p.in.Seq
	q := p.linear(name+".wq_b", &ix.WQB, low)
	k := p.linear(name+".wk", &ix.WK, x)
	k = p.stage(name+".k_norm.output", p.LayerNorm(k, &ix.KNorm, float64(float32(config.LatentEps))))
	weights := p.linear(name+".weights_proj", &ix.WeightsProj, x)
	q = p.rotatedFirst(name+".q", q, c.IndexNHeads, []int{p.in.Batch, seq, c.IndexNHeads, c.IndexHeadDim})
	k = p.rotatedFirst(name+".k", k, 1, []int{p.in.Batch, seq, c.IndexHeadDim})
	scores := p.stage(name+".scores", p.indexScores(q, k, weights, seq, p.mask))
	choice := &Choice[V]{Scores: p.Reshape(scores, p.in.Batch*seq, seq)}
	return p.chosenKeys(name, choice, p.topKeys(), p.mask)
}

// indexScores returns the scores of an indexer, [batch, seq, keys], plus the mask, of its queries [batch, heads,
// seq, index_head_dim] and keys, of which each query has as many.
func (p *pass[V]) indexScores(q, k, weights V, keys int, mask *Mask) V {
	c, seq := p.config, p.in.Seq
	weights = p.Scale(p.Float32(weights), float32(1/math.Sqrt(float64(c.IndexNHeads))))
	scoring := &Scoring{By: float32(1 / math.Sqrt(float64(c.IndexHeadDim)))}
	q, k = p.Float32(q), p.Float32(k)
	var blocks []V
	for first := 0; first < seq; first += queryBlock {
		n := min(queryBlock, seq-first)
		blocks = append(blocks, p.Scope(p.Scores(q, k, first, n, scoring), func(s V) V {
			return p.IndexScores(weights, p.ReLU(s), first, mask)
		}))
	}
	return p.Move(mergeHeads(p.in, 1, keys, queryBlock), blocks...)
}

// chosenKeys completes the choice of an indexer, k keys for each query, and shows it to the trace.
func (p *pass[V]) chosenKeys(name string, choice *Choice[V], k int, mask *Mask) []int {
	choice.Idx = p.TopK(choice.Scores, k)
	mask.hide(choice.Idx, k)
	if p.trace != nil {
		p.stopIf(p.trace.TopK(name+".topk_idx", choice))
	}
	return choice.Idx
}

// rotatedFirst rotates the first qk_rope_head_dim channels of the indexer's heads by their
// positions, and shows them to the trace in shape: it returns [batch, heads, seq,
// index_head_dim]. Where the reference rotates interleaved pairs it moves them to halves.
func (p *pass[V]) rotatedFirst(name string, x V, heads int, shape []int) V {
	width, rotated := p.config.IndexHeadDim, p.config.QKRopeHeadDim
	halves := *p.main.Rotary
	halves.Interleave = false
	last := p.Move(splitRotated(p.in, heads, width, rotated, p.rules.IndexerInterleaves), x)
	last = p.RoPE(last, p.main.cos, p.main.sin, &halves)
	x = p.stage(name, p.Reshape(p.Move(joinRotated(p.in, heads, width, rotated), last), shape...))
	return p.Move(splitHeads(p.in, heads, width, 0, width), x)
}

// splitRotated cuts rows [batch, seq, heads·width] into heads, [batch, heads, seq, width], with the first
// rotated columns of each head last: the even ones before the odd ones if they are pairs.
func splitRotated(in *Input, heads, width, rotated int, pairs bool) *Move {
	return &Move{[]int{in.Batch, heads, in.Seq, width}, in.Batch * heads, func(i int, f func(Run)) {
		for t := range in.Seq {
			to, from := (i*in.Seq+t)*width, ((i/heads*in.Seq+t)*heads+i%heads)*width
			f(Run{To: to, From: from + rotated, Step: 1, N: width - rotated})
			step, n := 1, rotated
			if pairs {
				step, n = 2, rotated/2
				f(Run{To: to + width - n, From: from + 1, Step: step, N: n})
			}
			f(Run{To: to + width - rotated, From: from, Step: step, N: n})
		}
	}}
}

// joinRotated puts heads [batch, heads, seq, width] side by side, [batch, seq, heads·width], with the
// last rotated columns of each head first.
func joinRotated(in *Input, heads, width, rotated int) *Move {
	return &Move{[]int{in.Batch, in.Seq, heads * width}, in.Batch * heads, func(i int, f func(Run)) {
		for t := range in.Seq {
			to, from := ((i/heads*in.Seq+t)*heads+i%heads)*width, (i*in.Seq+t)*width
			f(Run{To: to, From: from + width - rotated, Step: 1, N: rotated})
			f(Run{To: to + rotated, From: from, Step: 1, N: width - rotated})
		}
	}}
}

// of returns the mask that shows each query, of the keys that m shows, the k of idx [batch, seq, k].
func (m *Mask) of(idx []int, k int) *Mask {
	chosen := make([]bool, m.In.Batch*m.In.Seq*m.choices())
	for i, key := range idx {
		if key >= 0 {
			chosen[i/k*m.choices()+key] = true
		}
	}
	masked := *m
	masked.chosen = chosen
	return &masked
}

// hide sets the keys of idx [batch, seq, k] that the mask hides to -1. The others of a query ascend,
// and stand before them.
func (m *Mask) hide(idx []int, k int) {
	for row := range len(idx) / k {
		keys := idx[row*k : (row+1)*k]
		slices.Sort(keys)
		seen := slices.DeleteFunc(slices.Clone(keys), func(key int) bool {
			return m.Masked(row/m.In.Seq, row%m.In.Seq, key)
		})
		for i := copy(keys, seen); i < k; i++ {
			keys[i] = -1
		}
	}
}
