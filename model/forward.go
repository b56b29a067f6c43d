package model

import (
	"context"
	"fmt"
	"math"

	"dsmoe/model/tensor"
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

// Input is a batch of token sequences.
type Input struct {
	Batch         int   // sequences
	Seq           int   // tokens per sequence
	InputIDs      []int // [batch, seq]
	AttentionMask []int // [batch, seq], 0 for padding; nil without padding
}

// Check returns an error if the input does not fit a model whose vocabulary has vocab tokens.
func (in *Input) Check(vocab int) error {
	n := in.Batch * in.Seq
	if in.Batch < 1 || in.Seq < 1 || len(in.InputIDs) != n || in.AttentionMask != nil && len(in.AttentionMask) != n {
		return fmt.Errorf("input: %d ids and %d mask values for a batch of %d × %d",
			len(in.InputIDs), len(in.AttentionMask), in.Batch, in.Seq)
	}
	for i, id := range in.InputIDs {
		if id < 0 || id >= vocab {
			return fmt.Errorf("input_ids[%d, %d]: %d is not in the vocabulary of %d", i/in.Seq, i%in.Seq, id, vocab)
		}
	}
	return nil
}

// IsPadding reports whether token i of the batch is padding.
func (in *Input) IsPadding(i int) bool { return in.AttentionMask != nil && in.AttentionMask[i] == 0 }

// from returns the tokens of each sequence from position first on, without a padding mask.
func (in *Input) from(first int) *Input {
	later := &Input{Batch: in.Batch, Seq: in.Seq - first}
	for b := range in.Batch {
		later.InputIDs = append(later.InputIDs, in.InputIDs[b*in.Seq+first:(b+1)*in.Seq]...)
	}
	return later
}

// Mask is the causal mask with padding, mirroring _prepare_4d_causal_attention_mask:
// 0 where a query may look, Lowest elsewhere. A score plus Lowest is Lowest, whatever the
// score, so that a query with all its keys masked attends to all keys alike, later ones too.
//
// With a rate the keys are tokens, then entries of a compressor, each of which stands for rate tokens:
// a query sees an entry after the last of them. Padding hides no entry.
type Mask struct {
	Lowest float32 // the lowest finite value of the compute dtype
	In     *Input  // the tokens and their padding
	Window int     // tokens that a query sees, itself the last of them; 0 is all before it
	chosen []bool  // keys, or entries, that an indexer chose for each query, [batch, seq, keys]; nil is all

	rate          int // tokens of an entry; 0: all keys are tokens
	first, tokens int // the position of the first key; with a rate, the number of keys before the entries
}

// lowest holds the lowest finite values of the compute dtypes, torch.finfo(dtype).min.
var lowest = map[tensor.DType]float32{
	tensor.F32:  -math.MaxFloat32,
	tensor.F16:  -65504,
	tensor.BF16: -0x1.fep127,
}

// Masked reports whether the query at a position of a sequence may not look at a key. A nil mask hides none.
func (m *Mask) Masked(batch, query, key int) bool {
	switch {
	case m == nil:
		return false
	case m.rate == 0:
		return m.hidesToken(batch, query, m.first+key) || m.leftOut(batch, query, key)
	case key < m.tokens:
		return m.hidesToken(batch, query, m.first+key)
	}
	entry := key - m.tokens
	return (entry+1)*m.rate > query+1 || m.leftOut(batch, query, entry)
}

// hidesToken reports whether a token is later than the query, or before its window, or padding.
func (m *Mask) hidesToken(batch, query, key int) bool {
	return key > query || m.Window > 0 && query-key >= m.Window ||
		m.In.AttentionMask != nil && m.In.AttentionMask[batch*m.In.Seq+key] == 0
}

// leftOut reports whether an indexer did not choose a key, or an entry.
func (m *Mask) leftOut(batch, query, key int) bool {
	return m.chosen != nil && !m.chosen[(batch*m.In.Seq+query)*m.choices()+key]
}

// choices returns the number of keys, or entries, that an indexer chooses from.
func (m *Mask) choices() int { return m.In.Seq / max(m.rate, 1) }

// add adds the mask to the scores of a query, one score per key position.
func (m *Mask) add(scores []float32, batch, query int) {
	for key := range scores {
		if m.Masked(batch, query, key) {
			scores[key] += m.Lowest
		}
	}
}
