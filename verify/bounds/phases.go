package bounds

import "dsmoe/model"

// phases is an engine that computes attention in decode steps in another way than in prompts. Both ways are computed of a
// block of queries that has rows of both; decode's results wait under those of prompts until the contexts are there.
type phases struct {
	*engine // of prompts
	decode  *engine
	decodes func(batch, row int) bool
	first   int               // query of the block
	other   map[*Value]*Value // what decode gives, by what prompts give
}

// NewPhases returns the arithmetic of an engine, prompts, with the attention of decode steps as decode has it: both of
// NewEngine. decodes reports which rows of a sequence decode steps computed.
func NewPhases(prompts, decode Arithmetic, decodes func(batch, row int) bool) Arithmetic {
	return &phases{engine: prompts.(*engine), decode: decode.(*engine), decodes: decodes, other: map[*Value]*Value{}}
}

// WithPoints returns the analysis with other points of rounding. Both share their memory.
func (a *Analysis) WithPoints(p Points) *Analysis {
	other := *a
	other.points = p
	return &other
}

// Linear keeps the latent that decode multiplies.
func (p *phases) Linear(x *Value, l *model.Linear) *Value {
	p.decode.keepLatent(x, l)
	return p.engine.Linear(x, l)
}

// Scores are those of prompts, with those of decode beside them if the block has a row of a decode step.
func (p *phases) Scores(q, k *Value, first, n int, s *model.Scoring) *Value {
	y := p.engine.Scores(q, k, first, n, s)
	for t := range q.Shape[0] * n {
		if p.decodes(t/n, first+t%n) {
			p.decode.layer, p.first = p.layer, first
			p.other[y] = p.decode.Scores(q, k, first, n, s)
			break
		}
	}
	return y
}

// Softmax is that of both ways.
func (p *phases) Softmax(x *Value) *Value {
	y := p.engine.Softmax(x)
	if other := p.other[x]; other != nil {
		p.other[y] = p.decode.Softmax(other)
	}
	return y
}

// Context has the rows of decode steps from decode.
func (p *phases) Context(probs, vT *Value) *Value {
	y, other := p.engine.Context(probs, vT), p.other[probs]
	if clear(p.other); other == nil {
		return y
	}
	z := p.decode.Context(other, vT)
	if y.roundLater != z.roundLater {
		y, z = p.settle(y), p.settle(z)
	}
	both := made(y.DType, true, y.Shape...)
	heads, n := y.Shape[1], y.Shape[2]
	for t := range y.Rows() {
		from := y
		if p.decodes(t/(heads*n), p.first+t%n) {
			from = z
		}
		for i := t * y.Width(); i < (t+1)*y.Width(); i++ {
			both.Set(i, float64(from.Values[i]), from.Variance(i))
		}
	}
	both.roundLater = y.roundLater
	return both.inherit(y, z)
}
