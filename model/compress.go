package model

import (
	"math"

	"dsmoe/config"
	"dsmoe/model/table"
)

// DeepseekV4Attention is attention to a window of the latest tokens and, in layers with a compressor, to entries
// that stand for several tokens each. All heads share one head of keys, which are the values too.
type DeepseekV4Attention struct {
	QAProj     Linear          // [q_lora_rank, hidden_size]
	QANorm     DeepseekRMSNorm // [q_lora_rank]
	QBProj     Linear          // [heads·head_dim, q_lora_rank]
	KVProj     Linear          // [head_dim, hidden_size]
	KVNorm     DeepseekRMSNorm // [head_dim]
	OAProj     Linear          // [o_groups·o_lora_rank, heads·head_dim/o_groups]
	OBProj     Linear          // [hidden_size, o_groups·o_lora_rank]
	Sinks      Weight          // [heads], a score that takes probability from the keys
	Compressor *Compressor     // nil in layers without entries
	Indexer    *EntryIndexer   // compressor.indexer, which chooses entries; nil: each query attends to all
}

// Compressor makes entries of tokens, mirroring DeepseekV4HCACompressor and DeepseekV4CSACompressor; c is the
// number of series of a token.
type Compressor struct {
	KVProj, GateProj Linear          // [c·width, hidden_size]
	PositionBias     Weight          // [rate, c·width], added to the gate
	KVNorm           DeepseekRMSNorm // [width]
}

// EntryIndexer chooses the entries that each query attends to, mirroring DeepseekV4Indexer. It scores
// entries of its own, with a width of index_head_dim.
type EntryIndexer struct {
	Compressor
	QBProj      Linear // [index_n_heads·index_head_dim, q_lora_rank]
	WeightsProj Linear // scorer.weights_proj [index_n_heads, hidden_size], the weights of the heads
}

// windowedOf returns the attention of a layer.
func windowedOf(c *config.Config, l int) *DeepseekV4Attention {
	a := &DeepseekV4Attention{}
	if c.CompressRate(l) > 0 {
		a.Compressor = &Compressor{}
	}
	if c.Overlaps(l) {
		a.Indexer = &EntryIndexer{}
	}
	return a
}

// at returns the weight with a role.
func (m *Compressor) at(r table.Role) *Weight {
	return map[table.Role]*Weight{table.KVProj: &m.KVProj.Weight, table.GateProj: &m.GateProj.Weight,
		table.PositionBias: &m.PositionBias, table.KVNorm: &m.KVNorm.Weight}[r]
}

// at returns the weight with a role.
func (x *EntryIndexer) at(r table.Role) *Weight {
	switch r {
	case table.QBProj:
		return &x.QBProj.Weight
	case table.WeightsProj:
		return &x.WeightsProj.Weight
	}
	return x.Compressor.at(r)
}

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
	heads, width := c.NumAttentionHeads, c.VHeadDim
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
	context = p.stage(name+".context", p.Reshape(context, in.Batch, in.Seq, heads, width))
	r.sin = p.Scale(r.sin, -1)
	context = p.Reshape(p.turned(context, r, heads, width), in.Batch, in.Seq, c.OGroups, heads*width/c.OGroups)
	return p.stage(name+".output", p.groupedOutput(name, a, p.stage(name+".o_a_proj.input", context)))
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

// groupedOutput projects each group of heads [batch, seq, groups, width] by its rows of o_a_proj, mirroring
// DeepseekV4GroupedLinear, and all results by o_b_proj.
func (p *pass[V]) groupedOutput(name string, a *DeepseekV4Attention, x V) V {
	groups, rank, in := p.config.OGroups, p.config.OLoraRank, p.in
	width := p.config.NumAttentionHeads * p.config.VHeadDim / groups
	var outs []V
	for g := range groups {
		group := p.Move(TakeColumns(in, groups*width, g*width, (g+1)*width), x)
		rows := &Linear{Weight: a.OAProj.Weight.Rows(g*rank, (g+1)*rank)}
		outs = append(outs, p.Scope(group, func(x V) V { return p.Linear(x, rows) }))
	}
	y := p.stage(name+".o_a_proj.output", p.Move(joinGroups(in, groups, rank), outs...))
	return p.linear(name+".o_b_proj", &a.OBProj, p.Reshape(y, in.Batch, in.Seq, groups*rank))
}

// attendWindow returns SinkSoftmax(scores)·values, [batch, seq, heads·width], of queries [batch, heads, seq, width].
// keys are those of tokens, [batch, 1, seq, width], and of entries, if there are any. A block of queries
// takes only the tokens that their windows reach.
func (p *pass[V]) attendWindow(name string, q V, keys []V, sinks *Weight, mask *Mask) V {
	n, seq, width := queryBlock, p.in.Seq, p.config.VHeadDim
	if p.o.AttnWeights {
		n = seq
	}
	entries := 0
	if len(keys) > 1 {
		entries = mask.choices()
	}
	var blocks []V
	for first := 0; first < seq; first += n {
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
	return p.Move(mergeHeads(p.in, p.config.NumAttentionHeads, width, n), blocks...)
}

// entries returns the entries of layer l, [batch, 1, entries, head_dim], and the mask of its attention. Without
// entries the list is empty.
func (p *pass[V]) entries(l int, name string, a *DeepseekV4Attention, x, low V) ([]V, *Mask) {
	if a.Compressor == nil {
		return nil, p.mask
	}
	mask := *p.mask
	mask.rate = p.config.CompressRate(l)
	g := &Pooling{Rate: mask.rate, Width: p.config.VHeadDim, Overlap: p.config.Overlaps(l)}
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
	entries := p.compress(name, &ix.Compressor, &Pooling{mask.rate, c.IndexHeadDim, true}, x)
	q := p.linear(name+".q_b_proj", &ix.QBProj, low)
	q = p.turned(q, p.coarse, c.IndexNHeads, c.IndexHeadDim)
	q = p.stage(name+".q", p.Reshape(q, in.Batch, in.Seq, c.IndexNHeads, c.IndexHeadDim))
	weights := p.linear(name+".scorer.weights_proj", &ix.WeightsProj, x)
	if entries == nil {
		return mask
	}
	n := mask.choices()
	scores := p.stage(name+".scores", p.indexScores(p.heads(q, c.IndexNHeads, c.IndexHeadDim), entries[0], weights, n, nil))
	choice := &Choice[V]{Scores: p.Reshape(p.MaskKeys(scores, mask), in.Batch*in.Seq, n)}
	k := min(c.IndexTopK, n)
	return mask.of(p.chosenKeys(name, choice, k, mask), k)
}

// Pooling says how a compressor makes entries of tokens, one of each full window of Rate tokens. The
// tokens behind the last full window have no entry.
//
// With Overlap a token has two series of Width columns: the second is for the entry of its own
// window, the first for the entry of the next window.
type Pooling struct {
	Rate    int  // tokens of a window
	Width   int  // columns of an entry
	Overlap bool // entries see the window before, too
}

// Slot is a place whose value takes part in an entry.
type Slot struct {
	Token  int // position in the sequence
	Column int // first column of the series
	Row    int // row of the position bias: the token's position in its window
}

// Entries returns the number of entries of seq tokens.
func (g *Pooling) Entries(seq int) int { return seq / g.Rate }

// Slots returns the slots of entry n, in the reference's order.
func (g *Pooling) Slots(n int) (slots []Slot) {
	column := 0
	if g.Overlap {
		column = g.Width
		for i := range min(n, 1) * g.Rate {
			slots = append(slots, Slot{Token: (n-1)*g.Rate + i, Row: i})
		}
	}
	for i := range g.Rate {
		slots = append(slots, Slot{Token: n*g.Rate + i, Column: column, Row: i})
	}
	return slots
}

// joinKeys puts the tokens from … to-1 of keys [batch, 1, seq, width] before entries [batch, 1, entries, width]:
// [batch, 1, to-from+entries, width].
func joinKeys(in *Input, from, to, entries, width int) *Move {
	n := to - from + entries
	return &Move{[]int{in.Batch, 1, n, width}, in.Batch, func(b int, f func(Run)) {
		f(Run{To: b * n * width, From: (b*in.Seq + from) * width, Step: 1, N: (to - from) * width})
		if entries > 0 {
			f(Run{Operand: 1, To: (b*n + to - from) * width, From: b * entries * width, Step: 1, N: entries * width})
		}
	}}
}
