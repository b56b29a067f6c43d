package diagnose

import (
	"fmt"
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// Mistakes of DeepSeek-V4: of streams, windows, tables of experts, and weights as it is published.

// windowedMistakes are first seen in stages of DeepSeek-V4.
func windowedMistakes(f *Failure) []mistake {
	if !f.Model.Config.Windowed() || f.Layer < 0 || f.Layer >= len(f.Model.Model.Layers) {
		return nil
	}
	context := []string{"self_attn.context"}
	products := slices.Concat(stageOf(table.QAProj), pack.MLPOutputs, gateStages)
	combs, pooled := []string{"attn_hc.comb", "ffn_hc.comb"}, entriesOf("kv_norm.output")
	list := []mistake{
		{id: "streams-transposed", kinds: []string{"ffn_hc.input", pack.LayerOutput}, undo: undoTransposedStreams},
		{id: "sinkhorn-order", kinds: combs, undo: undoOrder},
		{id: "entry-positions", kinds: entriesOf("entries"), undo: undoPositions},
		{id: "entry-overlap", kinds: pooled, undo: undoOverlap},
		{id: "attention-sink", kinds: context, undo: undoSink},
		{id: "inverse-rope", kinds: []string{"self_attn.o_a_proj.input"}, undo: undoInverseRoPE},
		{id: "fp4-nibbles", kinds: slices.Concat(pack.MLPOutputs, gateStages), undo: undoNibbles},
	}
	for _, by := range []int{-1, 1} {
		list = append(list,
			mistake{id: "sinkhorn-iterations", kinds: combs, undo: undoIterations(by)},
			mistake{id: "sliding-window", kinds: context, undo: undoWindow(by)},
			mistake{id: "hash-table-shifted", kinds: []string{pack.TopKIdx}, undo: undoShiftedTable(by)},
			mistake{id: "scale-exponent", kinds: products, undo: undoExponents(by, true)},
			mistake{id: "scale-exponent", kinds: products, unless: "scale-exponent", undo: undoExponents(by, false)})
	}
	for group := 1; group < f.Model.Config.Windows.OGroups; group++ {
		list = append(list, mistake{id: "output-groups", kinds: []string{"self_attn.o_a_proj.output"},
			undo: undoGroupsOf(group)})
	}
	for l := range f.Model.Model.Layers {
		list = append(list, mistake{id: "hash-table", kinds: []string{pack.TopKIdx}, undo: undoOtherTable(l)})
	}
	for _, above := range []bool{false, true} {
		list = append(list, mistake{id: "swiglu-clamp", kinds: slices.Concat(pack.MLPOutputs, clampedStages),
			undo: undoClamp(above)})
	}
	return list
}

// entriesOf are the stages of a name of a layer's compressor and of its indexer.
func entriesOf(stage string) []string {
	return []string{"self_attn.compressor." + stage, "self_attn.compressor.indexer." + stage}
}

// clampedStages are the inputs of down_proj.
var clampedStages = []string{"mlp.experts.*.down_proj.input", "mlp.shared_experts.down_proj.input"}

// otherStreams is an arithmetic with mistakes of DeepSeek-V4; nil functions leave an operation as it is.
type otherStreams struct {
	bounds.Arithmetic
	expand   func(a bounds.Arithmetic, x, y, post, comb *bounds.Value) *bounds.Value
	sinkhorn func(a bounds.Arithmetic, z *bounds.Value, g *model.Affine, iters int, eps float32) *bounds.Value
	softmax  func(a bounds.Arithmetic, scores *bounds.Value) *bounds.Value
	clamp    func(a bounds.Arithmetic, x *bounds.Value, low, high float32) *bounds.Value
	linear   func(a bounds.Arithmetic, x *bounds.Value, l *model.Linear) *bounds.Value
	pool     func(a bounds.Arithmetic, kv, gate *bounds.Value, ape *model.Weight, g *model.Pooling) *bounds.Value
	later    int           // width of RoPE's tables, if entries have the positions behind theirs; else 0
	forward  bool          // nothing is rotated by negative angles
	negative *bounds.Value // sines of negative angles
}

// Expand implements model.Arithmetic.
func (o *otherStreams) Expand(x, y, post, comb *bounds.Value) *bounds.Value {
	if o.expand != nil {
		return o.expand(o.Arithmetic, x, y, post, comb)
	}
	return o.Arithmetic.Expand(x, y, post, comb)
}

// Sinkhorn implements model.Arithmetic.
func (o *otherStreams) Sinkhorn(z *bounds.Value, g *model.Affine, iters int, eps float32) *bounds.Value {
	if o.sinkhorn != nil {
		return o.sinkhorn(o.Arithmetic, z, g, iters, eps)
	}
	return o.Arithmetic.Sinkhorn(z, g, iters, eps)
}

// SinkSoftmax implements model.Arithmetic.
func (o *otherStreams) SinkSoftmax(scores *bounds.Value, sinks *model.Weight) *bounds.Value {
	if o.softmax != nil {
		return o.softmax(o.Arithmetic, scores)
	}
	return o.Arithmetic.SinkSoftmax(scores, sinks)
}

// Clamp implements model.Arithmetic.
func (o *otherStreams) Clamp(x *bounds.Value, low, high float32) *bounds.Value {
	if o.clamp != nil {
		return o.clamp(o.Arithmetic, x, low, high)
	}
	return o.Arithmetic.Clamp(x, low, high)
}

// Pool implements model.Arithmetic.
func (o *otherStreams) Pool(kv, gate *bounds.Value, ape *model.Weight, g *model.Pooling) *bounds.Value {
	if o.pool != nil {
		return o.pool(o.Arithmetic, kv, gate, ape, g)
	}
	return o.Arithmetic.Pool(kv, gate, ape, g)
}

// Move takes the rows of RoPE's tables that entries have from one row further on.
func (o *otherStreams) Move(m *model.Move, operands ...*bounds.Value) *bounds.Value {
	x := operands[0]
	if o.later > 0 && len(x.Shape) == 2 && x.Width() == o.later && len(m.Shape) == 2 && m.Shape[1] == o.later {
		all := len(x.Values)
		behind := model.TakeColumns(&model.Input{Batch: 1, Seq: 1}, all, o.later, all)
		operands = []*bounds.Value{o.Arithmetic.Move(behind, x)}
	}
	return o.Arithmetic.Move(m, operands...)
}

// Linear implements model.Arithmetic.
func (o *otherStreams) Linear(x *bounds.Value, l *model.Linear) *bounds.Value {
	if o.linear != nil {
		return o.linear(o.Arithmetic, x, l)
	}
	return o.Arithmetic.Linear(x, l)
}

// Scale remembers the sines of negative angles.
func (o *otherStreams) Scale(x *bounds.Value, factor float32) *bounds.Value {
	y := o.Arithmetic.Scale(x, factor)
	if factor == -1 {
		o.negative = y
	}
	return y
}

// RoPE implements model.Arithmetic.
func (o *otherStreams) RoPE(x, cos, sin *bounds.Value, r *model.Rotary) *bounds.Value {
	if o.forward && sin == o.negative {
		return x
	}
	return o.Arithmetic.RoPE(x, cos, sin, r)
}

// with makes the mistakes of o in a trial.
func (x *Trial) with(o otherStreams) {
	x.Around = func(a bounds.Arithmetic) bounds.Arithmetic {
		o.Arithmetic = a
		return &o
	}
}

// undoTransposedStreams mixes streams by comb, not its transpose.
func undoTransposedStreams(x *Trial) string {
	x.with(otherStreams{expand: func(a bounds.Arithmetic, x, y, post, comb *bounds.Value) *bounds.Value {
		return a.Expand(x, y, post, a.Move(model.TransposeLast(comb.Shape), comb))
	}})
	return "the reference mixed the streams by comb, here they are mixed by its transpose, as transformers' class does"
}

// undoIterations changes the number of Sinkhorn iterations.
func undoIterations(by int) func(x *Trial) string {
	return func(x *Trial) string {
		was := x.Config.HyperConnections.HCSinkhornIters
		if x.Config.HyperConnections.HCSinkhornIters += by; x.Config.HyperConnections.HCSinkhornIters < 1 {
			return ""
		}
		return fmt.Sprintf("the reference ran with hc_sinkhorn_iters %d, here it is %d",
			x.Config.HyperConnections.HCSinkhornIters, was)
	}
}

// undoOrder divides by the sums of rows first and last. The first division changes nothing, as a softmax has made
// the sums.
func undoOrder(x *Trial) string {
	if x.Config.HyperConnections.HCSinkhornIters < 2 {
		return ""
	}
	x.with(otherStreams{sinkhorn: func(a bounds.Arithmetic, z *bounds.Value, g *model.Affine, iters int,
		eps float32) *bounds.Value {
		y := a.Sinkhorn(z, g, iters-1, eps)
		rows := a.Normalise(a.Reshape(y, y.Rows(), y.Width()), model.Divisor{Eps: 1e-20})
		return a.Reshape(a.Scale(rows, 1/(1+eps)), y.Shape...)
	}})
	return "the reference's Sinkhorn iterations divide rows before columns, here columns before rows"
}

// undoPositions rotates entries by the positions behind theirs.
func undoPositions(x *Trial) string {
	x.with(otherStreams{later: x.Config.Attention.QKRopeHeadDim / 2})
	return "the reference rotated compressed keys by the positions of the second token of their windows, here of the first"
}

// undoOverlap makes entries of the tokens of their own windows alone.
func undoOverlap(x *Trial) string {
	x.with(otherStreams{pool: func(a bounds.Arithmetic, kv, gate *bounds.Value, ape *model.Weight,
		g *model.Pooling) *bounds.Value {
		if !g.Overlap {
			return a.Pool(kv, gate, ape, g)
		}
		in := &model.Input{Batch: kv.Shape[0], Seq: kv.Shape[1]}
		own := model.TakeColumns(in, 2*g.Width, g.Width, 2*g.Width)
		return a.Pool(a.Move(own, kv), a.Move(own, gate), lastColumns(ape, g.Width),
			&model.Pooling{Rate: g.Rate, Width: g.Width})
	}})
	return "the reference made compressed keys of the tokens of one window, here of the one before, too"
}

// lastColumns returns the last columns of a weight.
func lastColumns(w *model.Weight, width int) *model.Weight {
	last := *w
	size := int(w.DType.Bytes(int64(width)))
	last.Shape, last.Data = []int{w.Shape[0], width}, nil
	for r := range w.Shape[0] {
		row := w.Tensor.Row(r).Data
		last.Data = append(last.Data, row[len(row)-size:]...)
	}
	return &last
}

// undoSink leaves the sink out.
func undoSink(x *Trial) string {
	x.with(otherStreams{softmax: bounds.Arithmetic.Softmax})
	return "the reference's attention lacked the sink, which takes a share of the probabilities"
}

// undoInverseRoPE leaves the rotation of the context out.
func undoInverseRoPE(x *Trial) string {
	x.with(otherStreams{forward: true})
	return "the reference did not rotate the context back by the query's position"
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

// undoWindow changes sliding_window.
func undoWindow(by int) func(x *Trial) string {
	return func(x *Trial) string {
		was := x.Config.Windows.SlidingWindow
		if x.Config.Windows.SlidingWindow += by; x.Config.Windows.SlidingWindow < 1 {
			return ""
		}
		return fmt.Sprintf("the reference ran with sliding_window %d, here it is %d", x.Config.Windows.SlidingWindow, was)
	}
}

// undoShiftedTable moves the rows of the table of experts.
func undoShiftedTable(by int) func(x *Trial) string {
	return func(x *Trial) string {
		if x.layer.MoE == nil || x.layer.MoE.Gate.TID2EID == nil {
			return ""
		}
		t := x.layer.MoE.Gate.TID2EID
		w := *t
		w.Tensor = movedRows(w.Tensor, by)
		x.layer.MoE.Gate.TID2EID = &w
		return fmt.Sprintf("row i of %s is row i%+d of the reference's", t.Name, -by)
	}
}

// undoOtherTable puts another layer's table of experts in the place of the layer's.
func undoOtherTable(l int) func(x *Trial) string {
	return func(x *Trial) string {
		other := x.failed.Model.Model.Layers[l].MoE
		if l == x.failed.Layer || !slices.Contains(x.failed.Layers, l) || x.layer.MoE == nil || x.layer.MoE.Gate.TID2EID == nil ||
			other == nil || other.Gate.TID2EID == nil {
			return ""
		}
		was := x.layer.MoE.Gate.TID2EID.Name
		x.layer.MoE.Gate.TID2EID = other.Gate.TID2EID
		return fmt.Sprintf("%s is not the reference's, which is stored as %s", was, other.Gate.TID2EID.Name)
	}
}

// movedRows returns a matrix whose row r is row r+by of t, around its end.
func movedRows(t tensor.Tensor, by int) tensor.Tensor {
	n := t.Shape[0]
	moved := t
	moved.Data = make([]byte, 0, len(t.Data))
	for r := range n {
		moved.Data = append(moved.Data, t.Row(((r+by)%n+n)%n).Data...)
	}
	return moved
}

// undoGroupsOf moves the rows of o_a_proj by groups.
func undoGroupsOf(by int) func(x *Trial) string {
	return func(x *Trial) string {
		w, rank := &x.layer.Windowed.OAProj.Weight, x.Config.Windows.OLoraRank
		x.with(otherStreams{linear: func(a bounds.Arithmetic, x *bounds.Value, l *model.Linear) *bounds.Value {
			if l.Weight.Name != w.Name {
				return a.Linear(x, l)
			}
			first := (l.Weight.FirstRow + by*rank) % w.Shape[0]
			return a.Linear(x, &model.Linear{Weight: w.Rows(first, first+rank)})
		}})
		return fmt.Sprintf("the groups of %s are %d further on in the reference's", w.Name, by)
	}
}

// undoClamp leaves the limits of SwiGLU out, or the lower one of up_proj.
func undoClamp(above bool) func(x *Trial) string {
	return func(x *Trial) string {
		x.with(otherStreams{clamp: func(a bounds.Arithmetic, x *bounds.Value, _, high float32) *bounds.Value {
			if !above {
				return x
			}
			return a.Clamp(x, float32(math.Inf(-1)), high)
		}})
		if above {
			return "the reference clamped the output of up_proj from above only"
		}
		return fmt.Sprintf("the reference did not clamp the outputs of gate_proj and up_proj by swiglu_limit %g",
			x.Config.SwiGLULimit)
	}
}

// undoNibbles exchanges the halves of the bytes of FP4 weights.
func undoNibbles(x *Trial) string {
	if !hasForm(x.layer, tensor.F4) {
		return ""
	}
	x.with(otherStreams{linear: func(a bounds.Arithmetic, x *bounds.Value, l *model.Linear) *bounds.Value {
		if l.Weight.DType != tensor.F4 {
			return a.Linear(x, l)
		}
		other := *l
		other.Weight.Data = slices.Clone(l.Weight.Data)
		for i, b := range other.Weight.Data {
			other.Weight.Data[i] = b<<4 | b>>4
		}
		return a.Linear(x, &other)
	}})
	return "the two FP4 codes of each byte are exchanged: the first one is the lower half"
}

// undoExponents doubles or halves the products of codes with scales, of all weights or of those of the failed stage.
func undoExponents(by int, all bool) func(x *Trial) string {
	return func(x *Trial) string {
		failed := x.failed.Weights
		if !x.Config.Quantization.PowerOfTwo {
			return ""
		}
		x.with(otherStreams{linear: func(a bounds.Arithmetic, x *bounds.Value, l *model.Linear) *bounds.Value {
			y := a.Linear(x, l)
			if l.Weight.DType.Scaled() && (all || slices.Contains(failed, l.Weight.Name)) {
				y = a.Scale(y, float32(math.Exp2(float64(by))))
			}
			return y
		}})
		of := ""
		if !all {
			of = " of " + text.Some(failed, bounds.Few, ", ")
		}
		return fmt.Sprintf("the exponents of the scales%s are too %s by 1: F8_E8M0 has a bias of 127", of,
			map[int]string{-1: "large", 1: "small"}[by])
	}
}

// hasForm reports whether an expert of the layer has codes of a dtype.
func hasForm(d *model.DeepseekDecoderLayer, codes tensor.DType) bool {
	return d != nil && d.MoE != nil && len(d.MoE.Experts) > 0 && d.MoE.Experts[0].GateProj.Weight.DType == codes
}
