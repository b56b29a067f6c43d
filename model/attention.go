package model

import "math"

// attention is causal self-attention, mirroring DeepseekAttention.forward:
//
//	q, k, v = q_proj(x), k_proj(x), v_proj(x); q and k rotated by their position
//	context = softmax(q·kᵀ / sqrt(head_dim) + mask)·v
//	y       = o_proj(context)
func (p *pass[V]) attention(name string, a *DeepseekAttention, x V) V {
	q := p.linear(name+".q_proj", &a.QProj, x)
	k := p.linear(name+".k_proj", &a.KProj, x)
	v := p.linear(name+".v_proj", &a.VProj, x)
	context := p.Scope(q, func(q V) V {
		heads, groups, dim := p.config.NumAttentionHeads, p.config.NumKeyValueHeads, p.config.HeadDim()
		q = p.RoPE(p.Heads(q, heads, 0, dim), p.rotary)
		k = p.RoPE(p.Heads(k, groups, 0, dim), p.rotary)
		v = p.Heads(v, groups, 0, dim)
		return p.attend(q, k, v, &Scoring{By: float32(math.Sqrt(float64(dim))), Divides: true, Mask: p.mask})
	})
	context = p.stage(name+".o_proj.input", context)
	return p.stage(name+".output", p.linear(name+".o_proj", &a.OProj, context))
}

// latentAttention is causal latent attention, mirroring DeepseekV2Attention.forward and
// DeepseekV3Attention.forward:
//
//	q               = q_proj(x), or q_b_proj(q_a_layernorm(q_a_proj(x)))
//	latent, k_rope  = kv_a_proj_with_mqa(x)            kv_lora_rank and qk_rope_head_dim wide
//	[k_nope, v]     = kv_b_proj(kv_a_layernorm(latent))    of each head
//	k               = [k_nope, rotated k_rope]; the last qk_rope_head_dim of q rotated
//	context         = softmax(q·kᵀ · softmaxScale + mask)·v
//	y               = o_proj(context)
func (p *pass[V]) latentAttention(name string, a *DeepseekV2Attention, x V) V {
	c := p.config
	q := p.latentQueries(name, a, x)
	latent := p.linear(name+".kv_a_proj_with_mqa", &a.KVAProjWithMQA, x)
	normed := p.norm(name+".kv_a_layernorm", &a.KVALayernorm, p.Columns(latent, 0, c.KVLoraRank))
	kRope := p.Columns(latent, c.KVLoraRank, c.KVLoraRank+c.QKRopeHeadDim)
	kv := p.linear(name+".kv_b_proj", &a.KVBProj, normed)
	context := p.Scope(q, func(q V) V {
		heads, nope := c.NumAttentionHeads, c.QKNopeHeadDim
		q = p.RoPE(p.Heads(q, heads, 0, c.QKHeadDim()), p.rotary)
		kRope = p.RoPE(p.Heads(kRope, 1, 0, c.QKRopeHeadDim), p.rotary)
		k := p.Concat(p.Heads(kv, heads, 0, nope), kRope)
		v := p.Heads(kv, heads, nope, nope+c.VHeadDim)
		return p.attend(q, k, v, &Scoring{By: softmaxScale(c), Mask: p.mask})
	})
	context = p.stage(name+".o_proj.input", context)
	return p.stage(name+".output", p.linear(name+".o_proj", &a.OProj, context))
}

func (p *pass[V]) latentQueries(name string, a *DeepseekV2Attention, x V) V {
	if p.config.QLoraRank == 0 {
		return p.linear(name+".q_proj", &a.QProj, x)
	}
	low := p.linear(name+".q_a_proj", &a.QAProj, x)
	return p.linear(name+".q_b_proj", &a.QBProj, p.norm(name+".q_a_layernorm", &a.QALayernorm, low))
}

// queryBlock is how many queries' scores are held at a time: memory grows with the
// length of a sequence, not with its square.
const queryBlock = 64

// attend returns softmax(scores(q, k))·v of all heads, mirroring
// eager_attention_forward: [batch, seq, heads·v_head_dim].
func (p *pass[V]) attend(q, k, v V, s *Scoring) V {
	vT := p.Transpose(v)
	var blocks []V
	for first := 0; first < p.in.Seq; first += queryBlock {
		scores := p.Scores(q, k, first, min(queryBlock, p.in.Seq-first), s)
		blocks = append(blocks, p.Scope(scores, func(scores V) V { return p.Context(p.Softmax(scores), vT) }))
	}
	return p.Merge(blocks)
}
