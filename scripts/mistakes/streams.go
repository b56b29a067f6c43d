package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"strings"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// ofStreams are mistakes of DeepSeek-V4. Those of an implementation are in what it would have recorded.
func ofStreams() []mistake {
	const layer = "model.layers.0."
	by := func(around func(*model.Plain) model.Arithmetic[*model.Activation]) func(*subject) bool {
		return func(s *subject) bool { return s.config.Windowed() && s.recordBy(around) }
	}
	return []mistake{
		{"a pack whose streams are mixed by the transposed matrix", "streams-transposed", layer + "ffn_hc.input", "",
			by(func(p *model.Plain) model.Arithmetic[*model.Activation] { return &transposedStreams{p} })},
		{"a pack with one Sinkhorn iteration less", "sinkhorn-iterations", layer + "attn_hc.comb", "",
			by(func(p *model.Plain) model.Arithmetic[*model.Activation] { return &fewerIterations{p} })},
		{"a pack whose Sinkhorn iterations divide rows first", "sinkhorn-order", layer + "attn_hc.comb", "",
			by(func(p *model.Plain) model.Arithmetic[*model.Activation] { return &rowsFirst{p} })},
		{"a pack whose compressed keys have the next positions", "entry-positions", "{entries}entries", "",
			func(s *subject) bool {
				return s.config.Windowed() && s.recordBy(func(p *model.Plain) model.Arithmetic[*model.Activation] {
					return &laterEntries{p, s.config.QKRopeHeadDim / 2}
				})
			}},
		{"a pack whose compressed keys are of one window", "entry-overlap", "{entries}kv_norm.output", "",
			by(func(p *model.Plain) model.Arithmetic[*model.Activation] { return &ownWindow{p} })},
		{"a pack whose attention lacks the sink", "attention-sink", layer + "self_attn.context", "",
			by(func(p *model.Plain) model.Arithmetic[*model.Activation] { return &withoutSink{p} })},
		{"a pack whose context is not rotated back", "inverse-rope", layer + "self_attn.o_a_proj.input", "",
			by(func(p *model.Plain) model.Arithmetic[*model.Activation] { return &notRotatedBack{Plain: p} })},
		{"a pack whose MLPs lack the clamp", "swiglu-clamp", experts, "",
			by(func(p *model.Plain) model.Arithmetic[*model.Activation] { return &otherClamp{p, false} })},
		{"a pack whose MLPs clamp up on one side", "swiglu-clamp", experts, "",
			by(func(p *model.Plain) model.Arithmetic[*model.Activation] { return &otherClamp{p, true} })},
		{"sliding_window less 1", "sliding-window", layer + "self_attn.context", "", func(s *subject) bool {
			return s.config.Windowed() &&
				s.set(map[string]string{"sliding_window": strconv.Itoa(s.config.SlidingWindow - 1)})
		}},
		{"thetas of RoPE exchanged", "rope-tables", layer + "self_attn.query", "", func(s *subject) bool {
			c := s.config
			return c.Windowed() && s.set(map[string]string{"rope_theta": strconv.FormatFloat(c.CompressRopeTheta, 'g', -1, 64),
				"compress_rope_theta": strconv.FormatFloat(c.RopeTheta, 'g', -1, 64)})
		}},
		{"tid2eid shifted by a row", "hash-table-shifted", topKIdx, "",
			editing("layers.0.ffn.gate.tid2eid", func(t *tensor.Tensor) bool {
				return reorder(t, func(r int) int { return (r + 1) % t.Shape[0] })
			})},
		{"groups of o_a_proj rotated", "output-groups", layer + "self_attn.o_a_proj.output", "", func(s *subject) bool {
			return s.config.Windowed() && s.edit("layers.0.attn.wo_a.weight", func(t *tensor.Tensor) bool {
				return reorder(t, func(r int) int { return (r + s.config.OLoraRank) % t.Shape[0] })
			})
		}},
		{"w1 and w3 of one expert exchanged", "gate-up-swapped", experts, "expert {e}", func(s *subject) bool {
			const of = "layers.0.ffn.experts.{e}."
			s.swap(of+"w1.scale", of+"w3.scale")
			return s.swap(of+"w1.weight", of+"w3.weight")
		}},
		{"halves of bytes of FP4 exchanged", "fp4-nibbles", experts, "", func(s *subject) bool {
			return s.editAll(".experts.", ".weight", tensor.I8, func(b byte) byte { return b<<4 | b>>4 })
		}},
		{"exponents of scales of experts plus 1", "scale-exponent", experts, "", func(s *subject) bool {
			return s.editAll(".experts.", ".scale", tensor.F8E8M0, func(b byte) byte { return b + 1 })
		}},
		{"exponents of all scales less 1", "scale-exponent", layer + "self_attn.q_a_proj.output", "", func(s *subject) bool {
			return s.config.Windowed() && s.editAll("", ".scale", tensor.F8E8M0, func(b byte) byte { return b - 1 })
		}},
	}
}

// editAll changes the bytes of all tensors of a dtype whose names contain and end so.
func (s *subject) editAll(contain, end string, d tensor.DType, change func(byte) byte) bool {
	edited := false
	for t := range s.Tensors() {
		if strings.Contains(t.Name, contain) && strings.HasSuffix(t.Name, end) && t.DType == d {
			edited = s.edit(t.Name, func(t *tensor.Tensor) bool {
				for i, b := range t.Data {
					t.Data[i] = change(b)
				}
				return true
			}) || edited
		}
	}
	return edited
}

// recordBy records the whole pack by another arithmetic.
func (s *subject) recordBy(around func(*model.Plain) model.Arithmetic[*model.Activation]) bool {
	o := s.modelOptions()
	c, err := s.golden.Config(s.config, "")
	if err != nil {
		s.err = err
		return false
	}
	m, err := model.Load(c, s)
	if err != nil {
		s.err = err
		return false
	}
	in, err := s.golden.Input()
	if err != nil {
		s.err = err
		return false
	}
	s.golden.Replaced = map[string]tensor.Tensor{}
	plain := model.NewPlain(o)
	net := &model.Network[*model.Activation]{Model: m, Input: in, Options: o, Arithmetic: around(plain),
		Trace: &rerecorder{s}}
	if _, s.err = net.Forward(context.Background()); s.err != nil {
		return false
	}
	plain.Close(nil)
	return true
}

// rerecorder is a trace that puts what it sees in the place of golden tensors.
type rerecorder struct{ *subject }

// Stage implements model.Trace.
func (r *rerecorder) Stage(name string, a *model.Activation) error {
	if r.golden.Has(name) {
		r.record(name, a.Values)
	}
	return r.err
}

// TopK implements model.Trace.
func (r *rerecorder) TopK(name string, c *model.Choice[*model.Activation]) error {
	e, ok := r.golden.Manifest.Tensors[name]
	if !ok {
		return nil
	}
	t := tensor.Tensor{DType: e.DType, Shape: e.Shape}
	for row := range slices.Chunk(slices.Clone(c.Idx), e.Shape[len(e.Shape)-1]) {
		if strings.Contains(name, "indexer") { // packs have keys ascending, -1 last
			slices.SortFunc(row, func(a, b int) int { return cmp.Compare(uint(a), uint(b)) })
		}
		for _, i := range row {
			t.Data = binary.LittleEndian.AppendUint64(t.Data, uint64(i))
		}
	}
	r.golden.Replaced[name] = t
	return nil
}

// transposedStreams mixes streams by comb, not its transpose.
type transposedStreams struct{ *model.Plain }

// Expand implements model.Arithmetic.
func (p *transposedStreams) Expand(x, y, post, comb *model.Activation) *model.Activation {
	other, n := *comb, post.Width()
	other.Values = slices.Clone(comb.Values)
	for i := range other.Values {
		matrix, at := i/(n*n)*n*n, i%(n*n)
		other.Values[i] = comb.Values[matrix+at%n*n+at/n]
	}
	return p.Plain.Expand(x, y, post, &other)
}

// fewerIterations normalises once less.
type fewerIterations struct{ *model.Plain }

// Sinkhorn implements model.Arithmetic.
func (p *fewerIterations) Sinkhorn(z *model.Activation, g *model.Affine, iters int, eps float32) *model.Activation {
	return p.Plain.Sinkhorn(z, g, iters-1, eps)
}

// rowsFirst divides rows before columns.
type rowsFirst struct{ *model.Plain }

// Sinkhorn implements model.Arithmetic.
func (p *rowsFirst) Sinkhorn(z *model.Activation, g *model.Affine, iters int, eps float32) *model.Activation {
	y := p.Plain.Sinkhorn(z, g, iters, eps)
	n := y.Width()
	for t := range z.Rows() {
		c := make([]float64, n*n)
		for i, v := range g.Of(z.Row(t)) {
			c[i] = math.Exp(v)
		}
		sums := func(step, next int, eps float64) { // of numbers apart by step
			for k := range n {
				sum := eps
				for i := range n {
					sum += c[k*next+i*step]
				}
				for i := range n {
					c[k*next+i*step] /= sum
				}
			}
		}
		sums(1, n, 0)
		for i := range c {
			c[i] += float64(eps)
		}
		sums(1, n, float64(eps))
		for range iters - 1 {
			sums(n, 1, float64(eps))
			sums(1, n, float64(eps))
		}
		for i, v := range c {
			y.Values[t*n*n+i] = float32(v)
		}
	}
	return y
}

// laterEntries takes the rows of RoPE's tables that entries have from one row further on.
type laterEntries struct {
	*model.Plain
	half int // width of the tables
}

// Move implements model.Arithmetic.
func (p *laterEntries) Move(m *model.Move, operands ...*model.Activation) *model.Activation {
	x := operands[0]
	if len(x.Shape) == 2 && x.Width() == p.half && len(m.Shape) == 2 && m.Shape[1] == p.half {
		later := *x
		later.Values = append(slices.Clone(x.Values[x.Width():]), x.Values[:x.Width()]...)
		operands = []*model.Activation{&later}
	}
	return p.Plain.Move(m, operands...)
}

// ownWindow makes entries of the tokens of their windows alone: the others' gates are low.
type ownWindow struct{ *model.Plain }

// Pool implements model.Arithmetic.
func (p *ownWindow) Pool(kv, gate *model.Activation, ape *model.Weight, g *model.Pooling) *model.Activation {
	if g.Overlap {
		other := *gate
		other.Values = slices.Clone(gate.Values)
		for i := range other.Values {
			if i%(2*g.Width) < g.Width {
				other.Values[i] = -1e4
			}
		}
		gate = &other
	}
	return p.Plain.Pool(kv, gate, ape, g)
}

// withoutSink is a softmax over keys alone.
type withoutSink struct{ *model.Plain }

// SinkSoftmax implements model.Arithmetic.
func (p *withoutSink) SinkSoftmax(scores *model.Activation, _ *model.Weight) *model.Activation {
	return p.Softmax(scores)
}

// notRotatedBack leaves the rotation by negative angles out.
type notRotatedBack struct {
	*model.Plain
	negative *model.Activation // a table of sines
}

// Scale implements model.Arithmetic.
func (p *notRotatedBack) Scale(x *model.Activation, factor float32) *model.Activation {
	y := p.Plain.Scale(x, factor)
	if factor == -1 {
		p.negative = y
	}
	return y
}

// RoPE implements model.Arithmetic.
func (p *notRotatedBack) RoPE(x, cos, sin *model.Activation, r *model.Rotary) *model.Activation {
	if sin == p.negative {
		return x
	}
	return p.Plain.RoPE(x, cos, sin, r)
}

// otherClamp clamps nothing, or has no lower limit.
type otherClamp struct {
	*model.Plain
	above bool
}

// Clamp implements model.Arithmetic.
func (p *otherClamp) Clamp(x *model.Activation, _, high float32) *model.Activation {
	if !p.above {
		return x
	}
	return p.Plain.Clamp(x, float32(math.Inf(-1)), high)
}
