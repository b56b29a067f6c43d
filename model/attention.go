package model

import (
	"math"

	"dsmoe/config"
	"dsmoe/model/table"
)

// attention is causal self-attention, mirroring DeepseekAttention.forward:
//
//	q, k, v = q_proj(x), k_proj(x), v_proj(x); q and k normed with use_qk_norm, then rotated by their position
//	context = softmax(q·kᵀ / sqrt(head_dim) + mask)·v
//	y       = o_proj(context)
//
// A layer may have a window, or no RoPE. With multi-head latent attention the context is that of latentContext.
func (p *pass[V]) attention(l int, name string, d *DeepseekDecoderLayer, x V) V {
	beforeOutput := Section{l, name + ".o_proj.input",
		[]int{p.in.Batch, p.in.Seq, p.config.Attention.NumAttentionHeads * p.config.ValueHeadDim()},
		name + ".", []string{"o_proj.weight", "o_proj.bias", "o_proj.output", "output"}}
	context := p.section(beforeOutput, func() V {
		if d.MLA != nil {
			return p.latentContext(l, name, d.MLA, x)
		}
		return p.context(l, name, d.SelfAttn, x)
	})
	return p.stage(name+".output", p.linear(name+".o_proj", d.Projection(table.OProj), context))
}

// context is what attention gives before o_proj.
func (p *pass[V]) context(l int, name string, a *DeepseekAttention, x V) V {
	q, k, v := p.projected(name, a, x)
	context := p.Scope(q, func(q V) V {
		c := p.config
		groups, width := c.Attention.NumKeyValueHeads, c.ValueHeadDim()
		q = p.positioned(l, p.headsOf(name+".q_norm", &a.QNorm, q, c.Attention.NumAttentionHeads))
		k = p.positioned(l, p.headsOf(name+".k_norm", &a.KNorm, k, groups))
		vT := p.Move(splitHeadsT(p.in, groups, width, 0, width), v)
		mask := *p.mask
		mask.Window = c.Window(l)
		scoring := &Scoring{By: float32(math.Sqrt(float64(c.QKHeadDim()))), Divides: true, Mask: &mask}
		if p.rules.Attention.ScalesScores {
			scoring.By, scoring.Divides = SoftmaxScale(c), false
		}
		return p.attend(name, c.Attention.NumAttentionHeads, q, k, vT, scoring)
	})
	return p.stage(name+".o_proj.input", context)
}

// projected returns the queries, keys and values of x, which have a matrix each or rows of one matrix.
func (p *pass[V]) projected(name string, a *DeepseekAttention, x V) (q, k, v V) {
	heads, groups := p.config.Attention.NumAttentionHeads, p.config.Attention.NumKeyValueHeads
	q0, k0 := heads*p.config.QKHeadDim(), (heads+groups)*p.config.QKHeadDim()
	ends := [4]int{0, q0, k0, k0 + groups*p.config.ValueHeadDim()}
	part := func(i int, proj string, whole *Linear) V { return p.linear(name+proj, whole, x) }
	switch p.rules.Attention.QKV {
	case config.QKVInFiles:
		part = func(i int, proj string, _ *Linear) V {
			l := Linear{Weight: a.QKVProj.Weight.Rows(ends[i], ends[i+1])}
			if a.QKVProj.Bias.Name != "" {
				l.Bias = a.QKVProj.Bias.Rows(ends[i], ends[i+1])
			}
			return p.linear(name+proj, &l, x)
		}
	case config.QKVJoined:
		joined := p.linear(name+".qkv_proj", &a.QKVProj, x)
		part = func(i int, _ string, _ *Linear) V {
			return p.Move(TakeColumns(p.in, ends[3], ends[i], ends[i+1]), joined)
		}
	}
	return part(0, ".q_proj", &a.QProj), part(1, ".k_proj", &a.KProj), part(2, ".v_proj", &a.VProj)
}

// headsOf cuts queries or keys [batch, seq, heads·head_dim] into heads, [batch, heads, seq, head_dim], and norms them
// with use_qk_norm: each head, or all heads of a token together before they are cut.
func (p *pass[V]) headsOf(name string, norm *DeepseekRMSNorm, x V, heads int) V {
	width := p.config.QKHeadDim()
	if !p.config.Attention.UseQKNorm {
		return p.heads(x, heads, width)
	}
	switch p.rules.Attention.QKNorm {
	case config.PerHeadTransposed:
		return p.norm(name, norm, p.heads(x, heads, width))
	case config.PerHead:
		x = p.Reshape(x, p.in.Batch, p.in.Seq, heads, width)
	}
	return p.heads(p.norm(name, norm, x), heads, width)
}

// positioned rotates heads of layer l by their positions, if the layer has RoPE.
func (p *pass[V]) positioned(l int, heads V) V {
	if !p.config.Rotates(l) {
		return heads
	}
	return p.rotated(heads)
}

// latentContext is what causal latent attention gives before o_proj, mirroring DeepseekV2Attention.forward and
// DeepseekV3Attention.forward:
//
//	q                = q_proj(x), or q_b_proj(q_a_layernorm(q_a_proj(x)))
//	[latent, k_rope] = kv_a_proj_with_mqa(x)           kv_lora_rank and qk_rope_head_dim wide
//	[k_nope, v]      = kv_b_proj(kv_a_layernorm(latent))    of each head
//	k                = [k_nope, rotated k_rope]; the last qk_rope_head_dim of q rotated
//	context          = softmax(q·kᵀ · SoftmaxScale + mask)·v    mask: see indexed
func (p *pass[V]) latentContext(l int, name string, a *DeepseekV2Attention, x V) V {
	c := p.config
	var q V
	low := x // what the queries are made of: a low rank, if the config has one
	if c.Attention.QLoraRank == 0 {
		q = p.linear(name+".q_proj", &a.QProj, x)
	} else {
		low = p.norm(name+".q_a_layernorm", &a.QALayernorm, p.linear(name+".q_a_proj", &a.QAProj, x))
		q = p.linear(name+".q_b_proj", &a.QBProj, low)
	}
	latentRope := p.linear(name+".kv_a_proj_with_mqa", &a.KVAProjWithMQA, x)
	rank, width, nope := c.Attention.KVLoraRank, c.Attention.KVLoraRank+c.Attention.QKRopeHeadDim,
		c.Attention.QKNopeHeadDim
	normed := p.norm(name+".kv_a_layernorm", &a.KVALayernorm, p.Move(TakeColumns(p.in, width, 0, rank), latentRope))
	kv := p.linear(name+".kv_b_proj", &a.KVBProj, normed)
	mask := p.indexed(l, name, x, low)
	context := p.Scope(q, func(q V) V {
		kRope := p.rotated(p.Move(splitHeads(p.in, 1, width, rank, width), latentRope))
		heads, n := c.Attention.NumAttentionHeads, headBlock
		if heads%n != 0 || p.o.AttnWeights || p.o.Training || p.o.HeadsTogether {
			return p.attendLatent(name, heads, q, kv, kRope, mask)
		}
		var blocks []V
		for first := 0; first < heads; first += n {
			take := func(width int, x V) V { return p.Move(TakeColumns(p.in, heads*width, first*width, (first+n)*width), x) }
			blocks = append(blocks, p.Scope(take(c.QKHeadDim(), q), func(q V) V {
				return p.attendLatent(name, n, q, take(nope+c.Attention.VHeadDim, kv), kRope, mask)
			}))
		}
		return p.Move(joinBlocks(p.in, len(blocks), n*c.Attention.VHeadDim), blocks...)
	})
	return p.stage(name+".o_proj.input", context)
}

// headBlock is the number of heads of latent attention whose queries, keys and values are in memory at a time. Fewer
// heads would leave processors idle.
const headBlock = 32

// attendLatent is attend for heads with queries q [batch, seq, heads·qk_head_dim], with keys without RoPE and values in
// kv [batch, seq, heads·(qk_nope_head_dim + v_head_dim)], and with keys of RoPE in kRope [batch, 1, seq, qk_rope_head_dim].
func (p *pass[V]) attendLatent(name string, heads int, q, kv, kRope V, mask *Mask) V {
	c, nope := p.config, p.config.Attention.QKNopeHeadDim
	q = p.rotated(p.Move(splitHeads(p.in, heads, c.QKHeadDim(), 0, c.QKHeadDim()), q))
	kNope := p.Move(splitHeads(p.in, heads, nope+c.Attention.VHeadDim, 0, nope), kv)
	k := p.Move(joinHeads(p.in, heads, nope, c.Attention.QKRopeHeadDim), kNope, kRope)
	vT := p.Move(splitHeadsT(p.in, heads, nope+c.Attention.VHeadDim, nope, nope+c.Attention.VHeadDim), kv)
	return p.attend(name, heads, q, k, vT, &Scoring{By: SoftmaxScale(c), Mask: mask})
}

// rotated rotates heads by their positions.
func (p *pass[V]) rotated(heads V) V { return p.RoPE(heads, p.main.cos, p.main.sin, p.main.Rotary) }

// queryBlock is the number of queries whose scores are in memory at a time: memory grows with
// the length of a sequence, not with its square, unless Options.AttnWeights is set. A pass whose context is done ends
// before the next block.
const queryBlock = 64

// attend returns softmax(scores(q, k))·v of so many heads, mirroring
// eager_attention_forward: [batch, seq, heads·v_head_dim]. vT is v transposed, [batch,
// groups, v_head_dim, seq].
func (p *pass[V]) attend(name string, heads int, q, k, vT V, s *Scoring) V {
	n := queryBlock
	if p.o.AttnWeights {
		n = p.in.Seq
	}
	var blocks []V
	for first := 0; first < p.in.Seq; first += n {
		p.stopIf(p.ctx.Err())
		scores := p.Scores(q, k, first, min(n, p.in.Seq-first), s)
		blocks = append(blocks, p.Scope(scores, func(scores V) V {
			return p.Context(p.shownWeights(name, p.Softmax(scores)), vT)
		}))
	}
	return p.Move(mergeHeads(p.in, heads, p.config.ValueHeadDim(), n), blocks...)
}

// shownWeights shows the probabilities of attention [batch, heads, queries, keys] to the trace, if Options want it.
func (p *pass[V]) shownWeights(name string, probs V) V {
	if p.o.AttnWeights {
		return p.stage(name+".attn_weights", probs)
	}
	return probs
}

// tables makes RoPE's tables, as stages.
func (p *pass[V]) tables() {
	if p.config.BlockOnly() {
		return
	}
	if p.config.Windowed() {
		p.makeTables(&p.main, "main.")
		p.makeTables(&p.coarse, "compress.")
	} else {
		p.makeTables(&p.main, "")
	}
}

// makeTables makes the tables of r.
func (p *pass[V]) makeTables(r *rope[V], name string) {
	name = "model.rotary_emb." + name
	cos, sin := p.Tables(r.Rotary)
	r.cos, r.sin = p.table(name+"cos", r.Rotary, cos), p.table(name+"sin", r.Rotary, sin)
}

// table shows one of RoPE's tables [seq, half] as the reference's module returns it: twice, side
// by side, or once where the reference rotates in float32, see config.Rules.JoinsTables.
func (p *pass[V]) table(name string, r *Rotary, table V) V {
	if r.Whole && !p.rules.RoPE.JoinsTables {
		return p.stage(name, table)
	}
	once, half := &Input{Batch: 1, Seq: p.in.Seq}, r.Half
	twice := p.stage(name, p.Move(joinColumns(once, half, half), table, table))
	return p.Move(TakeColumns(once, 2*half, 0, half), twice)
}
