package model

import (
	"math"
	"slices"

	"dsmoe/config"
)

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

// topKeys is how many keys an indexer chooses for each query: index_topk, or all.
func (p *pass[V]) topKeys() int { return min(p.config.Indexer.IndexTopK, p.in.Seq) }

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
	q = p.rotatedFirst(name+".q", q, c.Indexer.IndexNHeads, []int{p.in.Batch, seq, c.Indexer.IndexNHeads,
		c.Indexer.IndexHeadDim})
	k = p.rotatedFirst(name+".k", k, 1, []int{p.in.Batch, seq, c.Indexer.IndexHeadDim})
	scores := p.stage(name+".scores", p.indexScores(q, k, weights, seq, p.mask))
	return p.chosenKeys(name, scores, seq, p.topKeys(), p.mask)
}

// indexScores returns the scores of an indexer, [batch, seq, keys], plus the mask, of its queries [batch, heads,
// seq, index_head_dim] and keys, of which each query has as many.
func (p *pass[V]) indexScores(q, k, weights V, keys int, mask *Mask) V {
	c, seq := p.config, p.in.Seq
	weights = p.Scale(p.Float32(weights), float32(1/math.Sqrt(float64(c.Indexer.IndexNHeads))))
	scoring := &Scoring{By: float32(1 / math.Sqrt(float64(c.Indexer.IndexHeadDim)))}
	q, k = p.Float32(q), p.Float32(k)
	var blocks []V
	for first := 0; first < seq; first += queryBlock {
		p.stopIf(p.ctx.Err())
		n := min(queryBlock, seq-first)
		blocks = append(blocks, p.Scope(p.Scores(q, k, first, n, scoring), func(s V) V {
			return p.IndexScores(weights, p.ReLU(s), first, mask)
		}))
	}
	return p.Move(mergeHeads(p.in, 1, keys, queryBlock), blocks...)
}

// chosenKeys returns the choice of an indexer, of the keys that the mask shows the k with the largest scores
// [batch, seq, keys] for each query, and shows it to the trace. A Trace may have set scores that lack the mask.
func (p *pass[V]) chosenKeys(name string, scores V, keys, k int, mask *Mask) []int {
	choice := &Choice[V]{Scores: p.Reshape(p.MaskKeys(scores, mask), p.in.Batch*p.in.Seq, keys), Mask: mask}
	choice.Idx = p.TopK(choice.Scores, k)
	for row := range len(choice.Idx) / k { // hidden keys become -1; the others of a query ascend, and stand before them
		keys := choice.Idx[row*k : (row+1)*k]
		slices.Sort(keys)
		seen := slices.DeleteFunc(slices.Clone(keys), func(key int) bool {
			return mask.Masked(row/mask.In.Seq, row%mask.In.Seq, key)
		})
		for i := copy(keys, seen); i < k; i++ {
			keys[i] = -1
		}
	}
	if p.trace != nil {
		p.stopIf(p.trace.TopK(name+".topk_idx", choice))
	}
	return choice.Idx
}

// rotatedFirst rotates the first qk_rope_head_dim channels of the indexer's heads by their
// positions, and shows them to the trace in shape: it returns [batch, heads, seq,
// index_head_dim]. Where the reference rotates interleaved pairs it moves them to halves.
func (p *pass[V]) rotatedFirst(name string, x V, heads int, shape []int) V {
	width, rotated := p.config.Indexer.IndexHeadDim, p.config.Attention.QKRopeHeadDim
	halves := *p.main.Rotary
	halves.Interleave = false
	last := p.Move(splitRotated(p.in, heads, width, rotated, p.rules.RoPE.IndexerInterleaves), x)
	last = p.RoPE(last, p.main.cos, p.main.sin, &halves)
	x = p.stage(name, p.Reshape(p.Move(joinRotated(p.in, heads, width, rotated), last), shape...))
	return p.Move(splitHeads(p.in, heads, width, 0, width), x)
}
