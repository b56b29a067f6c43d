package model

import "dsmoe/model/internal/kernel"

// forward is causal latent attention, mirroring DeepseekV2Attention.forward and
// DeepseekV3Attention.forward:
//
//	q               = q_proj(x), or q_b_proj(q_a_layernorm(q_a_proj(x)))
//	latent, k_rope  = kv_a_proj_with_mqa(x)            kv_lora_rank and qk_rope_head_dim wide
//	[k_nope, v]     = kv_b_proj(kv_a_layernorm(latent))    of each head
//	k               = [k_nope, rotated k_rope]; the last qk_rope_head_dim of q rotated
//	context         = softmax(q·kᵀ · softmaxScale + mask)·v
//	y               = o_proj(context)
func (a *DeepseekV2Attention) forward(p *pass, name string, x *Activation) *Activation {
	q := a.queries(p, name, x)
	latent := a.KVAProjWithMQA.stage(p, name+".kv_a_proj_with_mqa", x)
	rank := p.m.Config.KVLoraRank
	normed := a.KVALayernorm.forward(p, name+".kv_a_layernorm", p.columns(latent, 0, rank))
	kv := a.KVBProj.forward(p, normed)
	kv = p.stage(name+".kv_b_proj.output", kv.reshaped(p.in.Batch, 1, p.in.Seq, kv.Width()))
	context := p.stage(name+".o_proj.input", p.attendLatent(q, kv, p.columns(latent, rank, latent.Width())))
	y := a.OProj.stage(p, name+".o_proj", context)
	return p.stage(name+".output", y)
}

func (a *DeepseekV2Attention) queries(p *pass, name string, x *Activation) *Activation {
	if p.m.Config.QLoraRank == 0 {
		return a.QProj.stage(p, name+".q_proj", x)
	}
	low := a.QAProj.stage(p, name+".q_a_proj", x)
	return a.QBProj.stage(p, name+".q_b_proj", a.QALayernorm.forward(p, name+".q_a_layernorm", low))
}

// columns copies columns from … to-1 of every row.
func (p *pass) columns(x *Activation, from, to int) *Activation {
	y := p.activation(p.in.Batch, p.in.Seq, to-from)
	y.Weights = x.Weights
	for i := range y.Rows() {
		copy(y.Row(i), x.Row(i)[from:to])
	}
	return y
}

// attendLatent returns the context [batch, seq, heads·v_head_dim]. A row of kv is
// k_nope and v of each head in turn; rope is the part of the keys that all heads
// share.
func (p *pass) attendLatent(q, kv, rope *Activation) *Activation {
	c := p.m.Config
	context := p.activation(p.in.Batch, p.in.Seq, c.NumAttentionHeads*c.VHeadDim)
	context.Weights = p.union(nil, q, kv, rope)
	kernel.Parallel(p.in.Batch*c.NumAttentionHeads, p.Parallelism, func(i int) {
		h := p.newHead(i)
		at := h.head * (c.QKNopeHeadDim + c.VHeadDim)
		for t := range p.in.Seq {
			row := h.batch*p.in.Seq + t
			h.q = append(h.q, q.Row(row)[h.head*c.QKHeadDim():(h.head+1)*c.QKHeadDim()]...)
			h.k = append(h.k, kv.Row(row)[at:at+c.QKNopeHeadDim]...)
			h.k = append(h.k, rope.Row(row)...)
			h.v = append(h.v, kv.Row(row)[at+c.QKNopeHeadDim:at+c.QKNopeHeadDim+c.VHeadDim]...)
		}
		p.setHead(context, h, h.attend(p))
		unusedHeads.Put(h)
	})
	return context
}
