package model

import (
	"context"
	"fmt"
)

// PredictionLayer runs prediction layer k alone on h [batch, seq-k, hidden_size], as
// ForwardMTP would, and returns [batch, seq-1-k, hidden_size].
func (n *Network[V]) PredictionLayer(ctx context.Context, k int, h V) (V, error) {
	return n.run(ctx, func(p *pass[V]) V {
		p.stopIf(p.m.Hold(len(p.m.Model.Layers) + k))
		p.tables()
		return p.predict(k, h)
	})
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
	move := takeRows(rows, p.rotary.Half)
	later.cos, later.sin = p.Move(move, p.cos), p.Move(move, p.sin)
	later.mask = &Mask{p.mask.Lowest, later.in}
	return &later
}
