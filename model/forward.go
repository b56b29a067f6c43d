package model

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"dsmoe/model/internal/kernel"
	"dsmoe/model/tensor"
)

// Accumulator says in what precision dot products are summed.
type Accumulator = kernel.Accumulator

// The accumulators. With Float64 every dot product is exact up to one rounding to
// float32; Float32 is faster where the machine has vector instructions for it.
const (
	Float64 = kernel.Float64
	Float32 = kernel.Float32
)

// Options are the arithmetic of a forward pass. The zero value computes in float32
// with float64 sums on all cores.
type Options struct {
	// DType is the compute dtype of the reference: every module's output is rounded
	// to it where the reference's is. F32 (also the zero value), BF16 or F16.
	DType tensor.DType
	// RotaryDType is the dtype of RoPE's inv_freq and angles. Invalid means DType, as
	// the reference has them after model.to(dtype); F32 is what it has when
	// from_pretrained made the model in dtype, which leaves inv_freq alone.
	RotaryDType tensor.DType
	Accumulate  Accumulator
	Parallelism int   // goroutines; 0 means GOMAXPROCS. It does not change any result.
	Training    bool  // run as the reference does when self.training, without dropout
	Trace       Trace // sees every stage; may be nil
	// Pages, if not nil, are told which weights are read next and which no more, so
	// that a mapped checkpoint is read ahead and only a layer of it stays in memory.
	Pages Pages
	// BiasLeak takes the top-k weights from the scores with e_score_correction_bias, a
	// mistake that a diagnosis tries.
	BiasLeak bool
}

// Trace sees the stages of a forward pass, in the reference's order, under the name
// of the HuggingFace module and what it produced: "model.layers.3.mlp.output". It
// may replace what it sees; the pass goes on with that.
type Trace interface {
	// Stage is called with each stage's output.
	Stage(name string, a *Activation)
	// TopK is called with a gate's choice, before it is used.
	TopK(name string, choice *Choice)
}

// Choice is how a gate chooses experts.
type Choice struct {
	// Scores [tokens, n_routed_experts] are what the experts are chosen by, with bias
	// and group mask.
	Scores *Activation
	// Unsure is, per expert, how far Scores may be from the reference's because
	// e_score_correction_bias is stored in fewer bits than float32, in which the
	// reference keeps it: half a unit. nil without such a bias.
	Unsure []float64
	Idx    []int // [tokens, k], the experts chosen
	// Groups is how a group-limited method came to the mask; nil without groups.
	Groups *Groups
}

// Groups are the groups of experts that each token may choose from.
type Groups struct {
	Scores *Activation // [tokens, n_routed_experts], before the mask
	Worth  *Activation // [tokens, n_group]
	Chosen []int       // [tokens, topk_group]
	masked float32     // what the scores of other groups become
}

// Rerank returns the k experts that a token chooses, and by which scores, if it may
// choose from these groups.
func (g *Groups) Rerank(token, k int, groups []int) (idx []int, scores []float32) {
	scores = g.mask(token, groups)
	return TopK(&Activation{Shape: []int{1, len(scores)}, Values: scores}, k), scores
}

// mask returns a token's scores with those of all other groups masked.
func (g *Groups) mask(token int, groups []int) []float32 {
	scores := slices.Clone(g.Scores.Row(token))
	size := len(scores) / g.Worth.Width()
	for e := range scores {
		if !slices.Contains(groups, e/size) {
			scores[e] = g.masked
		}
	}
	return scores
}

// Activation is a tensor between two stages: float32 values that the compute dtype
// can represent, row-major. What a Trace sees is valid during the call only.
type Activation struct {
	Shape  []int
	Values []float32
	DType  tensor.DType // in which the reference holds the values
	// Weights are the weights that took part in the values since the last stage at
	// which the Trace cleared the set. It is kept only for a Trace.
	Weights WeightSet

	grad *gradient // of the loss, while a tape is recorded
}

// WeightSet is a set of weights' names. It is not changed once made.
type WeightSet map[string]struct{}

// Width returns the last dimension.
func (a *Activation) Width() int { return a.Shape[len(a.Shape)-1] }

// Row returns row i, the last axis's values.
func (a *Activation) Row(i int) []float32 {
	w := a.Width()
	return a.Values[i*w : (i+1)*w]
}

// Rows returns the number of rows: the product of all dimensions but the last.
func (a *Activation) Rows() int { return len(a.Values) / a.Width() }

// Input is a batch of token sequences.
type Input struct {
	Batch, Seq    int
	InputIDs      []int // [batch, seq]
	AttentionMask []int // [batch, seq], 0 for padding; nil for none
}

// check says what is wrong with the input.
func (in *Input) check(vocab int) error {
	n := in.Batch * in.Seq
	if in.Batch < 1 || in.Seq < 1 || len(in.InputIDs) != n || in.AttentionMask != nil && len(in.AttentionMask) != n {
		return fmt.Errorf("input: %d ids and %d mask values for a batch of %d × %d", len(in.InputIDs), len(in.AttentionMask), in.Batch, in.Seq)
	}
	for i, id := range in.InputIDs {
		if id < 0 || id >= vocab {
			return fmt.Errorf("input_ids[%d, %d]: %d is not in the vocabulary of %d", i/in.Seq, i%in.Seq, id, vocab)
		}
	}
	return nil
}

// pass is one forward pass: what its modules share.
type pass struct {
	Options
	m       *DeepseekForCausalLM
	in      *Input
	format  kernel.Format // of the compute dtype
	weights kernel.Format // that the reference cast its weights to
	rotary  rotaryTable
	mask    mask
	tape    *tape // records what gradients need; nil if none are wanted
	arena   *arena
}

// newPass checks in and o and prepares what the modules share.
func (m *DeepseekForCausalLM) newPass(in *Input, o Options) (*pass, error) {
	if o.DType == tensor.Invalid {
		o.DType = tensor.F32
	}
	if o.RotaryDType == tensor.Invalid {
		o.RotaryDType = o.DType
	}
	format, ok := o.DType.Format()
	angles, alsoOK := o.RotaryDType.Format()
	if !ok || !alsoOK {
		return nil, fmt.Errorf("compute dtypes %s and %s: not F32, BF16 or F16", o.DType, o.RotaryDType)
	}
	if err := in.check(m.Config.VocabSize); err != nil {
		return nil, err
	}
	p := &pass{Options: o, m: m, in: in, format: format, weights: format, arena: arenas.Get().(*arena)}
	p.rotary = newRotaryTable(m.Config, in.Seq, format, angles)
	p.mask = newMask(in, format)
	return p, nil
}

// Forward runs the decoder on in, in evaluation mode unless o says otherwise, and
// returns the logits [batch, seq, vocab_size], mirroring DeepseekForCausalLM.forward
// with eager attention:
//
//	x = embed_tokens[input_ids]
//	for each layer:
//		x = x + self_attn(input_layernorm(x))
//		x = x + mlp(post_attention_layernorm(x))
//	logits = norm(x)·lm_headᵀ
//
// It fails on ids outside the vocabulary and when ctx is done.
func (m *DeepseekForCausalLM) Forward(ctx context.Context, in *Input, o Options) (*Activation, error) {
	p, err := m.newPass(in, o)
	if err != nil {
		return nil, err
	}
	logits, err := p.decode(ctx)
	if err != nil {
		return nil, err
	}
	return p.end(logits), nil
}

// end gives the pass's memory back, but for that of its result, which it returns.
func (p *pass) end(result *Activation) *Activation {
	p.arena.reset(result.Values)
	p.arena.used = nil
	arenas.Put(p.arena)
	p.arena = nil
	return result
}

func (p *pass) decode(ctx context.Context) (*Activation, error) {
	x := p.embed()
	for l := range p.m.Model.Layers {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		p.willNeed(l + 1)
		x = p.layer(l, x)
		p.dontNeed(l)
		if p.tape == nil {
			p.arena.reset(x.Values)
		}
	}
	return p.head(x), ctx.Err()
}

// ForwardLayer runs decoder layer l alone on x [batch, seq, hidden_size], as Forward
// would.
func (m *DeepseekForCausalLM) ForwardLayer(l int, x *Activation, in *Input, o Options) (*Activation, error) {
	p, err := m.newPass(in, o)
	if err != nil {
		return nil, err
	}
	return p.end(p.layer(l, x)), nil
}

// ForwardHead runs the final norm and the head on x [batch, seq, hidden_size], the
// last layer's output, as Forward would.
func (m *DeepseekForCausalLM) ForwardHead(x *Activation, in *Input, o Options) (*Activation, error) {
	p, err := m.newPass(in, o)
	if err != nil {
		return nil, err
	}
	return p.end(p.head(x)), nil
}

func (p *pass) layer(l int, x *Activation) *Activation {
	return p.m.Model.Layers[l].forward(p, fmt.Sprintf("model.layers.%d", l), x)
}

func (p *pass) head(x *Activation) *Activation {
	x = p.m.Model.Norm.forward(p, "model.norm", x)
	return p.m.LMHead.stage(p, "lm_head", x)
}

// embed looks the input ids up in embed_tokens.
func (p *pass) embed() *Activation {
	w := p.m.Model.EmbedTokens
	x := p.activation(p.in.Batch, p.in.Seq, p.m.Config.HiddenSize)
	format, _ := w.DType.Format()
	for i, id := range p.in.InputIDs {
		kernel.Widen(x.Row(i), w.Row(id).Data, format)
	}
	p.round(x)
	x.Weights = p.union([]Weight{w})
	if grad := p.wanted(w); grad != nil {
		p.record(func() {
			for i, id := range p.in.InputIDs {
				row := gradient{grad.values[id*x.Width() : (id+1)*x.Width()]}
				row.add(x.grad.values[i*x.Width() : (i+1)*x.Width()])
			}
			p.tape.done()
		})
	}
	return p.stage("model.embed_tokens.output", x)
}

// forward mirrors DeepseekDecoderLayer.forward.
func (d *DeepseekDecoderLayer) forward(p *pass, name string, x *Activation) *Activation {
	residual := x
	x = d.InputLayernorm.forward(p, name+".input_layernorm", x)
	if d.MLA != nil {
		x = d.MLA.forward(p, name+".self_attn", x)
	} else {
		x = d.SelfAttn.forward(p, name+".self_attn", x)
	}
	x = p.add(residual, x)

	residual = x
	x = d.PostAttentionLayernorm.forward(p, name+".post_attention_layernorm", x)
	if d.MoE != nil {
		x = d.MoE.forward(p, name+".mlp", x)
	} else {
		x = p.stage(name+".mlp.output", d.MLP.forward(p, x))
	}
	return p.stage(name+".output", p.add(residual, x))
}

// activation returns one whose values are to be set: they are whatever was there.
func (p *pass) activation(shape ...int) *Activation {
	n := 1
	for _, d := range shape {
		n *= d
	}
	a := &Activation{Shape: shape, Values: p.arena.get(n), DType: p.DType}
	if p.tape != nil {
		a.grad = &gradient{make([]float32, n)}
	}
	return a
}

// stage shows a to the trace and returns it.
func (p *pass) stage(name string, a *Activation) *Activation {
	if p.Trace != nil {
		p.Trace.Stage(name, a)
	}
	return a
}

// round rounds a to the compute dtype.
func (p *pass) round(a *Activation) { kernel.RoundTo(a.Values, p.format) }

// rounded returns v rounded to the compute dtype.
func (p *pass) rounded(v float32) float32 { return kernel.Rounded(v, p.format) }

// add returns a + b.
func (p *pass) add(a, b *Activation) *Activation {
	sum := p.activation(a.Shape...)
	kernel.Parallel(a.Rows(), p.Parallelism, func(t int) {
		out, b := sum.Row(t), b.Row(t)
		for i, v := range a.Row(t) {
			out[i] = v + b[i]
		}
		kernel.RoundTo(out, p.format)
	})
	sum.Weights = p.union(nil, a, b)
	p.record(func() {
		a.grad.add(sum.grad.values)
		b.grad.add(sum.grad.values)
	})
	return sum
}

// union returns the weights of all activations and the ones given by name, for the
// trace.
func (p *pass) union(weights []Weight, from ...*Activation) WeightSet {
	if p.Trace == nil {
		return nil
	}
	set := WeightSet{}
	for _, a := range from {
		maps.Copy(set, a.Weights)
	}
	for _, w := range weights {
		if w.Name != "" {
			set[w.Name] = struct{}{}
		}
	}
	return set
}

// forward returns x·weightᵀ + bias, mirroring torch.nn.functional.linear.
func (l *Linear) forward(p *pass, x *Activation) *Activation {
	shape := append([]int{}, x.Shape...)
	shape[len(shape)-1] = l.Weight.Shape[0]
	y := p.activation(shape...)
	y.Weights = p.union([]Weight{l.Weight, l.Bias}, x)
	kernel.MatMul(y.Values, x.Values, p.matrix(l.Weight), p.vector(l.Bias), p.Accumulate, p.Parallelism)
	p.round(y)
	p.record(l.backward(p, x, y))
	return y
}

// stage is forward as a stage of its own.
func (l *Linear) stage(p *pass, name string, x *Activation) *Activation {
	return p.stage(name+".output", l.forward(p, x))
}

// matrix returns w for the kernels: as stored, cast to the compute dtype on the way
// if that holds fewer values.
func (p *pass) matrix(w Weight) kernel.Matrix {
	m := w.matrix()
	m.Round, m.Via = p.weights != kernel.F32 && m.Format != p.weights, p.weights
	return m
}

// matrix returns w for the kernels, as it is stored.
func (w *Weight) matrix() kernel.Matrix {
	format, _ := w.DType.Format()
	return kernel.Matrix{
		Format: format, Rows: w.Shape[0], Cols: w.Shape[1], Data: w.Data,
		Scales: w.Scales, BlockRows: w.Block[0], BlockCols: w.Block[1],
	}
}

// inFloat32 returns p computing in float32, with the weights that it has otherwise.
func (p *pass) inFloat32() *pass {
	q := *p
	q.format, q.DType = kernel.F32, tensor.F32
	return &q
}

// vector returns w's values in the compute dtype, nil for the zero Weight.
func (p *pass) vector(w Weight) []float32 {
	values := w.values()
	kernel.RoundTo(values, p.weights)
	return values
}

// values returns w's values as they are stored, nil for the zero Weight.
func (w *Weight) values() []float32 {
	if w.Name == "" {
		return nil
	}
	values := make([]float32, w.Len())
	format, _ := w.DType.Format()
	kernel.Widen(values, w.Data, format)
	return values
}
