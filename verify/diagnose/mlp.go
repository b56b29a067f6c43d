package diagnose

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unsafe"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
)

// Weights of an MLP, read off its failed output. The MLP's input and the outputs of its projections are known: another
// weight is tried on a few rows first.

// mlp is an MLP of the failed layer. The rows of its activations are those of down.Got.
type mlp struct {
	name     string                                                 // "model.layers.3.mlp.experts.5"
	in       func(d *model.DeepseekDecoderLayer) *model.DeepseekMLP // where it is in a layer
	x        *model.Activation                                      // what it was given
	gate, up *model.Activation                                      // what gate_proj and up_proj gave
	down     *Failure                                               // of down_proj, as a product of its own
}

// mlpInput returns the input of the failed layer's MLPs, [tokens, hidden_size]; nil if the pack does not hold it, or if experts
// take another one or are chosen that have no weights.
func (f *Failure) mlpInput() *model.Activation {
	if moe := f.Model.Config.MoE; moe.LatentSize > 0 || moe.ZeroExperts > 0 {
		return nil
	}
	name, width := pack.StageOf(f.Layer, "post_attention_layernorm.output"), f.Model.Config.HiddenSize
	values, err := f.Pack.Float32s(name)
	if err != nil || len(values) < width*(slices.Max(f.Rows)+1) {
		return nil
	}
	return &model.Activation{Shape: []int{len(values) / width, width}, Values: values, DType: f.Pack.DType}
}

// routing returns the golden's choice of experts, [tokens, k], and the weights of their outputs; nil if the pack does
// not hold both.
func (f *Failure) routing() (idx []int, weights []float32) {
	idx, err := f.Pack.Ints(pack.StageOf(f.Layer, pack.TopKIdx))
	weights, err2 := f.Pack.Float32s(pack.StageOf(f.Layer, pack.TopKWeight))
	if err != nil || err2 != nil || len(idx) != len(weights) {
		return nil, nil
	}
	return idx, weights
}

// failedMLPs are the MLPs that may have given what failed: the one of the stage, or the experts that account for the
// tokens that are wrong, all together or each alone.
func (f *Failure) failedMLPs() (list []*mlp, together bool) {
	layer := fmt.Sprintf("model.layers.%d.", f.Layer)
	add := func(name string, expert int, besides []int, in func(d *model.DeepseekDecoderLayer) *model.DeepseekMLP) {
		if in(f.Model.Layer(f.Layer)) == nil {
			return
		}
		if m := f.inside(name, expert, besides, in); m != nil {
			list = append(list, m)
		}
	}
	switch {
	case f.Layer < 0 || f.Got == nil || !f.isFinite():
	case f.Kind == "mlp.output":
		add(layer+"mlp", -1, nil, func(d *model.DeepseekDecoderLayer) *model.DeepseekMLP { return d.MLP })
	case f.Kind == pack.SharedOutput:
		add(layer+sharedMLP, -1, nil, func(d *model.DeepseekDecoderLayer) *model.DeepseekMLP { return d.MoE.SharedExperts })
	case f.Kind == pack.ExpertsOutput && f.mlpInput() != nil:
		all, oneOf := f.culprits()
		if len(all)+len(oneOf) > bounds.Few {
			break
		}
		together = len(all) > 1
		for _, e := range slices.Concat(all, oneOf) {
			add(fmt.Sprintf("%smlp.experts.%d", layer, e), e, all,
				func(d *model.DeepseekDecoderLayer) *model.DeepseekMLP { return &d.MoE.Experts[e] })
		}
	}
	return list, together
}

// inside computes an MLP alone; nil if no row tells. For an expert it takes the rows of tokens that chose none of the
// experts besides.
func (f *Failure) inside(name string, expert int, besides []int, in func(d *model.DeepseekDecoderLayer) *model.DeepseekMLP) *mlp {
	all := f.mlpInput()
	rows, at, shares := indices(len(f.Rows)), f.Rows, []float32(nil) // of Got, of the MLP, and by what an expert's is multiplied
	if expert >= 0 {
		rows, at, shares = f.rowsOf(expert, besides)
	}
	if all == nil || len(rows) == 0 || f.Model.Config.Rules().MoE.Activation == config.SquaredReLU { // no gate_proj
		return nil
	}
	of, down := in(f.Model.Layer(f.Layer)), *f
	m := &mlp{name: name, in: in, down: &down}
	down.Weights, down.Name = []string{of.DownProj.Weight.Name}, name+".down_proj.output"
	tokens := make([]int, len(rows))
	for i, row := range rows {
		tokens[i] = f.Rows[row]
	}
	plain := model.NewPlain(f.Options)
	defer plain.Close(nil)
	m.x = rowsAt(all, tokens)
	m.gate, m.up = copyOf(plain.Linear(m.x, &of.GateProj)), copyOf(plain.Linear(m.x, &of.UpProj))
	hidden := down.hidden(plain, m.gate, m.up)
	down.Rows, down.Input = at, copyOf(hidden)
	if expert >= 0 {
		down.alone(f, rows, shares, plain.Linear(hidden, &of.DownProj))
	}
	return m
}

// rowsOf returns the rows of a failed routed sum that contain an expert and none of the experts besides, the numbers of
// these rows among the expert's own, and the weights of its output.
func (f *Failure) rowsOf(expert int, besides []int) (rows, own []int, shares []float32) {
	idx, weights := f.routing()
	n, k := 0, len(f.Idx)/f.Got.Rows() // own rows so far
	for token := range len(idx) / k {
		experts := idx[token*k:][:k]
		slot := slices.Index(experts, expert)
		if slot < 0 {
			continue
		}
		row := slices.Index(f.Rows, token)
		if row >= 0 && !slices.ContainsFunc(experts, func(e int) bool { return e != expert && slices.Contains(besides, e) }) {
			rows, own, shares = append(rows, row), append(own, n), append(shares, weights[token*k+slot])
		}
		n++
	}
	return rows, own, shares
}

// alone leaves one expert's share of a failed routed sum in some rows: the other experts' outputs are taken off ours
// and the golden, and the rest is divided by the weight of the expert's output, own.
func (f *Failure) alone(sum *Failure, rows []int, shares []float32, own *model.Activation) {
	width, k := f.Got.Width(), len(f.Idx)/f.Got.Rows()
	f.Want, f.Unrounded, f.Deviations, f.RowWeights, f.BeyondColumns = nil, nil, nil, nil, nil
	for i, row := range rows {
		weight := float64(shares[i])
		f.RowWeights = append(f.RowWeights, sum.RowWeights[row])
		for c, v := range own.Row(i) {
			at, own := row*width+c, float64(v)
			others := float64(sum.Unrounded[at]) - weight*own
			f.Want = append(f.Want, float32((float64(sum.Want[at])-others)/weight))
			f.Unrounded = append(f.Unrounded, float32(own))
			unit := bounds.PrecisionOf(sum.Got.DType).Ulp(math.Max(math.Abs(float64(sum.Want[at])), math.Abs(others)))
			partial := unit * math.Sqrt(float64(k+2)/12) // of the golden's partial sums
			f.Deviations = append(f.Deviations, math.Hypot(sum.tolerance(at, at)/bounds.Lambda, partial)/math.Abs(weight))
		}
	}
	f.Got = &model.Activation{Shape: []int{len(rows), width}, Values: f.Unrounded, DType: tensor.F32}
}

// copyOf is an activation in memory of its own.
func copyOf(a *model.Activation) *model.Activation { return rowsAt(a, indices(a.Rows())) }

// rowsAt are some rows of an activation.
func rowsAt(a *model.Activation, rows []int) *model.Activation {
	y := &model.Activation{Shape: []int{len(rows), a.Width()}, DType: a.DType}
	for _, r := range rows {
		y.Values = append(y.Values, a.Row(r)...)
	}
	return y
}

// mlpMistakes are differences of an MLP's weights, or of the weights of several experts.
func mlpMistakes(f *Failure) []mistake {
	all, together := f.failedMLPs()
	if len(all) == 0 {
		return nil
	}
	var lists [][]mistake
	for _, m := range all {
		list := slices.Concat(orderMistakes(m.down), m.scaled())
		if together || len(all) == 1 { // else what one of several experts does to a few tokens, another can do as well
			down, directions := m.down.lowRank()
			exchanged := m.exchanged()
			list = slices.Concat(list, m.neurons(directions))
			if len(list) == 0 { // what a neuron does to the output, a matrix of rank 1 does as well
				list = slices.Concat(elementMistakes(m.down),
					down.rankMistakes(directions, ", or by a few rows of gate_proj or up_proj"), codedMistakes(m.down))
			}
			list = slices.Concat(exchanged, list)
		}
		if len(list) == 0 {
			list = slices.Concat(m.others(), m.reordered())
		}
		lists = append(lists, list)
	}
	if !together {
		return slices.Concat(lists...)
	}
	if slices.ContainsFunc(lists, func(list []mistake) bool { return len(list) == 0 }) {
		return nil
	}
	joint := lists[0][0]
	joint.undo = func(x *Trial) string {
		var said []string
		for _, list := range lists {
			said = append(said, list[0].undo(x))
		}
		return strings.Join(said, "; ")
	}
	return []mistake{joint}
}

// scaled are the factors of down_proj, which are up_proj's as well if all rows have one.
func (m *mlp) scaled() []mistake {
	list := factorMistakes(m.down)
	for i, known := range list {
		list[i].undo = func(x *Trial) string {
			said, down := known.undo(x), m.in(x.layer).DownProj.Weight.Name
			if rest, whole := strings.CutPrefix(said, down+" is "); whole && strings.HasSuffix(rest, " times the reference's") {
				return m.in(x.layer).UpProj.Weight.Name + " or " + said
			}
			return said
		}
	}
	return list
}

// exchanged are two rows of gate_proj or of up_proj that are exchanged, or two columns of down_proj.
func (m *mlp) exchanged() (list []mistake) {
	list = exchangeMistakes(m.down)
	for i, known := range list {
		list[i].undo = func(x *Trial) string { return known.undo(x) + ", or the same rows of gate_proj and up_proj" }
	}
	x := newExchange(m.down)
	if x == nil || m.down.Model.Config.Rules().MoE.Activation != config.SwiGLU {
		return list
	}
	gates, ups, limit := make([][]float64, len(x.rows)), make([][]float64, len(x.rows)), m.down.limit()
	for t, row := range x.rows {
		for k, v := range m.gate.Row(row) {
			gate, up := float64(v), float64(m.up.Row(row)[k])
			if limit > 0 {
				gate, up = min(gate, limit), max(-limit, min(up, limit))
			}
			gates[t], ups[t] = append(gates[t], gate/(1+math.Exp(-gate))), append(ups[t], up)
		}
	}
	for _, p := range []struct {
		role   table.Role
		change func(t, of, other int) float64
	}{
		{table.GateProj, func(t, of, other int) float64 { return (gates[t][other] - gates[t][of]) * ups[t][of] }},
		{table.UpProj, func(t, of, other int) float64 { return gates[t][of] * (ups[t][other] - ups[t][of]) }},
	} {
		a, b, explains := x.best(1, p.change)
		if !explains {
			continue
		}
		list = append(list, mistake{id: "rows-permuted", kinds: []string{m.down.kind()}, undo: func(x *Trial) string {
			name := m.in(x.layer).Linear(p.role).Weight.Name
			x.orderProduct(name, false, exchangedOrder(m.gate.Width(), a, b, 1))
			return fmt.Sprintf("the rows of %s are in another order than the reference's: %s", name,
				exchangeInWords("row", a, b, 1))
		}})
	}
	return list
}

// neurons are a few neurons that differ: the residual lies along their columns of down_proj.
func (m *mlp) neurons(directions [][]float64) []mistake {
	w := m.down.loaded(m.down.Weights[0])
	if directions == nil || w == nil {
		return nil
	}
	plain := model.NewPlain(m.down.Options)
	defer plain.Close(nil)
	along, whole := make([]float64, w.Shape[1]), make([]float64, w.Shape[1])
	sums := make([][]float64, len(directions))
	for k := range sums {
		sums[k] = make([]float64, w.Shape[1])
	}
	for r := range w.Shape[0] {
		unit := w.Rows(r, r+1)
		for c, v := range plain.Values(&unit) {
			whole[c] += bounds.Sq(float64(v))
			for k, d := range directions {
				sums[k][c] += float64(d[r] * float64(v))
			}
		}
	}
	var neurons []int
	for c := range along {
		for k := range directions {
			along[c] += bounds.Sq(sums[k][c])
		}
		if along[c] > leastAlong*whole[c] {
			neurons = append(neurons, c)
		}
	}
	if len(neurons) != len(directions) {
		return nil
	}
	name := m.down.Weights[0]
	return []mistake{{id: "mlp-neurons", kinds: []string{m.down.kind()}, guess: true, undo: func(x *Trial) string {
		m.down.undoAlong(x, name, directions, m.down.along)
		of, where := "neuron", "a row of gate_proj or up_proj, or a column of down_proj"
		if len(neurons) > 1 {
			of, where = "neurons", "rows of gate_proj or up_proj, or columns of down_proj"
		}
		return fmt.Sprintf("%s differs from the reference's in %s %s: %s", m.name, of, text.Ranges(neurons), where)
	}}}
}

// others are other weights of the checkpoint in the place of one projection, or of all three: weights of the layer, and
// of the same name in other layers.
func (m *mlp) others() (list []mistake) {
	f, of := m.down, m.in(m.down.Model.Layer(m.down.Layer))
	add := func(words string, change func(mine *model.DeepseekMLP)) {
		list = append(list, mistake{id: "other-weight", kinds: []string{f.kind()}, undo: func(x *Trial) string {
			change(m.in(x.layer))
			return words
		}})
	}
	stem := m.name[strings.Index(m.name, ".mlp"):] + "."
	for layer, w := range f.loadedWeights() {
		if layer != f.Layer && !strings.Contains(w.Name, stem) || len(w.Shape) != 2 {
			continue
		}
		other := model.Linear{Weight: *w}
		for _, role := range []table.Role{table.GateProj, table.UpProj, table.DownProj} {
			mine := of.Linear(role)
			if w.Name == mine.Weight.Name || !slices.Equal(w.Shape, mine.Weight.Shape) {
				continue
			}
			changed := *of
			*changed.Linear(role) = other
			if m.gives(&changed, role) {
				add(fmt.Sprintf("%s is not the reference's, which is stored as %s", mine.Weight.Name, w.Name),
					func(mine *model.DeepseekMLP) { *mine.Linear(role) = other })
			}
		}
	}
	for _, l := range f.Layers {
		d := f.Model.Layer(l)
		var there []*model.DeepseekMLP
		if l != f.Layer && d.MoE == nil == (f.Model.Layer(f.Layer).MoE == nil) {
			there = []*model.DeepseekMLP{m.in(d)}
		} else if l == f.Layer && d.MoE != nil {
			for e := range d.MoE.Experts {
				there = append(there, &d.MoE.Experts[e])
			}
		}
		for _, other := range there {
			if other != nil && other.DownProj.Weight.Data != nil && other.DownProj.Weight.Name != of.DownProj.Weight.Name &&
				slices.Equal(other.DownProj.Weight.Shape, of.DownProj.Weight.Shape) && m.gives(other, "") {
				add(fmt.Sprintf("%s is not the reference's, which is stored as %s", m.name,
					strings.TrimSuffix(other.DownProj.Weight.Name, ".down_proj.weight")),
					func(mine *model.DeepseekMLP) { *mine = *other })
			}
		}
	}
	return list
}

// gives reports whether an MLP that differs in the projection changed, or in all if that is empty, gives nearly the
// golden's first rows. The trial holds the stage to its limits.
func (m *mlp) gives(of *model.DeepseekMLP, changed table.Role) bool {
	plain := model.NewPlain(model.Options{DType: tensor.F32})
	defer plain.Close(nil)
	x, gate, up := m.first(m.x), m.first(m.gate), m.first(m.up)
	if changed == table.GateProj || changed == "" {
		gate = plain.Linear(x, &of.GateProj)
	}
	if changed == table.UpProj || changed == "" {
		up = plain.Linear(x, &of.UpProj)
	}
	return m.isNear(plain, gate, up, &of.DownProj)
}

// isNear reports whether what the projections gave for the first rows makes nearly the golden.
func (m *mlp) isNear(plain *model.Plain, gate, up *model.Activation, down *model.Linear) bool {
	first := *m.down
	first.Input = first.hidden(plain, gate, up)
	return first.gives(&down.Weight)
}

// hidden is the input of down_proj for what gate_proj and up_proj gave.
func (f *Failure) hidden(plain *model.Plain, gate, up *model.Activation) *model.Activation {
	return model.Activated(plain, f.Model.Config, gate.DType, float32(f.limit()), gate, up)
}

// inExpert is the input of down_proj of a routed expert of the failed layer that takes x.
func (f *Failure) inExpert(plain *model.Plain, m *model.DeepseekMLP, x *model.Activation) *model.Activation {
	c, gate := f.Model.Config, (*model.Activation)(nil)
	if m.GateProj.Weight.Name != "" {
		gate = plain.Linear(x, &m.GateProj)
	}
	return model.Activated(plain, c, x.DType, float32(c.Limit(f.Layer, true)), gate, plain.Linear(x, &m.UpProj))
}

// limit is that of the failed MLP.
func (f *Failure) limit() float64 {
	return f.Model.Config.Limit(f.Layer, strings.Contains(f.Name, ".experts."))
}

// reordered are the rows of gate_proj, of up_proj or of both in another order than the columns of down_proj.
func (m *mlp) reordered() (list []mistake) {
	plain := model.NewPlain(model.Options{DType: tensor.F32})
	defer plain.Close(nil)
	of := m.in(m.down.Model.Layer(m.down.Layer))
	for _, order := range neuronOrders(m.gate.Width()) {
		gate, up := m.first(m.gate), m.first(m.up)
		gate, up = columnsOf(gate, up, order.of[:m.gate.Width()]), columnsOf(gate, up, order.of[m.gate.Width():])
		if m.isNear(plain, gate, up, &of.DownProj) {
			list = append(list, mistake{id: "rows-permuted", kinds: []string{m.down.kind()}, undo: func(x *Trial) string {
				return order.undo(m.name, m.in(x.layer))
			}})
		}
	}
	return list
}

// first is the first rows of an activation, exact in float32.
func (m *mlp) first(a *model.Activation) *model.Activation {
	y := rowsAt(a, indices(min(sampledRows, a.Rows())))
	y.DType = tensor.F32
	return y
}

// columnsOf are columns of two activations side by side.
func columnsOf(a, b *model.Activation, columns []int) *model.Activation {
	y := &model.Activation{Shape: []int{a.Rows(), len(columns)}, DType: a.DType}
	for r := range a.Rows() {
		for _, c := range columns {
			y.Values = append(y.Values, slices.Concat(a.Row(r), b.Row(r))[c])
		}
	}
	return y
}

// neuronOrder is another order of the rows of gate_proj and, behind them, of up_proj.
type neuronOrder struct {
	words string
	of    []int // row i of the reference's is row of[i] of ours
}

// neuronOrders are those that are tried, of MLPs of n neurons.
func neuronOrders(n int) (list []neuronOrder) {
	add := func(words string, of func(i int) int) {
		list = append(list, neuronOrder{words, nil})
		for i := range 2 * n {
			list[len(list)-1].of = append(list[len(list)-1].of, of(i))
		}
	}
	add("the reference's gate_proj and up_proj alternate in the rows of ours, one behind the other",
		func(i int) int { return i%n*2 + i/n })
	add("rows of ours alternate in the reference's gate_proj and up_proj, one behind the other",
		func(i int) int { return i%2*n + i/2 })
	for _, p := range []struct {
		words string
		of    func(i int) int
	}{
		{"reversed", func(i int) int { return n - 1 - i }},
		{"exchanged in halves", func(i int) int { return (i + n/2) % n }},
	} {
		add("the rows of gate_proj are "+p.words, func(i int) int {
			if i < n {
				return p.of(i)
			}
			return i
		})
		add("the rows of up_proj are "+p.words, func(i int) int {
			if i < n {
				return i
			}
			return n + p.of(i-n)
		})
		add("the rows of gate_proj and up_proj are "+p.words+", the columns of down_proj are not",
			func(i int) int { return i/n*n + p.of(i%n) })
	}
	return list
}

// undo gives an MLP the reference's order.
func (o *neuronOrder) undo(name string, m *model.DeepseekMLP) string {
	n := len(o.of) / 2
	if gate, up := &m.GateProj.Weight, &m.UpProj.Weight; gate.Scales != nil || gate.DType != up.DType || n != gate.Shape[0] {
		return ""
	}
	rows := func(order []int) (data []byte) {
		for _, r := range order {
			w := &m.GateProj.Weight
			if r >= n {
				w = &m.UpProj.Weight
			}
			data = append(data, w.Row(r%n).Data...)
		}
		return data
	}
	gate, up := rows(o.of[:n]), rows(o.of[n:])
	m.GateProj.Weight.Data, m.UpProj.Weight.Data = gate, up
	return name + ": " + o.words
}

// fusedMistakes are experts whose gate_proj and up_proj were cut out of one matrix in another way, or whose neurons are in
// another order in some of their projections.
func fusedMistakes(f *Failure) (list []mistake) {
	if f.Kind != pack.ExpertsOutput || f.wrong == nil {
		return nil
	}
	for _, order := range neuronOrders(f.Model.Config.MoE.MoEIntermediateSize) {
		list = append(list, mistake{id: "rows-permuted", kinds: []string{pack.ExpertsOutput}, undo: func(x *Trial) string {
			others := indices(len(x.layer.MoE.Experts))
			for _, of := range f.wrong.experts { // whose rows are copied first
				if order.undo("", &x.layer.MoE.Experts[of]) == "" {
					return ""
				}
				others[of] = -1
			}
			near := f.nearSum(x)
			clear(f.wrong.outputs) // with which the rows are in memory
			if !near {
				return ""
			}
			for _, e := range others {
				if e >= 0 && order.undo("", &x.layer.MoE.Experts[e]) == "" {
					return ""
				}
			}
			return "all experts: " + order.words
		}})
	}
	return list
}

// wrongToken returns the first wrong token of a failed routed sum, nil at other stages.
func (f *Failure) wrongToken() *token {
	row := slices.Index(f.Beyond, true)
	if f.Kind != pack.ExpertsOutput || f.Idx == nil || row < 0 {
		return nil
	}
	x, k := f.mlpInput(), len(f.Idx)/f.Got.Rows()
	idx, weights := f.routing()
	first := f.Rows[row] * k
	if x == nil || first+k > len(idx) {
		return nil
	}
	w := &token{row, rowsAt(x, f.Rows[row:row+1]), idx[first:][:k], weights[first:][:k], map[mlpData][]float32{}}
	w.x.DType = tensor.F32
	return w
}

// mostWorth is the largest share for isNear: a mistake of experts that leaves more of one token's error is not worth a
// run of the layer.
const mostWorth = 0.7

// nearSum reports whether the experts of a trial give the wrong token nearly the golden; true without such a token.
func (f *Failure) nearSum(x *Trial) bool {
	w := f.wrong
	if w == nil {
		return true
	}
	plain := model.NewPlain(model.Options{DType: tensor.F32})
	defer plain.Close(nil)
	n := f.Got.Width()
	sum := make([]float64, n)
	for c := range sum {
		sum[c] = f.beside(w.row*n + c)
	}
	for i, e := range w.experts {
		m := &x.layer.MoE.Experts[e]
		var of mlpData
		for i, w := range []*model.Weight{&m.GateProj.Weight, &m.UpProj.Weight, &m.DownProj.Weight} {
			of.codes[i], of.scales[i] = unsafe.SliceData(w.Data), unsafe.SliceData(w.Scales)
		}
		if w.outputs[of] == nil {
			w.outputs[of] = slices.Clone(plain.Linear(f.inExpert(plain, m, w.x), &m.DownProj).Values)
		}
		for c, v := range w.outputs[of] {
			sum[c] += float64(float64(w.weights[i]) * float64(v))
		}
	}
	return isNear(sum, f.Want[w.row*n:(w.row+1)*n], f.Unrounded[w.row*n:(w.row+1)*n], mostWorth)
}
