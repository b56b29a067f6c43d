package model

import (
	"context"
	"fmt"
)

// Layer runs decoder layer l alone on x [batch, seq, hidden_size], as Forward would.
func (n *Network[V]) Layer(ctx context.Context, l int, x V) (V, error) {
	return n.run(ctx, func(p *pass[V]) V {
		p.stopIf(p.m.Hold(l))
		p.tables()
		return p.layer(l, x)
	})
}

// PredictionLayer runs prediction layer k alone on h [batch, seq-k, hidden_size], as
// ForwardMTP would, and returns [batch, seq-1-k, hidden_size].
func (n *Network[V]) PredictionLayer(ctx context.Context, k int, h V) (V, error) {
	return n.run(ctx, func(p *pass[V]) V {
		p.stopIf(p.m.Hold(len(p.m.Model.Layers) + k))
		p.tables()
		return p.predict(k, h)
	})
}

// Head runs the final norm and the head on x [batch, seq, hidden_size], the last
// layer's output, as Forward would.
func (n *Network[V]) Head(ctx context.Context, x V) (V, error) {
	return n.run(ctx, func(p *pass[V]) V {
		logits, _ := p.head(x)
		return logits
	})
}

// embed looks the input ids up in embed_tokens, and returns the input of the first layer.
func (p *pass[V]) embed() V {
	x := p.Embed(&p.m.Model.EmbedTokens, p.in.InputIDs)
	return p.streams(p.stage("model.embed_tokens.output", p.Reshape(x, p.in.Batch, p.in.Seq, p.config.HiddenSize)))
}

// layer mirrors DeepseekDecoderLayer.forward.
func (p *pass[V]) layer(l int, x V) V {
	d, name := p.m.Layer(l), fmt.Sprintf("model.layers.%d", l)
	x = p.stage(name+".input", x)
	x = p.connected(name+".attn_hc", d.AttnHC, x, func(x V) V {
		return p.selfAttention(l, name+".self_attn", d, p.norm(name+".input_layernorm", &d.InputLayernorm, x))
	})
	if d.FFNHC != nil {
		x = p.stage(name+".ffn_hc.input", x)
	}
	x = p.connected(name+".ffn_hc", d.FFNHC, x, func(x V) V {
		x = p.norm(name+".post_attention_layernorm", &d.PostAttentionLayernorm, x)
		if d.MoE != nil {
			return p.moe(l, name+".mlp", d.MoE, x)
		}
		return p.stage(name+".mlp.output", p.mlp(name+".mlp", d.MLP, x))
	})
	return p.stage(name+".output", x)
}

// selfAttention is the attention of layer l, on its normed input.
func (p *pass[V]) selfAttention(l int, name string, d *DeepseekDecoderLayer, x V) V {
	switch {
	case d.Windowed != nil:
		return p.windowedAttention(l, name, d.Windowed, x)
	case d.MLA != nil:
		return p.latentAttention(l, name, d.MLA, x)
	}
	return p.attention(name, d.SelfAttn, x)
}

// predict runs prediction layer k on h [batch, seq-k, hidden_size], the output of the final norm or
// of the prediction layer before. It returns shared_head.norm's output, [batch, seq-1-k,
// hidden_size], mirroring MtpModel.forward_layer without a cache, on the tokens of the input:
//
//	for t in 0 … seq-2-k, at position t+1+k:
//		e = enorm(embed_tokens[input_ids[t+1+k]])
//		h = layer(eh_proj([e, hnorm(h[t])]))
//		h = shared_head.norm(h)
//		logits = h·shared_head.headᵀ
//
// As in the reference, prediction layers have no padding mask.
func (p *pass[V]) predict(k int, h V) V {
	l, width := len(p.m.Model.Layers)+k, p.config.HiddenSize
	d, name := &p.m.Model.MTP[k], fmt.Sprintf("model.layers.%d", l)
	later := p.from(1 + k)
	in := later.in
	e := p.Reshape(p.Embed(&d.EmbedTokens, in.InputIDs), in.Batch, in.Seq, width)
	e = p.norm(name+".enorm", &d.ENorm, e)
	h = p.norm(name+".hnorm", &d.HNorm, p.Move(takeFirst(in, in.Seq+1, width), h))
	h = p.linear(name+".eh_proj", &d.EHProj, p.Move(joinColumns(in, width, width), e, h))
	h = p.norm(name+".shared_head.norm", &d.SharedHead.Norm, later.layer(l, h))
	p.linear(name+".shared_head.head", &d.SharedHead.Head, h)
	return h
}

// from returns the pass for the tokens from position first on.
func (p *pass[V]) from(first int) *pass[V] {
	later := *p
	later.in = p.in.from(first)
	rows := make([]int, later.in.Seq)
	for i := range rows {
		rows[i] = first + i
	}
	later.main = p.at(p.main, rows)
	later.mask = &Mask{Lowest: p.mask.Lowest, In: later.in}
	return &later
}

// at returns the tables of some positions.
func (p *pass[V]) at(r rope[V], positions []int) rope[V] {
	move := takeRows(positions, r.Half)
	return rope[V]{r.Rotary, p.Move(move, r.cos), p.Move(move, r.sin)}
}

// head returns the logits, and the output of the final norm.
func (p *pass[V]) head(x V) (logits, normed V) {
	normed = p.norm("model.norm", &p.m.Model.Norm, p.collapsed(x))
	return p.linear("lm_head", &p.m.LMHead, normed), normed
}
