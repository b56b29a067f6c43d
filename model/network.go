package model

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

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
	// HeadsTogether computes all heads of latent attention at once, for an Arithmetic that rounds the keys of all heads with
	// one scale.
	HeadsTogether bool
	// Probes, by the number of a layer with a mixture of experts, add stages of experts that run
	// on given rows: see Probe.
	Probes map[int]Probe
	// Pages, if not nil, learns which weights are read next and which no longer, so that a
	// mapped checkpoint is read ahead and only one layer of it stays in memory.
	Pages Pages
}

// Pages is the memory that weights are mapped into: see Options.Pages.
type Pages interface {
	WillNeed(data []byte) // called before data is read
	DontNeed(data []byte) // called when data is not read for a while
}

// Probe lists experts of a layer that run on some of its tokens, whatever the gate chooses.
type Probe struct {
	Rows    []int // rows of the input of the mixture of experts, [tokens, hidden_size]
	Experts []int // numbers of the experts
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

// Network is a model's decoder on one input: the formulas of the reference's Python over
// the operations of an Arithmetic. They neither read nor change its values.
type Network[V any] struct {
	Model      *DeepseekForCausalLM // config and weights
	Input      *Input               // the tokens
	Options    Options              // how the reference ran
	Arithmetic Arithmetic[V]        // carries the operations out
	Trace      Trace[V]             // sees every stage; may be nil
	// Keys returns the choice of a layer's indexer, as Choice.Idx, for a layer that shares it where
	// the indexer is not run. It may be nil if no such layer is run.
	Keys func(layer int) ([]int, error)
	// Given returns the output of a part of a layer that need not run, since nobody looks at what it computes. It
	// reports false if the part has to run. It may be nil: then all parts run.
	Given func(part *Section) (V, bool, error)
}

// Section is a part of a layer whose result is a stage.
type Section struct {
	Layer  int
	Output string   // the name of the stage
	Shape  []int    // its shape
	prefix string   // begins the names of the part's modules
	behind []string // what follows prefix in names of modules behind the output
}

// Has reports whether a weight, or a stage, of this name is of the part.
func (p *Section) Has(name string) bool {
	rest, ok := strings.CutPrefix(name, p.prefix)
	return ok && !slices.ContainsFunc(p.behind, func(behind string) bool { return strings.HasPrefix(rest, behind) })
}

// Trace sees the stages of a pass, in the reference's order, under the name of the
// HuggingFace module and its product: "model.layers.3.mlp.output". It may change a stage in
// place; the pass goes on with the changed values. The first error of a Trace ends the pass,
// which returns it. A stage is valid only during the call.
type Trace[V any] interface {
	// Stage is called with each stage's output.
	Stage(name string, x V) error
	// TopK is called with a gate's choice, or an indexer's, before it is used.
	TopK(name string, choice *Choice[V]) error
}

// A rowTrace is a Trace that may see the logits in blocks of rows: they are larger than anything else of a pass, and
// no module multiplies with them.
type rowTrace[V any] interface {
	Trace[V]
	// StageRows is Stage for logits of the given shape, whose n rows from first on are rows(first, n). If it reports
	// false, Stage is called with all rows.
	StageRows(name string, shape []int, rows func(first, n int) V) (bool, error)
}

// Choice is how a gate chooses experts.
type Choice[V any] struct {
	Scores V          // [tokens, n_routed_experts], with bias and group mask; the largest are chosen
	Idx    []int      // [tokens, k], the experts chosen; a Trace may set others. Of an indexer keys: see chooseKeys
	Table  *Weight    // the table that gave the experts, whatever the scores: see TableExperts; nil without one
	Groups *Groups[V] // the groups of a group-limited method; nil for other methods
	Mask   *Mask      // of an indexer: hides keys from queries, which it does not choose; nil for a gate
}

// Groups holds the groups of experts from which each token may choose.
type Groups[V any] struct {
	Scores V       // [tokens, n_routed_experts], before the mask
	Worth  V       // [tokens, n_group]
	Chosen []int   // [tokens, topk_group]
	Masked float32 // score of the experts in other groups
}

// Course lists the parts of a model that a pass runs, and the input of a part whose
// predecessor is not run. A pass does not touch the weights of other parts. The zero Course
// runs only RoPE's tables.
type Course[V any] struct {
	Embedding   bool  // embed_tokens
	Layers      []int // layers of the decoder, ascending
	Head        bool  // the final norm and lm_head
	Predictions int   // number of prediction layers behind the head
	// Start returns the input of layer l, [batch, seq, hidden_size], or with hyper-connections its
	// streams, [batch, seq, hc_mult, hidden_size]; num_hidden_layers stands for the head. It is called where the part before is not run, and for the layers of
	// Given; it may be nil if no part needs it.
	Start func(l int) (V, error)
	// Given lists layers that begin with Start's result although the part before is run.
	Given []int
	// Routers lists layers of which the gate alone is run: Start gives what their mixture of experts takes,
	// post_attention_layernorm's output.
	Routers []int
}

// WholeCourse runs the whole decoder, and the first prediction layers.
func WholeCourse[V any](m *DeepseekForCausalLM, predictions int) *Course[V] {
	return &Course[V]{Embedding: true, Layers: firstLayers(len(m.Model.Layers)), Head: true, Predictions: predictions}
}

// firstLayers returns the numbers of the first n layers.
func firstLayers(n int) (layers []int) {
	for l := range n {
		layers = append(layers, l)
	}
	return layers
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
	main   rope[V] // of layers without entries
	coarse rope[V] // of layers with entries, and of entries
	mask   *Mask
	keys   *keyChoice // of the last indexer that ran
	keysOf func(layer int) ([]int, error)
	given  func(part *Section) (V, bool, error)
}

// keyChoice is the choice of the indexer of a layer, [batch, seq, topKeys].
type keyChoice struct {
	layer int
	idx   []int
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
	c := n.Model.Config
	compute, angles := n.Options.dtypes()
	if lowest[compute] == 0 || lowest[angles] == 0 {
		return nil, fmt.Errorf("compute dtypes %s and %s: not F32, BF16 or F16", compute, angles)
	}
	if n.Options.Training && c.HyperConnections.HCMult > 0 {
		return nil, untrained(c)
	}
	if err := n.Input.Check(c.VocabSize); err != nil {
		return nil, err
	}
	p := &pass[V]{
		Arithmetic: n.Arithmetic, ctx: ctx, m: n.Model, config: c, rules: c.Rules(), in: n.Input,
		o: &n.Options, trace: n.Trace,
		mask: &Mask{Lowest: lowest[compute], In: n.Input, Window: c.Windows.SlidingWindow}, keysOf: n.Keys, given: n.Given,
	}
	if !c.BlockOnly() {
		p.main.Rotary = newRotary(c, mainRope(c), n.Input.Seq, compute, angles)
	}
	if c.Windowed() {
		p.coarse.Rotary = newRotary(c, compressRope(c), n.Input.Seq, compute, angles)
		p.coarse.Rotary.Compressed = true
	}
	return p, nil
}

// untrained is the error of training with hyper-connections.
func untrained(c *config.Config) error {
	return fmt.Errorf("model_type %s: hyper-connections have no gradients here", c.ModelType)
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

// section returns what f, a section of a layer, gives, unless f need not run.
func (p *pass[V]) section(part Section, f func() V) V {
	if p.given != nil {
		x, ok, err := p.given(&part)
		if p.stopIf(err); ok {
			return x
		}
	}
	return f()
}

// norm mirrors DeepseekRMSNorm.forward as a stage.
func (p *pass[V]) norm(name string, n *DeepseekRMSNorm, x V) V {
	return p.stage(name+".output", p.normed(n, x))
}

// normed is a norm that is no stage of its own.
func (p *pass[V]) normed(n *DeepseekRMSNorm, x V) V {
	eps := n.VarianceEpsilon
	if eps == 0 {
		eps = p.config.RMSNormEps
	}
	if p.rules.NormsOnce {
		compute, _ := p.o.dtypes()
		return p.Cast(p.RMSNorm(p.Float32(x), &n.Weight, float64(float32(eps))), compute)
	}
	return p.RMSNorm(x, &n.Weight, float64(float32(eps)))
}

// linear is a projection as a stage.
func (p *pass[V]) linear(name string, l *Linear, x V) V {
	return p.stage(name+".output", p.Linear(x, l))
}

// logits is linear for the product of x [batch, seq, hidden_size] and a head. A rowTrace may see it in blocks of rows:
// then the result is nothing.
func (p *pass[V]) logits(name string, l *Linear, x V) (y V) {
	if t, ok := p.trace.(rowTrace[V]); ok {
		p.stopIf(p.ctx.Err())
		in, shape := l.Weight.Shape[1], []int{p.in.Batch, p.in.Seq, l.Weight.Shape[0]}
		seen, err := t.StageRows(name+".output", shape, func(first, n int) V {
			p.stopIf(p.ctx.Err())
			return p.Linear(p.Move(rowsFrom(first, n, in), x), l)
		})
		if p.stopIf(err); seen {
			return y
		}
	}
	return p.linear(name, l, x)
}

// mlp mirrors DeepseekMLP.forward: down_proj(silu(gate_proj(x)) · up_proj(x)), or another config.Activation.
func (p *pass[V]) mlp(name string, m *DeepseekMLP, x V, limit float64) V {
	var gate V
	if p.rules.MoE.Activation != config.SquaredReLU {
		gate = p.linear(name+".gate_proj", &m.GateProj, x)
	}
	up := p.linear(name+".up_proj", &m.UpProj, x)
	compute, _ := p.o.dtypes()
	hidden := Activated(p.Arithmetic, p.config, compute, float32(limit), gate, up)
	return p.Linear(p.stage(name+".down_proj.input", hidden), &m.DownProj)
}

// Activated returns what down_proj of an MLP of c takes, in dtype d, of the outputs of gate_proj and up_proj. A limit that is
// not 0 clamps the gate from above, and up from both sides.
func Activated[V any](a Arithmetic[V], c *config.Config, d tensor.DType, limit float32, gate, up V) V {
	kind, lowest := c.Rules().MoE.Activation, float32(math.Inf(-1))
	if limit > 0 {
		up = a.Clamp(up, -limit, limit)
		if kind == config.SwiGLULimited {
			return a.Multiply(a.Clamp(a.SiLU(gate, 1), lowest, limit), up, 0)
		}
		gate = a.Clamp(gate, lowest, limit)
	}
	switch kind {
	case config.SwiGLUOnce:
		return a.Cast(a.SwiGLU(a.Float32(gate), a.Float32(up)), d)
	case config.SwiGLUShifted:
		return a.Multiply(a.SiLU(gate, float32(c.SwiGLUAlpha)), up, 1)
	case config.SquaredReLU:
		up = a.ReLU(up)
		return a.Multiply(up, up, 0)
	}
	return a.SwiGLU(gate, up)
}
