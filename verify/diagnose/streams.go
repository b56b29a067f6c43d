package diagnose

import (
	"fmt"
	"math"
	"slices"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// Mistakes of DeepSeek-V4: of streams, entries, tables of experts, and weights as it is published.

// isWindowed reports whether the failed layer is one of DeepSeek-V4.
func (f *Failure) isWindowed() bool {
	return f.Model.Config.Windowed() && f.Layer >= 0 && f.Layer < len(f.Model.Model.Layers)
}

// streamMistakes are first seen in the mixtures of streams.
func streamMistakes(f *Failure) []mistake {
	if !f.isWindowed() {
		return nil
	}
	combs := []string{"attn_hc.comb", "ffn_hc.comb"}
	return append([]mistake{
		{id: "streams-transposed", kinds: []string{"ffn_hc.input", pack.LayerOutput}, undo: func(x *Trial) string {
			x.change(func(a bounds.Arithmetic, o *operations) {
				o.expand = func(x, y, post, comb *bounds.Value) *bounds.Value {
					return a.Expand(x, y, post, a.Move(model.TransposeLast(comb.Shape), comb))
				}
			})
			return "the reference mixed the streams by comb, here they are mixed by its transpose, as transformers' " +
				"class does"
		}},
		{id: "sinkhorn-order", kinds: combs, undo: func(x *Trial) string {
			if x.Config.HyperConnections.HCSinkhornIters < 2 {
				return ""
			}
			x.change(func(a bounds.Arithmetic, o *operations) {
				// The first division changes nothing, as a softmax has made the sums.
				o.sinkhorn = func(z *bounds.Value, g *model.Affine, iters int, eps float32) *bounds.Value {
					y := a.Sinkhorn(z, g, iters-1, eps)
					rows := a.Normalise(a.Reshape(y, y.Rows(), y.Width()), model.Divisor{Eps: 1e-20})
					return a.Reshape(a.Scale(rows, 1/(1+eps)), y.Shape...)
				}
			})
			return "the reference's Sinkhorn iterations divide rows before columns, here columns before rows"
		}},
	}, nextTo("sinkhorn-iterations", "hc_sinkhorn_iters", combs,
		func(c *config.Config) *int { return &c.HyperConnections.HCSinkhornIters })...)
}

// entryMistakes are first seen in compressed keys, or in the context of attention.
func entryMistakes(f *Failure) []mistake {
	if !f.isWindowed() {
		return nil
	}
	context := []string{"self_attn.context"}
	list := []mistake{
		{id: "entry-positions", kinds: entriesOf("entries"), undo: func(x *Trial) string {
			width := x.Config.Attention.QKRopeHeadDim / 2 // of RoPE's tables
			x.change(func(a bounds.Arithmetic, o *operations) {
				o.move = func(m *model.Move, operands ...*bounds.Value) *bounds.Value {
					x := operands[0]
					if width > 0 && len(x.Shape) == 2 && x.Width() == width && len(m.Shape) == 2 && m.Shape[1] == width {
						all := len(x.Values) // rows for entries are from one row further on
						behind := model.TakeColumns(&model.Input{Batch: 1, Seq: 1}, all, width, all)
						operands = []*bounds.Value{a.Move(behind, x)}
					}
					return a.Move(m, operands...)
				}
			})
			return "the reference rotated compressed keys by the positions of the second token of their windows, " +
				"here of the first"
		}},
		{id: "entry-overlap", kinds: entriesOf("kv_norm.output"), undo: undoOverlap},
		{id: "attention-sink", kinds: context, undo: func(x *Trial) string {
			x.change(func(a bounds.Arithmetic, o *operations) {
				o.sinkSoftmax = func(scores *bounds.Value, _ *model.Weight) *bounds.Value { return a.Softmax(scores) }
			})
			return "the reference's attention lacked the sink, which takes a share of the probabilities"
		}},
		{id: "inverse-rope", kinds: []string{"self_attn.o_a_proj.input"}, undo: func(x *Trial) string {
			x.change(func(a bounds.Arithmetic, o *operations) {
				var negative *bounds.Value // sines of negative angles
				o.scale = func(x *bounds.Value, factor float32) *bounds.Value {
					y := a.Scale(x, factor)
					if factor == -1 {
						negative = y
					}
					return y
				}
				o.rope = func(x, cos, sin *bounds.Value, r *model.Rotary) *bounds.Value {
					if sin == negative {
						return x
					}
					return a.RoPE(x, cos, sin, r)
				}
			})
			return "the reference did not rotate the context back by the query's position"
		}},
	}
	list = append(list, windowMistakes(context)...)
	for by := 1; by < f.Model.Config.Windows.OGroups; by++ {
		kinds := []string{"self_attn.o_a_proj.output"}
		list = append(list, mistake{id: "output-groups", kinds: kinds, undo: func(x *Trial) string {
			w, rank := &x.layer.Windowed.OAProj.Weight, x.Config.Windows.OLoraRank
			x.change(func(a bounds.Arithmetic, o *operations) {
				o.linear = func(x *bounds.Value, l *model.Linear) *bounds.Value {
					if l.Weight.Name != w.Name {
						return a.Linear(x, l)
					}
					first := (l.Weight.FirstRow + by*rank) % w.Shape[0]
					return a.Linear(x, &model.Linear{Weight: w.Rows(first, first+rank)})
				}
			})
			return fmt.Sprintf("the groups of %s are %d further on in the reference's", w.Name, by)
		}})
	}
	return list
}

// entriesOf are the stages of a name of a layer's compressor and of its indexer.
func entriesOf(stage string) []string {
	return []string{"self_attn.compressor." + stage, "self_attn.compressor.indexer." + stage}
}

// undoOverlap makes entries of the tokens of their own windows alone.
func undoOverlap(x *Trial) string {
	x.change(func(a bounds.Arithmetic, o *operations) {
		o.pool = func(kv, gate *bounds.Value, ape *model.Weight, g *model.Pooling) *bounds.Value {
			if !g.Overlap {
				return a.Pool(kv, gate, ape, g)
			}
			in := &model.Input{Batch: kv.Shape[0], Seq: kv.Shape[1]}
			own, last := model.TakeColumns(in, 2*g.Width, g.Width, 2*g.Width), *ape // the last columns
			size := int(ape.DType.Bytes(int64(g.Width)))
			last.Shape, last.Data = []int{ape.Shape[0], g.Width}, nil
			for r := range ape.Shape[0] {
				row := ape.Tensor.Row(r).Data
				last.Data = append(last.Data, row[len(row)-size:]...)
			}
			return a.Pool(a.Move(own, kv), a.Move(own, gate), &last, &model.Pooling{Rate: g.Rate, Width: g.Width})
		}
	})
	return "the reference made compressed keys of the tokens of one window, here of the one before, too"
}

// tableMistakes are first seen in experts that a table has chosen by token ids.
func tableMistakes(f *Failure) (list []mistake) {
	if !f.isWindowed() || f.Model.Layer(f.Layer).MoE == nil || f.Model.Layer(f.Layer).MoE.Gate.TID2EID == nil {
		return nil
	}
	add := func(id string, change func(table *model.Weight) (words string)) {
		list = append(list, mistake{id: id, kinds: []string{pack.TopKIdx}, undo: func(x *Trial) string {
			table := *x.layer.MoE.Gate.TID2EID
			x.layer.MoE.Gate.TID2EID = &table
			return change(&table)
		}})
	}
	for _, by := range []int{-1, 1} {
		add("hash-table-shifted", func(table *model.Weight) string {
			table.Data = nil
			n := table.Shape[0]
			for r := range n {
				table.Data = append(table.Data, f.Model.Layer(f.Layer).MoE.Gate.TID2EID.Row((r+by+n)%n).Data...)
			}
			return fmt.Sprintf("row i of %s is row i%+d of the reference's", table.Name, -by)
		})
	}
	for l, d := range f.Model.Model.Layers {
		if l == f.Layer || !slices.Contains(f.Layers, l) || d.MoE == nil || d.MoE.Gate.TID2EID == nil {
			continue
		}
		add("hash-table", func(table *model.Weight) string {
			was := table.Name
			*table = *d.MoE.Gate.TID2EID
			return fmt.Sprintf("%s is not the reference's, which is stored as %s", was, table.Name)
		})
	}
	return list
}

// publishedMistakes are mistakes in weights as DeepSeek-V4 is published, and in limits of MLPs.
func publishedMistakes(f *Failure) []mistake {
	limit := max(f.Model.Config.Limit(f.Layer, true), f.Model.Config.Limit(f.Layer, false))
	if limit == 0 {
		return nil
	}
	list := []mistake{{id: "fp4-nibbles", kinds: slices.Concat(pack.MLPOutputs, gateStages), undo: func(x *Trial) string {
		moe := x.layer.MoE
		if moe == nil || len(moe.Experts) == 0 || moe.Experts[0].GateProj.Weight.DType != tensor.F4 {
			return ""
		}
		x.change(func(a bounds.Arithmetic, o *operations) {
			o.linear = func(x *bounds.Value, l *model.Linear) *bounds.Value {
				if l.Weight.DType != tensor.F4 {
					return a.Linear(x, l)
				}
				other := *l
				other.Weight.Data = slices.Clone(l.Weight.Data)
				for i, b := range other.Weight.Data {
					other.Weight.Data[i] = b<<4 | b>>4
				}
				return a.Linear(x, &other)
			}
		})
		return "the two FP4 codes of each byte are exchanged: the first one is the lower half"
	}}}
	for _, by := range []int{-1, 1} {
		for _, all := range []bool{true, false} { // all weights, or the failed stage's
			exponents := mistake{id: "scale-exponent",
				kinds: slices.Concat(stagesOf(table.QAProj), pack.MLPOutputs, gateStages)}
			of := ""
			if !all {
				exponents.unless, of = "scale-exponent", " of "+text.Some(f.Weights, bounds.Few, ", ")
			}
			exponents.undo = func(x *Trial) string {
				if !x.Config.Quantization.PowerOfTwo {
					return ""
				}
				x.change(func(a bounds.Arithmetic, o *operations) {
					o.linear = func(x *bounds.Value, l *model.Linear) *bounds.Value {
						y := a.Linear(x, l)
						if l.Weight.DType.Scaled() && (all || slices.Contains(f.Weights, l.Weight.Name)) {
							y = a.Scale(y, float32(math.Exp2(float64(by))))
						}
						return y
					}
				})
				return fmt.Sprintf("the exponents of the scales%s are too %s by 1: F8_E8M0 has a bias of 127", of,
					map[int]string{-1: "large", 1: "small"}[by])
			}
			list = append(list, exponents)
		}
	}
	clamped := slices.Concat(pack.MLPOutputs,
		[]string{"mlp.experts.*.down_proj.input", "mlp.shared_experts.down_proj.input"})
	return append(list,
		mistake{id: "swiglu-clamp", kinds: clamped, undo: func(x *Trial) string {
			x.change(func(_ bounds.Arithmetic, o *operations) {
				o.clamp = func(x *bounds.Value, _, _ float32) *bounds.Value { return x }
			})
			return fmt.Sprintf("the reference did not clamp the outputs of gate_proj and up_proj by swiglu_limit %g",
				limit)
		}},
		mistake{id: "swiglu-clamp", kinds: clamped, undo: func(x *Trial) string {
			x.change(func(a bounds.Arithmetic, o *operations) {
				o.clamp = func(x *bounds.Value, _, high float32) *bounds.Value {
					return a.Clamp(x, float32(math.Inf(-1)), high)
				}
			})
			return "the reference clamped the output of up_proj from above only"
		}})
}

// undoTables exchanges the thetas of RoPE, if no layer of the other one passes.
func undoTables(x *Trial) string {
	c, f, words := &x.Config, x.failed, "may be exchanged: no layer of the other one was compared"
	for _, check := range f.Checks {
		if l := check.Layer(); l >= 0 && l < len(f.Model.Model.Layers) && f.Layer >= 0 && check.Tensor == pack.StageOf(l, f.Kind) &&
			(c.CompressRate(l) > 0) != (c.CompressRate(f.Layer) > 0) {
			if check.Verdict == report.Pass {
				return ""
			}
			words = "are exchanged"
		}
	}
	if c.RoPE.RopeTheta == c.RoPE.CompressRopeTheta {
		return ""
	}
	c.RoPE.RopeTheta, c.RoPE.CompressRopeTheta = c.RoPE.CompressRopeTheta, c.RoPE.RopeTheta
	return fmt.Sprintf("rope_theta %g and compress_rope_theta %g %s", c.RoPE.CompressRopeTheta, c.RoPE.RopeTheta, words)
}
