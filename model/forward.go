package model

import (
	"context"
	"fmt"
	"slices"

	"dsmoe/model/table"
)

// Forward runs the decoder on in, in evaluation mode unless o says otherwise, and
// returns the logits [batch, seq, vocab_size] as Plain computes them: see
// Network.Forward.
func (m *DeepseekForCausalLM) Forward(ctx context.Context, in *Input, o Options) (*Activation, error) {
	plain := NewPlain(o)
	net := &Network[*Activation]{Model: m, Input: in, Options: o, Arithmetic: plain}
	logits, err := net.Forward(ctx)
	plain.Close(logits)
	return logits, err
}

// Forward returns the logits [batch, seq, vocab_size], mirroring
// DeepseekForCausalLM.forward with eager attention:
//
//	x = embed_tokens[input_ids]
//	for each layer:
//		x = x + self_attn(input_layernorm(x))
//		x = x + mlp(post_attention_layernorm(x))
//	logits = norm(x)·lm_headᵀ
//
// With hyper-connections x is hc_mult streams, and both sums are as connected says.
//
// It fails on ids outside the vocabulary, when the Trace does, and when ctx is done.
func (n *Network[V]) Forward(ctx context.Context) (V, error) { return n.ForwardMTP(ctx, 0) }

// ForwardMTP is Forward, followed by the given number of prediction layers. It returns the
// model's logits; only the Trace sees the outputs of prediction layers.
func (n *Network[V]) ForwardMTP(ctx context.Context, layers int) (logits V, err error) {
	return n.Run(ctx, WholeCourse[V](n.Model, layers))
}

// Run runs the parts of the model that c lists, as Forward would. It returns the model's logits
// [batch, seq, vocab_size] if c runs the head, else the output of
// the last decoder layer.
func (n *Network[V]) Run(ctx context.Context, c *Course[V]) (y V, err error) {
	switch k := c.Predictions; {
	case k > n.Model.PredictionLayers():
		return y, fmt.Errorf("%d prediction layers, the model has %d", k, n.Model.PredictionLayers())
	case k >= n.Input.Seq && k > 0:
		return y, fmt.Errorf("input: sequences of %d tokens leave nothing to predict for %d prediction layers", n.Input.Seq,
			k)
	}
	return n.run(ctx, func(p *pass[V]) V {
		p.course = c
		var x V
		if c.Embedding {
			x = p.embed()
		}
		p.tables()
		for _, l := range c.Layers {
			if slices.Contains(c.Routers, l) {
				p.stopIf(p.m.Hold(l))
				x = p.Scope(p.start(l, x), func(x V) V { return p.routed(l, x) })
				continue
			}
			x = p.within(l, p.start(l, x), func(x V) V { return p.layer(l, x) })
		}
		if !c.Head {
			return x
		}
		logits, h := p.head(p.start(len(p.m.Model.Layers), x))
		for k := range c.Predictions {
			h = p.within(len(p.m.Model.Layers)+k, h, func(h V) V { return p.predict(k, h) })
		}
		return logits
	})
}

// Decode runs the first layers of the decoder on one network or more, which share model and
// arithmetic and differ in their inputs: each layer on all inputs before the next layer, so that
// its weights are in memory once. Only the traces see the outputs.
func Decode[V any](ctx context.Context, layers int, nets []*Network[V]) error {
	passes, x := make([]*pass[V], len(nets)), make([]V, len(nets))
	course := &Course[V]{Embedding: true, Layers: firstLayers(layers)}
	for i, n := range nets {
		p, err := n.begin(ctx)
		if err != nil {
			return err
		}
		p.course, passes[i] = course, p
	}
	return ended(func() {
		for i, p := range passes {
			x[i] = p.embed()
			p.tables()
		}
		for _, l := range course.Layers {
			passes[0].hold(l)
			passes[0].stopIf(passes[0].m.Hold(l)) // experts that all passes run are read once
			for i, p := range passes {
				x[i] = p.Scope(x[i], func(x V) V { return p.layer(l, x) })
			}
			passes[0].drop(l)
		}
	})
}

// start returns the input of layer l, or of the head; x is the output of the part before.
func (p *pass[V]) start(l int, x V) V {
	c := p.course
	if !slices.Contains(c.Given, l) && !slices.Contains(c.Routers, l) && !slices.Contains(c.Routers, l-1) &&
		(l == 0 && c.Embedding || l > 0 && slices.Contains(c.Layers, l-1)) {
		return x
	}
	x, err := c.Start(l)
	p.stopIf(err)
	return x
}

// within runs f, which reads the weights of layer l, while these weights are in memory; the
// weights of the next layer are fetched meanwhile.
func (p *pass[V]) within(l int, x V, f func(x V) V) V {
	p.hold(l)
	x = p.Scope(x, f)
	p.drop(l)
	return x
}

// hold is how within begins; drop ends it. Routed experts are read when they run, but for a gradient. hold also fetches
// ahead what the next layer reads whatever its gate decides, but the embedding, of which rows are read;
// fetchExperts fetches the experts once the gate has chosen them.
func (p *pass[V]) hold(l int) {
	if p.o.Training {
		p.stopIf(p.m.Hold(l))
	}
	p.stopIf(read(l, p.m.layer(l, func(of table.Place) bool { return of.Expert < 0 })))
	next, layers := max(len(p.m.Model.Layers), l+1), p.course.Layers // a prediction layer, if no layer of the decoder follows
	if i, _ := slices.BinarySearch(layers, l+1); i < len(layers) {
		next = layers[i]
	} else if next >= len(p.m.Model.Layers)+p.course.Predictions {
		return
	}
	if p.o.Pages == nil {
		return
	}
	for place, w := range p.m.LayerWeights(next) {
		if place.Expert < 0 && !place.Row.LookedUp() {
			fetch(p.o.Pages, w)
		}
	}
}

// Layer runs decoder layer l alone on x, [batch, seq, hidden_size] or its streams, as Forward would. Where attention is not
// computed, x is what the MLP takes.
func (n *Network[V]) Layer(ctx context.Context, l int, x V) (V, error) {
	return n.run(ctx, func(p *pass[V]) V {
		p.stopIf(p.m.Hold(l))
		p.tables()
		return p.layer(l, x)
	})
}

// Router runs the gate of decoder layer l alone on x [batch, seq, hidden_size], which the layer's mixture of experts takes.
func (n *Network[V]) Router(ctx context.Context, l int, x V) (V, error) {
	return n.run(ctx, func(p *pass[V]) V {
		p.stopIf(p.m.Hold(l))
		return p.routed(l, x)
	})
}

// routed is the gate of layer l: [tokens, k].
func (p *pass[V]) routed(l int, x V) V {
	flat := p.Reshape(x, p.in.Batch*p.in.Seq, p.config.HiddenSize)
	_, weight := p.gate(fmt.Sprintf("model.layers.%d.mlp.gate", l), &p.m.Layer(l).MoE.Gate, flat)
	return weight
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

// Head runs the final norm and the head on x, [batch, seq, hidden_size] or its streams, the last
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
	x = p.stage("model.embed_tokens.output", p.Reshape(x, p.in.Batch, p.in.Seq, p.config.HiddenSize))
	if p.config.HyperConnections.HCMult > 0 { // each stream is the embedding
		x = p.Move(repeatRows(p.in, p.config.HyperConnections.HCMult, p.config.HiddenSize), x)
	}
	return x
}

// layer mirrors DeepseekDecoderLayer.forward. Where attention is not computed, it is block.
func (p *pass[V]) layer(l int, x V) V {
	if p.config.BlockOnly() {
		return p.block(l, x)
	}
	d, name := p.m.Layer(l), fmt.Sprintf("model.layers.%d", l)
	x = p.stage(name+".input", x)
	x = p.connected(name+".attn_hc", d.AttnHC, x, func(x V) V {
		x = p.norm(name+".input_layernorm", &d.InputLayernorm, x)
		name := name + ".self_attn"
		return p.section(p.wholeOf(l, name), func() V {
			if d.Windowed != nil {
				return p.windowedAttention(l, name, d.Windowed, x)
			}
			return p.attention(l, name, d, x)
		})
	})
	if d.FFNHC != nil {
		x = p.stage(name+".ffn_hc.input", x)
	}
	x = p.connected(name+".ffn_hc", d.FFNHC, x, func(x V) V {
		return p.block(l, p.norm(name+".post_attention_layernorm", &d.PostAttentionLayernorm, x))
	})
	return p.stage(name+".output", x)
}

// block is the MLP of layer l, and the norm behind it, on x, the output of post_attention_layernorm.
func (p *pass[V]) block(l int, x V) V {
	d, name := p.m.Layer(l), fmt.Sprintf("model.layers.%d", l)
	if d.MoE == nil && d.MLP == nil {
		p.stopIf(fmt.Errorf("layer %d has no MLP, and attention is not computed", l))
	}
	x = p.section(p.wholeOf(l, name+".mlp"), func() V {
		if d.MoE != nil {
			return p.moe(l, name+".mlp", d.MoE, x)
		}
		return p.stage(name+".mlp.output", p.mlp(name+".mlp", d.MLP, x, p.config.Limit(l, false)))
	})
	if d.PostMLPLayernorm != nil {
		x = p.norm(name+".post_mlp_layernorm", d.PostMLPLayernorm, x)
	}
	return x
}

// wholeOf is the part of a layer that is the module name.
func (p *pass[V]) wholeOf(l int, name string) Section {
	return Section{l, name + ".output", []int{p.in.Batch, p.in.Seq, p.config.HiddenSize}, name + ".", nil}
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
	later, first := *p, 1+k // the pass for the tokens from there on, without a padding mask
	in := &Input{Batch: p.in.Batch, Seq: p.in.Seq - first}
	rows := make([]int, in.Seq)
	for i := range rows {
		rows[i] = first + i
	}
	for b := range in.Batch {
		in.InputIDs = append(in.InputIDs, p.in.InputIDs[b*p.in.Seq+first:(b+1)*p.in.Seq]...)
	}
	later.in, later.main, later.mask = in, p.at(p.main, rows), &Mask{Lowest: p.mask.Lowest, In: in}
	e := p.Reshape(p.Embed(&d.EmbedTokens, in.InputIDs), in.Batch, in.Seq, width)
	e = p.norm(name+".enorm", &d.ENorm, e)
	h = p.norm(name+".hnorm", &d.HNorm, p.Move(takeFirst(in, in.Seq+1, width), h))
	h = p.linear(name+".eh_proj", &d.EHProj, p.Move(joinColumns(in, width, width), e, h))
	h = p.norm(name+".shared_head.norm", &d.SharedHead.Norm, later.layer(l, h))
	later.logits(name+".shared_head.head", &d.SharedHead.Head, h)
	return h
}

// at returns the tables of some positions.
func (p *pass[V]) at(r rope[V], positions []int) rope[V] {
	move := takeRows(positions, r.Half)
	return rope[V]{r.Rotary, p.Move(move, r.cos), p.Move(move, r.sin)}
}

// head returns the logits, and the output of the final norm.
func (p *pass[V]) head(x V) (logits, normed V) {
	if h := p.m.Model.HCHead; h != nil {
		pre := p.StreamGate(p.mixes(h, x), &Affine{Scale: &h.Scale, Base: &h.Base}, 1,
			float32(p.config.HyperConnections.HCEps))
		x = p.stage("model.hc_head.output", p.Collapse(p.stage("model.hc_head.pre", pre), x))
	}
	normed = p.norm("model.norm", &p.m.Model.Norm, x)
	return p.logits("lm_head", &p.m.LMHead, normed), normed
}
