package model

import "context"

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
// It fails on ids outside the vocabulary, when the Trace does, and when ctx is done.
func (n *Network[V]) Forward(ctx context.Context) (V, error) { return n.ForwardMTP(ctx, 0) }

// ForwardMTP is Forward, followed by the given number of prediction layers. It returns the
// model's logits; only the Trace sees the outputs of prediction layers.
func (n *Network[V]) ForwardMTP(ctx context.Context, layers int) (logits V, err error) {
	return n.Run(ctx, WholeCourse[V](n.Model, layers))
}

// Run runs the parts of the model that c lists, as Forward would. It returns the model's logits
// [batch, seq, vocab_size] if c runs the head, else the output [batch, seq, hidden_size] of
// the last decoder layer.
func (n *Network[V]) Run(ctx context.Context, c *Course[V]) (y V, err error) {
	if err := c.check(n.Model, n.Input); err != nil {
		return y, err
	}
	return n.run(ctx, func(p *pass[V]) V {
		p.course = c
		return p.run()
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
			passes[0].holding(l, func() {
				for i, p := range passes {
					x[i] = p.Scope(x[i], func(x V) V { return p.layer(l, x) })
				}
			})
		}
	})
}

// run runs the course.
func (p *pass[V]) run() (x V) {
	c := p.course
	if c.Embedding {
		x = p.embed()
	}
	p.tables()
	for _, l := range c.Layers {
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
}

// start returns the input of layer l, or of the head; x is the output of the part before.
func (p *pass[V]) start(l int, x V) V {
	if p.course.follows(l) {
		return x
	}
	x, err := p.course.Start(l)
	p.stopIf(err)
	return x
}

// within runs f, which reads the weights of layer l, while these weights are in memory; the
// weights of the next layer are fetched meanwhile.
func (p *pass[V]) within(l int, x V, f func(x V) V) V {
	p.holding(l, func() { x = p.Scope(x, f) })
	return x
}

// holding is within for a function of several activations.
func (p *pass[V]) holding(l int, f func()) {
	p.stopIf(p.m.Hold(l))
	p.willNeed(p.course.next(l, len(p.m.Model.Layers)))
	f()
	p.drop(l)
}
