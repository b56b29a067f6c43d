package verify

import (
	"maps"
	"slices"

	"dsmoe/config"
	"dsmoe/model"
)

// The arithmetic that verification runs on, and what a trace of it sees.
type (
	arithmetic = model.Arithmetic[*model.Activation]
	network    = model.Network[*model.Activation]
	choice     = model.Choice[*model.Activation]
	part       = model.Part[*model.Activation]
)

// attribution is an arithmetic around another one. It computes what that computes, and
// knows for each activation which weights took part in it since the last checked
// stage.
type attribution struct {
	arithmetic
	sets map[*model.Activation]weightSet
}

// weightSet is a set of weights' names. It is not changed once an activation has it.
type weightSet map[string]struct{}

func newAttribution(inner arithmetic) *attribution {
	return &attribution{inner, map[*model.Activation]weightSet{}}
}

// weights are the names of the weights that took part in x, sorted.
func (c *attribution) weights(x *model.Activation) []string {
	return slices.Sorted(maps.Keys(c.sets[x]))
}

// checked forgets the weights of x: they took part in a checked stage.
func (c *attribution) checked(x *model.Activation) { delete(c.sets, x) }

// like gives y the weights of x, and returns it.
func (c *attribution) like(y, x *model.Activation) *model.Activation {
	c.sets[y] = c.sets[x]
	return y
}

// join gives y the weights of all operands, and returns it.
func (c *attribution) join(y *model.Activation, operands ...*model.Activation) *model.Activation {
	set := weightSet{}
	for _, x := range operands {
		maps.Copy(set, c.sets[x])
	}
	c.sets[y] = set
	return y
}

// with gives y the weights of x and those given, and returns it.
func (c *attribution) with(y, x *model.Activation, weights ...*model.Weight) *model.Activation {
	c.join(y, x)
	for _, w := range weights {
		if w.Name != "" {
			c.sets[y][w.Name] = struct{}{}
		}
	}
	return y
}

// The operations give their results the weights of their operands, and those that they
// multiply with.

// Embed implements model.Arithmetic, and so do the operations below.
func (c *attribution) Embed(w *model.Weight, ids []int) *model.Activation {
	return c.with(c.arithmetic.Embed(w, ids), nil, w)
}

func (c *attribution) Linear(x *model.Activation, l *model.Linear) *model.Activation {
	return c.with(c.arithmetic.Linear(x, l), x, &l.Weight, &l.Bias)
}

func (c *attribution) RMSNorm(x *model.Activation, weight *model.Weight, eps float64) *model.Activation {
	return c.with(c.arithmetic.RMSNorm(x, weight, eps), x, weight)
}

func (c *attribution) Add(a, b *model.Activation) *model.Activation {
	return c.join(c.arithmetic.Add(a, b), a, b)
}

func (c *attribution) SwiGLU(gate, up *model.Activation) *model.Activation {
	return c.join(c.arithmetic.SwiGLU(gate, up), gate, up)
}

func (c *attribution) Softmax(x *model.Activation) *model.Activation {
	return c.like(c.arithmetic.Softmax(x), x)
}

func (c *attribution) Float32(x *model.Activation) *model.Activation {
	return c.like(c.arithmetic.Float32(x), x)
}

func (c *attribution) Reshape(x *model.Activation, shape ...int) *model.Activation {
	return c.like(c.arithmetic.Reshape(x, shape...), x)
}

func (c *attribution) Move(m *model.Move, operands ...*model.Activation) *model.Activation {
	return c.join(c.arithmetic.Move(m, operands...), operands...)
}

func (c *attribution) RoPE(x *model.Activation, r *model.Rotary) *model.Activation {
	return c.like(c.arithmetic.RoPE(x, r), x)
}

func (c *attribution) Scores(q, k *model.Activation, first, n int, s *model.Scoring) *model.Activation {
	return c.join(c.arithmetic.Scores(q, k, first, n, s), q, k)
}

func (c *attribution) Context(probs, vT *model.Activation) *model.Activation {
	return c.join(c.arithmetic.Context(probs, vT), probs, vT)
}

func (c *attribution) Sigmoid(x *model.Activation) *model.Activation {
	return c.like(c.arithmetic.Sigmoid(x), x)
}

// AddBias counts the bias among the weights of the scores themselves: it decides which
// of them become the top-k weights.
func (c *attribution) AddBias(scores *model.Activation, bias *model.Weight) *model.Activation {
	c.with(scores, scores, bias)
	return c.arithmetic.AddBias(scores, bias)
}

func (c *attribution) Normalise(w *model.Activation) *model.Activation {
	return c.like(c.arithmetic.Normalise(w), w)
}

func (c *attribution) Scale(x *model.Activation, factor float32) *model.Activation {
	return c.like(c.arithmetic.Scale(x, factor), x)
}

// Combine leaves out the experts whose outputs are weighted with next to nothing
// wherever they were chosen: their weights hardly show in the sum.
func (c *attribution) Combine(weight *model.Activation, parts []part, order config.RoutedSum) *model.Activation {
	operands := []*model.Activation{weight}
	for _, p := range parts {
		if slices.ContainsFunc(p.Slots, func(slot int) bool { return shows(weight, slot) }) {
			operands = append(operands, p.Out)
		}
	}
	return c.join(c.arithmetic.Combine(weight, parts, order), operands...)
}

// shows says whether the top-k weight at a position of topk_idx is more than a thousandth
// of its token's largest: with less, what the expert gives hardly shows in the sum.
func shows(weights *model.Activation, slot int) bool {
	return weights.Values[slot] > slices.Max(weights.Row(slot/weights.Width()))/1000
}

func (c *attribution) AuxLoss(scores *model.Activation, idx []int, sequences int, alpha float64) *model.Activation {
	return c.like(c.arithmetic.AuxLoss(scores, idx, sequences, alpha), scores)
}
