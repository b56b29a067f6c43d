package diagnose

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
)

// Weights of an MLP, read off its failed output. What the MLP was given and what its projections gave are known, so
// that another weight in the place of one of them is tried on a few rows first.

// mlp is an MLP of the failed layer. The rows of its activations are those of down.Got.
type mlp struct {
	name     string                                                 // "model.layers.3.mlp.experts.5"
	in       func(d *model.DeepseekDecoderLayer) *model.DeepseekMLP // where it is in a layer
	x        *model.Activation                                      // what it was given
	gate, up *model.Activation                                      // what gate_proj and up_proj gave
	down     *Failure                                               // of down_proj, as a product of its own
}

// keeping is an arithmetic that keeps what the projections of an MLP were given and gave, and how a routed sum weighs
// experts.
type keeping struct {
	bounds.Arithmetic
	of     *model.DeepseekMLP
	in     [3]*model.Activation // of gate_proj, up_proj and down_proj
	out    [3]*model.Activation
	weight *model.Activation // [tokens, k]
	parts  []model.Part[*bounds.Value]
}

// Linear implements model.Arithmetic.
func (o *keeping) Linear(x *bounds.Value, l *model.Linear) *bounds.Value {
	y := o.Arithmetic.Linear(x, l)
	for i, of := range []*model.Linear{&o.of.GateProj, &o.of.UpProj, &o.of.DownProj} {
		if l.Weight.Name == of.Weight.Name {
			o.in[i], o.out[i] = kept(x), kept(y)
		}
	}
	return y
}

// Combine implements model.Arithmetic.
func (o *keeping) Combine(weight *bounds.Value, parts []model.Part[*bounds.Value], order config.RoutedSum) *bounds.Value {
	o.weight, o.parts = kept(weight), parts
	return o.Arithmetic.Combine(weight, parts, order)
}

// kept copies a value, rounded to its dtype.
func kept(x *bounds.Value) *model.Activation {
	y := &model.Activation{Shape: []int{x.Rows(), x.Width()}, Values: make([]float32, len(x.Values)), DType: x.DType}
	for i := range y.Values {
		y.Values[i] = x.Rounded(i)
	}
	return y
}

// failedMLPs are the MLPs that may have given what failed: the one of the stage, or the experts that account for the
// tokens that are wrong, all together or each alone.
func (f *Failure) failedMLPs(ctx context.Context) (list []*mlp, together bool, err error) {
	layer := fmt.Sprintf("model.layers.%d.", f.Layer)
	add := func(name string, expert int, besides []int, in func(d *model.DeepseekDecoderLayer) *model.DeepseekMLP) {
		if err != nil || in(f.Model.Layer(f.Layer)) == nil {
			return
		}
		var m *mlp
		if m, err = f.inside(ctx, name, expert, besides, in); m != nil {
			list = append(list, m)
		}
	}
	switch {
	case f.Layer < 0 || f.Got == nil || !bounds.AllFinite(f.Want) || !bounds.AllFinite(f.Unrounded):
	case f.Kind == "mlp.output":
		add(layer+"mlp", -1, nil, func(d *model.DeepseekDecoderLayer) *model.DeepseekMLP { return d.MLP })
	case f.Kind == pack.SharedOutput:
		add(layer+sharedMLP, -1, nil, func(d *model.DeepseekDecoderLayer) *model.DeepseekMLP { return d.MoE.SharedExperts })
	case f.Kind == pack.ExpertsOutput:
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
	return list, together, err
}

// keep runs the failed layer once more and keeps what an MLP of it computes.
func (f *Failure) keep(ctx context.Context, in func(d *model.DeepseekDecoderLayer) *model.DeepseekMLP) (*keeping, error) {
	x := f.NewTrial()
	o := &keeping{of: in(x.layer)}
	x.Around = func(a bounds.Arithmetic) bounds.Arithmetic {
		o.Arithmetic = a
		return o
	}
	_, err := f.Rerun(ctx, x, []string{f.Name}, true)
	return o, err
}

// inside runs the failed layer once more and keeps what an MLP computes; nil if no row tells. Of an expert these are the
// rows of tokens that chose none of the others besides.
func (f *Failure) inside(ctx context.Context, name string, expert int, besides []int,
	in func(d *model.DeepseekDecoderLayer) *model.DeepseekMLP) (*mlp, error) {
	o, err := f.keep(ctx, in)
	if err != nil || o.out[2] == nil {
		return nil, err
	}
	down := *f
	m := &mlp{name: name, in: in, down: &down}
	down.Weights, down.Name = []string{o.of.DownProj.Weight.Name}, name+".down_proj.output"
	rows := f.Rows // of the projections' activations
	if expert >= 0 {
		rows = down.alone(o, expert, besides)
	}
	if len(rows) == 0 || slices.Max(rows) >= o.in[2].Rows() {
		return nil, nil
	}
	down.Rows, down.Input = rows, rowsAt(o.in[2], rows)
	m.x, m.gate, m.up = rowsAt(o.in[0], rows), rowsAt(o.out[0], rows), rowsAt(o.out[1], rows)
	return m, nil
}

// alone leaves of a failed routed sum what one expert gives: the others' outputs are taken from both sides, and the rest
// is divided by the expert's weight. It returns the rows of the expert's own activations.
func (f *Failure) alone(o *keeping, expert int, besides []int) (rows []int) {
	at := slices.IndexFunc(o.parts, func(p model.Part[*bounds.Value]) bool { return p.Expert == expert })
	if at < 0 {
		return nil
	}
	var compared []int
	k := o.weight.Width()
	others := map[int]bool{} // tokens that chose another one
	for _, p := range o.parts {
		if p.Expert != expert && slices.Contains(besides, p.Expert) {
			for _, slot := range p.Slots {
				others[slot/k] = true
			}
		}
	}
	for i, slot := range o.parts[at].Slots {
		if row := slices.Index(f.Rows, slot/k); row >= 0 && !others[slot/k] {
			rows, compared = append(rows, i), append(compared, row)
		}
	}
	width, sum := f.Got.Width(), *f
	f.Want, f.Unrounded, f.Deviations, f.RowWeights, f.BeyondColumns = nil, nil, nil, nil, nil
	for i, row := range compared {
		weight := float64(o.weight.Values[o.parts[at].Slots[rows[i]]])
		f.RowWeights = append(f.RowWeights, sum.RowWeights[row])
		for c := range width {
			k, own := row*width+c, float64(o.out[2].Values[rows[i]*width+c])
			others := float64(sum.Unrounded[k]) - weight*own
			f.Want = append(f.Want, float32((float64(sum.Want[k])-others)/weight))
			f.Unrounded = append(f.Unrounded, float32(own))
			unit := bounds.PrecisionOf(sum.Got.DType).Ulp(math.Max(math.Abs(float64(sum.Want[k])), math.Abs(others)))
			partial := unit * math.Sqrt(float64(o.weight.Width()+2)/12) // of the golden's partial sums
			f.Deviations = append(f.Deviations, math.Hypot(sum.tolerance(k, k)/bounds.Lambda, partial)/math.Abs(weight))
		}
	}
	f.Got = &model.Activation{Shape: []int{len(rows), width}, Values: f.Unrounded, DType: tensor.F32}
	return rows
}

// rowsAt are some rows of an activation.
func rowsAt(a *model.Activation, rows []int) *model.Activation {
	y := &model.Activation{Shape: []int{len(rows), a.Width()}, DType: a.DType}
	for _, r := range rows {
		y.Values = append(y.Values, a.Row(r)...)
	}
	return y
}

// mlpMistakes are what the reference has in the place of an MLP's weights, or of those of several experts.
func mlpMistakes(ctx context.Context, f *Failure) ([]mistake, error) {
	all, together, err := f.failedMLPs(ctx)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	var lists [][]mistake
	for _, m := range all {
		list := orderMistakes(m.down)
		if together || len(all) == 1 { // else what one of several experts does to a few tokens, another can do as well
			directions := m.down.directions()
			list = slices.Concat(list, m.scaled(), m.neurons(directions))
			if len(list) == 0 { // what a neuron does to the output, a matrix of rank 1 does as well
				list = slices.Concat(elementMistakes(m.down), m.down.rankMistakes(directions), codedMistakes(m.down))
			}
		}
		if len(list) == 0 {
			list = slices.Concat(m.others(), m.reordered())
		}
		lists = append(lists, list)
	}
	if !together {
		return slices.Concat(lists...), nil
	}
	if slices.ContainsFunc(lists, func(list []mistake) bool { return len(list) == 0 }) {
		return nil, nil
	}
	joint := lists[0][0]
	joint.undo = func(x *Trial) string {
		var said []string
		for _, list := range lists {
			before := x.Around
			x.Around = func(a bounds.Arithmetic) bounds.Arithmetic { return a }
			said = append(said, list[0].undo(x))
			own := x.Around
			x.Around = func(a bounds.Arithmetic) bounds.Arithmetic { return own(before(a)) }
		}
		return strings.Join(said, "; ")
	}
	return []mistake{joint}, nil
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

// neurons are the few neurons that differ: what is left of the golden is their columns of down_proj.
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
	return []mistake{{id: "mlp-neurons", kinds: []string{m.down.kind()}, undo: func(x *Trial) string {
		m.down.undoAlong(x, name, directions)
		of, where := "neuron", "a row of gate_proj or up_proj, or a column of down_proj"
		if len(neurons) > 1 {
			of, where = "neurons", "rows of gate_proj or up_proj, or columns of down_proj"
		}
		return fmt.Sprintf("%s differs from the reference's in %s %s: %s", m.name, of, text.Ranges(neurons), where)
	}}}
}

// others are other weights of the checkpoint in the place of one projection, or of all three: those of the layer, and
// those of the same name in other layers.
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
		for _, p := range []struct {
			role table.Role
			of   func(m *model.DeepseekMLP) *model.Linear
		}{
			{table.GateProj, func(m *model.DeepseekMLP) *model.Linear { return &m.GateProj }},
			{table.UpProj, func(m *model.DeepseekMLP) *model.Linear { return &m.UpProj }},
			{table.DownProj, func(m *model.DeepseekMLP) *model.Linear { return &m.DownProj }},
		} {
			mine := p.of(of)
			if w.Name == mine.Weight.Name || !slices.Equal(w.Shape, mine.Weight.Shape) {
				continue
			}
			changed := *of
			*p.of(&changed) = other
			if m.gives(&changed, p.role) {
				add(fmt.Sprintf("%s is not the reference's, which is stored as %s", mine.Weight.Name, w.Name),
					func(mine *model.DeepseekMLP) { *p.of(mine) = other })
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
// golden's first rows, and is nearer than ours. The trial holds the stage to its limits.
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
	y := m.down.output(plain, gate, up, down).Values
	return isNear(y, m.down.Want[:len(y)], m.down.Unrounded[:len(y)], mostLeft)
}

// output is what an MLP gives for what gate_proj and up_proj gave.
func (f *Failure) output(plain *model.Plain, gate, up *model.Activation, down *model.Linear) *model.Activation {
	if limit := float32(f.Model.Config.SwiGLULimit); limit > 0 {
		gate, up = plain.Clamp(gate, float32(math.Inf(-1)), limit), plain.Clamp(up, -limit, limit)
	}
	return plain.Linear(plain.SwiGLU(gate, up), down)
}

// isNear reports whether the distance of y to what is wanted, in root mean square, is at most a share of that of ours, and
// the same share of what is wanted itself.
func isNear[T float32 | float64](y []T, want, ours []float32, most float64) bool {
	left, before, whole := 0.0, 0.0, 0.0
	for i, v := range y {
		left += bounds.Sq(float64(v) - float64(want[i]))
		before += bounds.Sq(float64(ours[i]) - float64(want[i]))
		whole += bounds.Sq(float64(want[i]))
	}
	return left <= most*most*min(whole, before)
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

// mlpRows are the rows of an MLP that other weights are tried on.
const mlpRows = 2

// first is the first rows of an activation, exact in float32.
func (m *mlp) first(a *model.Activation) *model.Activation {
	y := rowsAt(a, indices(min(mlpRows, a.Rows())))
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

// fusedMistakes are all experts whose gate_proj and up_proj were cut out of one matrix otherwise than the reference's.
func fusedMistakes(f *Failure) (list []mistake) {
	if f.Kind != pack.ExpertsOutput || f.wrong == nil {
		return nil
	}
	for _, order := range neuronOrders(f.Model.Config.MoEIntermediateSize)[:2] {
		list = append(list, mistake{id: "rows-permuted", kinds: []string{pack.ExpertsOutput}, undo: func(x *Trial) string {
			others := indices(len(x.layer.MoE.Experts))
			for _, of := range f.wrong.experts { // whose rows are copied first
				if order.undo("", &x.layer.MoE.Experts[of]) == "" {
					return ""
				}
				others[of] = -1
			}
			if !f.nearSum(x) {
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

// findWrong finds the first token that is wrong in a failed routed sum.
func (f *Failure) findWrong(ctx context.Context) error {
	row := slices.Index(f.Beyond, true)
	if f.Kind != pack.ExpertsOutput || f.Idx == nil || row < 0 {
		return nil
	}
	k := len(f.Idx) / f.Got.Rows()
	o, err := f.keep(ctx, func(d *model.DeepseekDecoderLayer) *model.DeepseekMLP { return &d.MoE.Experts[f.Idx[row*k]] })
	if err != nil || o.in[0] == nil {
		return err
	}
	w := &token{row: row}
	for _, p := range o.parts {
		for i, slot := range p.Slots {
			if slot/o.weight.Width() != f.Rows[row] {
				continue
			}
			w.experts, w.weights = append(w.experts, p.Expert), append(w.weights, float64(o.weight.Values[slot]))
			if p.Expert == f.Idx[row*k] {
				w.x = rowsAt(o.in[0], []int{i})
				w.x.DType = tensor.F32
			}
		}
	}
	if w.x != nil {
		f.wrong = w
	}
	return nil
}

// mostWorth is the share of isNear with which a mistake of experts, tried on one token, is worth a run of the layer.
const mostWorth = 0.7

// nearSum reports whether the experts of a trial give a wrong token what the golden says, or nearly; true if there is no
// such token.
func (f *Failure) nearSum(x *Trial) bool {
	w := f.wrong
	if w == nil {
		return true
	}
	plain := model.NewPlain(model.Options{DType: tensor.F32})
	defer plain.Close(nil)
	n := f.Got.Width()
	sum := make([]float64, n)
	for i, e := range w.experts {
		m := &x.layer.MoE.Experts[e]
		for c, v := range f.output(plain, plain.Linear(w.x, &m.GateProj), plain.Linear(w.x, &m.UpProj), &m.DownProj).Values {
			sum[c] += float64(w.weights[i] * float64(v))
		}
	}
	return isNear(sum, f.Want[w.row*n:(w.row+1)*n], f.Unrounded[w.row*n:(w.row+1)*n], mostWorth)
}
