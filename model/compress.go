package model

import "math"

// windowedAttention mirrors DeepseekV4Attention.forward:
//
//	low     = q_a_norm(q_a_proj(x));  q = q_b_proj(low), a UnitNorm of each head;  kv = kv_norm(kv_proj(x))
//	keys    = values = [kv, entries], where the last qk_rope_head_dim channels of q, kv and entries are rotated
//	context = SinkSoftmax(q·keysᵀ / sqrt(head_dim) + mask)·values, rotated back by the query's position
//	y       = o_b_proj(o_a_proj(context) of each group of heads)
func (p *pass[V]) windowedAttention(l int, name string, a *DeepseekV4Attention, x V) V {
	c, in, r := p.config, p.in, p.main
	if a.Compressor != nil {
		r = p.coarse
	}
	heads, width := c.Attention.NumAttentionHeads, c.Attention.VHeadDim
	shape := []int{in.Batch, in.Seq, heads, width}
	context := p.section(Section{l, name + ".context", shape, name + ".", []string{"o_a_proj.", "o_b_proj.", "output"}},
		func() V { return p.windowedContext(l, name, a, r, x) })
	r.sin = p.Scale(r.sin, -1)
	groups, rank := c.Windows.OGroups, c.Windows.OLoraRank
	group := heads * width / groups // width of a group's context
	context = p.Reshape(p.turned(context, r, heads, width), in.Batch, in.Seq, groups, group)
	context = p.stage(name+".o_a_proj.input", context)
	var outs []V // each group by its rows of o_a_proj, mirroring DeepseekV4GroupedLinear
	for g := range groups {
		columns := p.Move(TakeColumns(in, groups*group, g*group, (g+1)*group), context)
		rows := &Linear{Weight: a.OAProj.Weight.Rows(g*rank, (g+1)*rank)}
		outs = append(outs, p.Scope(columns, func(x V) V { return p.Linear(x, rows) }))
	}
	y := p.stage(name+".o_a_proj.output", p.Move(joinGroups(in, groups, rank), outs...))
	return p.stage(name+".output", p.Linear(p.Reshape(y, in.Batch, in.Seq, groups*rank), &a.OBProj))
}

// windowedContext is what attention gives before its results are rotated back.
func (p *pass[V]) windowedContext(l int, name string, a *DeepseekV4Attention, r rope[V], x V) V {
	c, in := p.config, p.in
	heads, width := c.Attention.NumAttentionHeads, c.Attention.VHeadDim
	low := p.norm(name+".q_a_norm", &a.QANorm, p.linear(name+".q_a_proj", &a.QAProj, x))
	q := p.Scope(p.linear(name+".q_b_proj", &a.QBProj, low), func(q V) V {
		return p.UnitNorm(p.Reshape(q, in.Batch, in.Seq, heads, width), float64(float32(c.RMSNormEps)))
	})
	q = p.stage(name+".query", p.Reshape(p.turned(q, r, heads, width), in.Batch, in.Seq, heads, width))
	kv := p.norm(name+".kv_norm", &a.KVNorm, p.linear(name+".kv_proj", &a.KVProj, x))
	kv = p.stage(name+".kv", p.turned(kv, r, 1, width))
	entries, mask := p.entries(l, name+".compressor", a, x, low)
	keys := append([]V{kv}, entries...)
	context := p.Scope(q, func(q V) V { return p.attendWindow(name, p.heads(q, heads, width), keys, &a.Sinks, mask) })
	return p.stage(name+".context", p.Reshape(context, in.Batch, in.Seq, heads, width))
}

// heads cuts rows [batch, seq, heads·width], of any shape, into heads: [batch, heads, seq, width].
func (p *pass[V]) heads(x V, heads, width int) V {
	return p.Move(splitHeads(p.in, heads, width, 0, width), x)
}

// turned rotates the heads of x [batch, seq, heads·width], of any shape, by their positions: [batch, seq,
// heads·width]. x is not used afterwards.
func (p *pass[V]) turned(x V, r rope[V], heads, width int) V {
	x = p.Scope(x, func(x V) V { return p.heads(x, heads, width) })
	x = p.Scope(x, func(x V) V { return p.RoPE(x, r.cos, r.sin, r.Rotary) })
	return p.Scope(x, func(x V) V { return p.Move(mergeHeads(p.in, heads, width, p.in.Seq), x) })
}

// attendWindow returns SinkSoftmax(scores)·values, [batch, seq, heads·width], of queries [batch, heads, seq, width].
// keys are those of tokens, [batch, 1, seq, width], and of entries, if there are any. A block of queries
// takes only the tokens that their windows reach.
func (p *pass[V]) attendWindow(name string, q V, keys []V, sinks *Weight, mask *Mask) V {
	n, seq, width := queryBlock, p.in.Seq, p.config.Attention.VHeadDim
	if p.o.AttnWeights {
		n = seq
	}
	entries := 0
	if len(keys) > 1 {
		entries = mask.choices()
	}
	var blocks []V
	for first := 0; first < seq; first += n {
		p.stopIf(p.ctx.Err())
		last, from := min(first+n, seq), max(first+1-mask.Window, 0)
		block := *mask
		block.first, block.tokens = from, last-from
		scoring := &Scoring{By: float32(1 / math.Sqrt(float64(width))), Mask: &block}
		k := p.Move(joinKeys(p.in, from, last, entries, width), keys...)
		blocks = append(blocks, p.Scope(k, func(k V) V {
			vT := p.Move(splitHeadsT(&Input{Batch: p.in.Batch, Seq: last - from + entries}, 1, width, 0, width), k)
			return p.Scope(p.Scores(q, k, first, last-first, scoring), func(scores V) V {
				return p.Context(p.shownWeights(name, p.SinkSoftmax(scores, sinks)), vT)
			})
		}))
	}
	return p.Move(mergeHeads(p.in, p.config.Attention.NumAttentionHeads, width, n), blocks...)
}

// entries returns the entries of layer l, [batch, 1, entries, head_dim], and the mask of its attention. Without
// entries the list is empty.
func (p *pass[V]) entries(l int, name string, a *DeepseekV4Attention, x, low V) ([]V, *Mask) {
	if a.Compressor == nil {
		return nil, p.mask
	}
	mask := *p.mask
	mask.rate = p.config.CompressRate(l)
	g := &Pooling{Rate: mask.rate, Width: p.config.Attention.VHeadDim, Overlap: p.config.Overlaps(l)}
	entries := p.compress(name, a.Compressor, g, x)
	if a.Indexer == nil {
		return entries, &mask
	}
	return entries, p.chooseEntries(name+".indexer", a.Indexer, &mask, x, low)
}

// compress returns the entries that m makes of x, [batch, 1, entries, width]; none if no window is full. An
// entry has the position of its window's first token.
func (p *pass[V]) compress(name string, m *Compressor, g *Pooling, x V) []V {
	kv, gate := p.linear(name+".kv_proj", &m.KVProj, x), p.linear(name+".gate_proj", &m.GateProj, x)
	batch, n := p.in.Batch, g.Entries(p.in.Seq)
	if n == 0 {
		return nil
	}
	positions := make([]int, n)
	for i := range positions {
		positions[i] = i * g.Rate
	}
	pooled := p.norm(name+".kv_norm", &m.KVNorm, p.Pool(kv, gate, &m.PositionBias, g))
	r := p.at(p.coarse, positions)
	entries := p.RoPE(p.Reshape(pooled, batch, 1, n, g.Width), r.cos, r.sin, r.Rotary)
	entries = p.stage(name+".entries", p.Reshape(entries, batch, n, g.Width))
	return []V{p.Reshape(entries, batch, 1, n, g.Width)}
}

// chooseEntries returns a mask that shows each query, of the entries that mask shows, the index_topk with the largest
// scores, mirroring DeepseekV4Indexer.forward: as chooseKeys, with keys that are entries, and with all
// rotations as in attention. The stage "scores" comes before the mask.
func (p *pass[V]) chooseEntries(name string, ix *EntryIndexer, mask *Mask, x, low V) *Mask {
	c, in := p.config, p.in
	entries := p.compress(name, &ix.Compressor, &Pooling{mask.rate, c.Indexer.IndexHeadDim, true}, x)
	q := p.linear(name+".q_b_proj", &ix.QBProj, low)
	q = p.turned(q, p.coarse, c.Indexer.IndexNHeads, c.Indexer.IndexHeadDim)
	q = p.stage(name+".q", p.Reshape(q, in.Batch, in.Seq, c.Indexer.IndexNHeads, c.Indexer.IndexHeadDim))
	weights := p.linear(name+".scorer.weights_proj", &ix.WeightsProj, x)
	if entries == nil {
		return mask
	}
	n := mask.choices()
	scores := p.stage(name+".scores", p.indexScores(p.heads(q, c.Indexer.IndexNHeads, c.Indexer.IndexHeadDim),
		entries[0], weights, n, nil))
	k := min(c.Indexer.IndexTopK, n)
	return mask.of(p.chosenKeys(name, scores, n, k, mask), k)
}
