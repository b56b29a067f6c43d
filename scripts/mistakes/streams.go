package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/diagnose"
	"dsmoe/verify/pack"
)

// ofStreams are mistakes of DeepSeek-V4.
func ofStreams() []mistake {
	const layer = "model.layers.0."
	return []mistake{
		{"streams mixed by the transposed matrix", "streams-transposed", layer + "ffn_hc.input", "", planted(0)},
		{"one Sinkhorn iteration more or less", "sinkhorn-iterations", layer + "attn_hc.comb", "", planted(0)},
		{"Sinkhorn iterations that divide rows first", "sinkhorn-order", layer + "attn_hc.comb", "", planted(0)},
		{"compressed keys of the next positions", "entry-positions", "{entries}entries", "", planted(0)},
		{"compressed keys of one window", "entry-overlap", "{entries}kv_norm.output", "", planted(0)},
		{"attention without its sink", "attention-sink", layer + "self_attn.context", "", planted(0)},
		{"a context that is not rotated back", "inverse-rope", layer + "self_attn.o_a_proj.input", "", planted(0)},
		{"MLPs without the clamp", "swiglu-clamp", experts, "", planted(0)},
		{"MLPs that clamp up on one side", "swiglu-clamp", experts, "", planted(1)},
		{"sliding_window less 1", "sliding-window", layer + "self_attn.context", "", func(s *subject) bool {
			return s.config.Windowed() &&
				s.set(map[string]string{"sliding_window": strconv.Itoa(s.config.Windows.SlidingWindow - 1)})
		}},
		{"thetas of RoPE exchanged", "rope-tables", layer + "self_attn.query", "", func(s *subject) bool {
			c := s.config
			return c.Windowed() && s.set(map[string]string{"rope_theta": strconv.FormatFloat(c.RoPE.CompressRopeTheta, 'g', -1,
				64),
				"compress_rope_theta": strconv.FormatFloat(c.RoPE.RopeTheta, 'g', -1, 64)})
		}},
		{"tid2eid shifted by a row", "hash-table-shifted", topKIdx, "",
			editing("layers.0.ffn.gate.tid2eid", func(t *tensor.Tensor) bool {
				return reorder(t, func(r int) int { return (r + 1) % t.Shape[0] })
			})},
		{"groups of o_a_proj rotated", "output-groups", layer + "self_attn.o_a_proj.output", "", func(s *subject) bool {
			return s.config.Windowed() && s.edit("layers.0.attn.wo_a.weight", func(t *tensor.Tensor) bool {
				return reorder(t, func(r int) int { return (r + s.config.Windows.OLoraRank) % t.Shape[0] })
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

// planted records the whole pack anew, of a model with a form of the row's mistake.
func planted(variant int) func(*subject) bool {
	return func(s *subject) bool {
		if s.golden.IsTrace() { // which an engine computes
			return false
		}
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
		x := diagnose.Planted(m, s.golden, in, o, s.moe, s.planting, variant)
		if x == nil {
			return false
		}
		s.golden.Replaced = map[string]tensor.Tensor{}
		analysis := bounds.NewAnalysis(x.Options, nil)
		defer analysis.Close()
		net := &model.Network[*bounds.Value]{Model: &x.Model, Input: &x.In, Options: x.Options, Arithmetic: x.Around(analysis),
			Trace: &rerecorder{s}}
		_, s.err = net.Run(context.Background(), s.course(m))
		return s.err == nil
	}
}

// course is the whole decoder; where attention is not computed the layers whose MLPs have an input in the pack.
func (s *subject) course(m *model.DeepseekForCausalLM) *model.Course[*bounds.Value] {
	whole := model.WholeCourse[*bounds.Value](m, 0)
	if !m.Config.BlockOnly() {
		return whole
	}
	input := func(l int) string { return pack.StageOf(l, pack.AttentionNorm) }
	layers := slices.DeleteFunc(whole.Layers, func(l int) bool { return !s.golden.Has(input(l)) })
	return &model.Course[*bounds.Value]{Layers: layers, Given: layers, Start: func(l int) (*bounds.Value, error) {
		values, err := s.golden.Float32s(input(l))
		return bounds.Exact(&model.Activation{Shape: s.golden.Manifest.Tensors[input(l)].Shape, Values: values,
			DType: s.golden.DType}), err
	}}
}

// rerecorder is a trace that puts what it sees in the place of golden tensors.
type rerecorder struct{ *subject }

// Stage implements model.Trace.
func (r *rerecorder) Stage(name string, x *bounds.Value) error {
	if r.golden.Has(name) {
		values := make([]float32, len(x.Values))
		for i := range values {
			values[i] = x.Rounded(i)
		}
		r.record(name, values)
	}
	return r.err
}

// TopK implements model.Trace.
func (r *rerecorder) TopK(name string, c *model.Choice[*bounds.Value]) error {
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
