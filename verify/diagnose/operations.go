package diagnose

import (
	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/verify/bounds"
)

// operations is an arithmetic in which a mistake changes some operations: each is the field of its name.
type operations struct {
	bounds.Arithmetic
	linear      func(x *bounds.Value, l *model.Linear) *bounds.Value
	rmsNorm     func(x *bounds.Value, weight *model.Weight, eps float64) *bounds.Value
	layerNorm   func(x *bounds.Value, n *model.LayerNorm, eps float64) *bounds.Value
	relu        func(x *bounds.Value) *bounds.Value
	clamp       func(x *bounds.Value, low, high float32) *bounds.Value
	scale       func(x *bounds.Value, factor float32) *bounds.Value
	add         func(x, z *bounds.Value) *bounds.Value
	swiGLU      func(gate, up *bounds.Value) *bounds.Value
	tables      func(r *model.Rotary) (cos, sin *bounds.Value)
	scores      func(q, k *bounds.Value, first, n int, s *model.Scoring) *bounds.Value
	context     func(probs, vT *bounds.Value) *bounds.Value
	move        func(m *model.Move, operands ...*bounds.Value) *bounds.Value
	rope        func(x, cos, sin *bounds.Value, r *model.Rotary) *bounds.Value
	sinkSoftmax func(scores *bounds.Value, sinks *model.Weight) *bounds.Value
	pool        func(kv, gate *bounds.Value, ape *model.Weight, g *model.Pooling) *bounds.Value
	sinkhorn    func(z *bounds.Value, g *model.Affine, iters int, eps float32) *bounds.Value
	expand      func(x, y, post, comb *bounds.Value) *bounds.Value
	indexScores func(weights, s *bounds.Value, first int, mask *model.Mask) *bounds.Value
	addBias     func(scores *bounds.Value, bias *model.Weight) *bounds.Value
	groupWorth  func(scores *bounds.Value, groups, best int) *bounds.Value
	maskGroups  func(scores *bounds.Value, groups int, chosen []int, masked float32) *bounds.Value
	topK        func(scores *bounds.Value, k int) []int
	combine     func(weight *bounds.Value, parts []model.Part[*bounds.Value], order config.RoutedSum) *bounds.Value
	siLU        func(x *bounds.Value, alpha float32) *bounds.Value
	multiply    func(x, z *bounds.Value, shift float32) *bounds.Value
}

// change has a trial compute some operations otherwise: of sets fields of o, which are the operations of the arithmetic
// a.
func (x *Trial) change(of func(a bounds.Arithmetic, o *operations)) {
	before := x.Around
	x.Around = func(a bounds.Arithmetic) bounds.Arithmetic {
		a = before(a)
		o := &operations{a, a.Linear, a.RMSNorm, a.LayerNorm, a.ReLU, a.Clamp, a.Scale, a.Add, a.SwiGLU, a.Tables, a.Scores,
			a.Context, a.Move, a.RoPE, a.SinkSoftmax, a.Pool, a.Sinkhorn, a.Expand, a.IndexScores, a.AddBias, a.GroupWorth,
			a.MaskGroups, a.TopK, a.Combine, a.SiLU, a.Multiply}
		of(a, o)
		return o
	}
}

// changeProduct has a trial change the product with a weight: change gets what was multiplied, and a copy of the
// product.
func (x *Trial) changeProduct(name string, change func(in, y *bounds.Value)) {
	x.change(func(a bounds.Arithmetic, o *operations) {
		o.linear = func(x *bounds.Value, l *model.Linear) *bounds.Value {
			y := a.Linear(x, l)
			if l.Weight.Name == name {
				y = a.Move(model.OrderColumns(y.Shape, indices(y.Width())), y)
				change(x, y)
			}
			return y
		}
	})
}

// Linear and the other methods implement model.Arithmetic.
func (o *operations) Linear(x *bounds.Value, l *model.Linear) *bounds.Value { return o.linear(x, l) }

func (o *operations) RMSNorm(x *bounds.Value, weight *model.Weight, eps float64) *bounds.Value {
	return o.rmsNorm(x, weight, eps)
}

func (o *operations) LayerNorm(x *bounds.Value, n *model.LayerNorm, eps float64) *bounds.Value {
	return o.layerNorm(x, n, eps)
}

func (o *operations) ReLU(x *bounds.Value) *bounds.Value { return o.relu(x) }

func (o *operations) Clamp(x *bounds.Value, low, high float32) *bounds.Value {
	return o.clamp(x, low, high)
}

func (o *operations) Scale(x *bounds.Value, factor float32) *bounds.Value { return o.scale(x, factor) }

func (o *operations) Add(x, z *bounds.Value) *bounds.Value { return o.add(x, z) }

func (o *operations) SwiGLU(gate, up *bounds.Value) *bounds.Value { return o.swiGLU(gate, up) }

func (o *operations) Tables(r *model.Rotary) (cos, sin *bounds.Value) { return o.tables(r) }

func (o *operations) Scores(q, k *bounds.Value, first, n int, s *model.Scoring) *bounds.Value {
	return o.scores(q, k, first, n, s)
}

func (o *operations) Context(probs, vT *bounds.Value) *bounds.Value { return o.context(probs, vT) }

func (o *operations) Move(m *model.Move, operands ...*bounds.Value) *bounds.Value {
	return o.move(m, operands...)
}

func (o *operations) RoPE(x, cos, sin *bounds.Value, r *model.Rotary) *bounds.Value {
	return o.rope(x, cos, sin, r)
}

func (o *operations) SinkSoftmax(scores *bounds.Value, sinks *model.Weight) *bounds.Value {
	return o.sinkSoftmax(scores, sinks)
}

func (o *operations) Pool(kv, gate *bounds.Value, ape *model.Weight, g *model.Pooling) *bounds.Value {
	return o.pool(kv, gate, ape, g)
}

func (o *operations) Sinkhorn(z *bounds.Value, g *model.Affine, iters int, eps float32) *bounds.Value {
	return o.sinkhorn(z, g, iters, eps)
}

func (o *operations) Expand(x, y, post, comb *bounds.Value) *bounds.Value {
	return o.expand(x, y, post, comb)
}

func (o *operations) IndexScores(weights, s *bounds.Value, first int, mask *model.Mask) *bounds.Value {
	return o.indexScores(weights, s, first, mask)
}

func (o *operations) AddBias(scores *bounds.Value, bias *model.Weight) *bounds.Value {
	return o.addBias(scores, bias)
}

func (o *operations) GroupWorth(scores *bounds.Value, groups, best int) *bounds.Value {
	return o.groupWorth(scores, groups, best)
}

func (o *operations) MaskGroups(scores *bounds.Value, groups int, chosen []int, masked float32) *bounds.Value {
	return o.maskGroups(scores, groups, chosen, masked)
}

func (o *operations) TopK(scores *bounds.Value, k int) []int { return o.topK(scores, k) }

func (o *operations) SiLU(x *bounds.Value, alpha float32) *bounds.Value { return o.siLU(x, alpha) }

func (o *operations) Multiply(x, z *bounds.Value, shift float32) *bounds.Value {
	return o.multiply(x, z, shift)
}

func (o *operations) Combine(weight *bounds.Value, parts []model.Part[*bounds.Value],
	order config.RoutedSum) *bounds.Value {
	return o.combine(weight, parts, order)
}
