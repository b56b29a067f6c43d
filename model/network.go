package model

import (
	"context"
	"fmt"

	"dsmoe/config"
	"dsmoe/model/internal/kernel"
	"dsmoe/model/tensor"
)

// Accumulator is the precision in which dot products are summed.
type Accumulator = kernel.Accumulator

// The accumulators. With Float64 every dot product is exact up to one rounding to
// float32; Float32 is faster where the machine has vector instructions for it.
const (
	Float64 = kernel.Float64
	Float32 = kernel.Float32
)

// Options describe how the reference ran, and how to compute. The zero value computes in
// float32 with float64 sums on all cores.
type Options struct {
	// DType is the compute dtype of the reference, to which it rounds every module's output:
	// F32 (also the zero value), BF16 or F16.
	DType tensor.DType
	// RotaryDType is the dtype of RoPE's inv_freq and angles. Invalid means DType, the dtype
	// after model.to(dtype); F32 is the dtype after from_pretrained(dtype), which leaves
	// inv_freq alone.
	RotaryDType tensor.DType
	Training    bool        // run as the reference does when self.training, without dropout
	Accumulate  Accumulator // precision of the dot products
	Parallelism int         // goroutines; 0 means GOMAXPROCS. It does not change any result.
	// AttnWeights adds a stage with the probabilities of attention, self_attn.attn_weights
	// [batch, heads, seq, seq]: memory then grows with the square of seq.
	AttnWeights bool
	// Probes, by the number of a layer with a mixture of experts, add stages of experts that run
	// on given rows: see Probe.
	Probes map[int]Probe
	// Pages, if not nil, learns which weights are read next and which no longer, so that a
	// mapped checkpoint is read ahead and only one layer of it stays in memory.
	Pages Pages
}

// dtypes returns the compute dtype and the dtype of RoPE's angles.
func (o *Options) dtypes() (compute, angles tensor.DType) {
	compute, angles = o.DType, o.RotaryDType
	if compute == tensor.Invalid {
		compute = tensor.F32
	}
	if angles == tensor.Invalid {
		angles = compute
	}
	return compute, angles
}

// check returns an error if the network cannot compute in the dtypes.
func (o *Options) check() error {
	compute, angles := o.dtypes()
	if lowest[compute] == 0 || lowest[angles] == 0 {
		return fmt.Errorf("compute dtypes %s and %s: not F32, BF16 or F16", compute, angles)
	}
	return nil
}

// Network is a model's decoder on one input: the formulas of the reference's Python over
// the operations of an Arithmetic. They neither read nor change its values.
type Network[V any] struct {
	Model      *DeepseekForCausalLM // config and weights
	Input      *Input               // the tokens
	Options    Options              // how the reference ran
	Arithmetic Arithmetic[V]        // carries the operations out
	Trace      Trace[V]             // sees every stage; may be nil
}

// Trace sees the stages of a pass, in the reference's order, under the name of the
// HuggingFace module and its product: "model.layers.3.mlp.output". It may change a stage in
// place; the pass goes on with the changed values. The first error of a Trace ends the pass,
// which returns it. A stage is valid only during the call.
type Trace[V any] interface {
	// Stage is called with each stage's output.
	Stage(name string, x V) error
	// TopK is called with a gate's choice, before it is used.
	TopK(name string, choice *Choice[V]) error
}

// Choice is how a gate chooses experts.
type Choice[V any] struct {
	Scores V          // [tokens, n_routed_experts], with bias and group mask; the largest are chosen
	Idx    []int      // [tokens, k], the experts chosen; a Trace may set others
	Groups *Groups[V] // the groups of a group-limited method; nil for other methods
}

// Groups holds the groups of experts from which each token may choose.
type Groups[V any] struct {
	Scores V       // [tokens, n_routed_experts], before the mask
	Worth  V       // [tokens, n_group]
	Chosen []int   // [tokens, topk_group]
	Masked float32 // score of the experts in other groups
}

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

// Layer runs decoder layer l alone on x [batch, seq, hidden_size], as Forward would.
func (n *Network[V]) Layer(ctx context.Context, l int, x V) (V, error) {
	return n.run(ctx, func(p *pass[V]) V {
		p.stopIf(p.m.Hold(l))
		p.tables()
		return p.layer(l, x)
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

// pass is one run of a network: its arithmetic, and the state that its modules share.
type pass[V any] struct {
	Arithmetic[V]
	ctx    context.Context
	course *Course[V] // parts to run; nil in a pass over one layer
	m      *DeepseekForCausalLM
	config *config.Config
	rules  config.Rules
	in     *Input
	o      *Options
	trace  Trace[V]
	rotary *Rotary
	cos    V // tables of rotary
	sin    V
	mask   *Mask
}

// run checks the network, and calls f with a pass. An error of the Trace, or of ctx, ends f.
func (n *Network[V]) run(ctx context.Context, f func(*pass[V]) V) (y V, err error) {
	p, err := n.begin(ctx)
	if err != nil {
		return y, err
	}
	err = ended(func() { y = f(p) })
	return y, err
}

// begin checks options and input, and returns a pass.
func (n *Network[V]) begin(ctx context.Context) (*pass[V], error) {
	if err := n.Options.check(); err != nil {
		return nil, err
	}
	c := n.Model.Config
	if err := n.Input.Check(c.VocabSize); err != nil {
		return nil, err
	}
	compute, angles := n.Options.dtypes()
	return &pass[V]{
		Arithmetic: n.Arithmetic, ctx: ctx, m: n.Model, config: c, rules: c.Rules(), in: n.Input,
		o: &n.Options, trace: n.Trace, rotary: newRotary(c, n.Input.Seq, compute, angles),
		mask: &Mask{lowest[compute], n.Input},
	}, nil
}

// ended runs f, and returns the error that stopped a pass in f.
func ended(f func()) (err error) {
	defer func() {
		switch s := recover().(type) {
		case nil:
		case stop:
			err = s.err
		default:
			panic(s)
		}
	}()
	f()
	return nil
}

// stop is the panic value of a pass that ends early. It does not leave the package.
type stop struct{ err error }

// stopIf ends the pass if err is not nil.
func (p *pass[V]) stopIf(err error) {
	if err != nil {
		panic(stop{err})
	}
}

// stage shows x to the trace, and returns x.
func (p *pass[V]) stage(name string, x V) V {
	p.stopIf(p.ctx.Err())
	if p.trace != nil {
		p.stopIf(p.trace.Stage(name, x))
	}
	return x
}

// embed looks the input ids up in embed_tokens: [batch, seq, hidden_size].
func (p *pass[V]) embed() V {
	x := p.Embed(&p.m.Model.EmbedTokens, p.in.InputIDs)
	return p.stage("model.embed_tokens.output", p.Reshape(x, p.in.Batch, p.in.Seq, p.config.HiddenSize))
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
	p.willNeed(p.next(l))
	f()
	p.drop(l)
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

// layer mirrors DeepseekDecoderLayer.forward.
func (p *pass[V]) layer(l int, x V) V {
	d, name := p.m.Layer(l), fmt.Sprintf("model.layers.%d", l)
	x = p.stage(name+".input", x)
	residual := x
	x = p.norm(name+".input_layernorm", &d.InputLayernorm, x)
	if d.MLA != nil {
		x = p.latentAttention(name+".self_attn", d.MLA, x)
	} else {
		x = p.attention(name+".self_attn", d.SelfAttn, x)
	}
	x = p.Add(residual, x)

	residual = x
	x = p.norm(name+".post_attention_layernorm", &d.PostAttentionLayernorm, x)
	if d.MoE != nil {
		x = p.moe(l, name+".mlp", d.MoE, x)
	} else {
		x = p.stage(name+".mlp.output", p.mlp(name+".mlp", d.MLP, x))
	}
	return p.stage(name+".output", p.Add(residual, x))
}

// head returns the logits, and the output of the final norm.
func (p *pass[V]) head(x V) (logits, normed V) {
	normed = p.norm("model.norm", &p.m.Model.Norm, x)
	return p.linear("lm_head", &p.m.LMHead, normed), normed
}

// norm mirrors DeepseekRMSNorm.forward as a stage.
func (p *pass[V]) norm(name string, n *DeepseekRMSNorm, x V) V {
	eps := n.VarianceEpsilon
	if eps == 0 {
		eps = p.config.RMSNormEps
	}
	return p.stage(name+".output", p.RMSNorm(x, &n.Weight, float64(float32(eps))))
}

// linear is a projection as a stage.
func (p *pass[V]) linear(name string, l *Linear, x V) V {
	return p.stage(name+".output", p.Linear(x, l))
}

// mlp mirrors DeepseekMLP.forward: down_proj(silu(gate_proj(x)) · up_proj(x)).
func (p *pass[V]) mlp(name string, m *DeepseekMLP, x V) V {
	gate := p.linear(name+".gate_proj", &m.GateProj, x)
	up := p.linear(name+".up_proj", &m.UpProj, x)
	return p.Linear(p.stage(name+".down_proj.input", p.SwiGLU(gate, up)), &m.DownProj)
}
