package inspect

// How the weights of experts are read: whole matrices, by as many goroutines as there are
// processors.

import (
	"context"
	"slices"

	"dsmoe/model"
	"dsmoe/model/weights"
)

// examination is experts while they are looked at.
type examination struct {
	Weights
	*weights.Reading
	again  *weights.Reading // of weights a second time, whose bytes are not counted
	spaces spare[workspace]
}

func newExamination(ctx context.Context, w Weights) *examination {
	return &examination{Weights: w, Reading: w.reading(ctx), again: weights.NewReading(ctx, w.Threads, nil)}
}

// workspace is the memory of a goroutine: two matrices of an expert.
type workspace struct{ first, second []float32 }

// arithmetic returns what products are computed with: in float32, on one processor.
func arithmetic() *model.Plain {
	return model.NewPlain(model.Options{Accumulate: model.Float32, Parallelism: 1})
}

// ExamineExperts looks at the selected experts. What cannot be read is an error that names all of it.
func ExamineExperts(ctx context.Context, w Weights, o ExpertsOptions) (*ExpertsReport, error) {
	layers, not, err := selectedExperts(&w, o.Selection)
	if err != nil {
		return nil, err
	}
	r := &ExpertsReport{Path: w.Path, Layers: []LayerExperts{}, Findings: []Observation{}, NotCounted: not, by: o.By}
	x := newExamination(ctx, w)
	for _, l := range layers {
		x.Expect(2 * l.bytes())
	}
	var suspects []*suspect
	for _, l := range layers {
		layer, found, err := x.layer(l)
		if err != nil {
			return nil, err
		}
		suspects = append(suspects, l.suspects(layer)...)
		if !o.Similarities {
			layer.Similarity = nil
		}
		r.Layers, r.Findings = append(r.Layers, *layer), append(r.Findings, found...)
	}
	twins, err := x.duplicates(suspects)
	if err != nil {
		return nil, err
	}
	r.Findings = append(r.Findings, twins...)
	slices.SortStableFunc(r.Findings, func(a, b Observation) int { return a.Layer - b.Layer })
	return r, nil
}

// bytes is the size of the experts of a layer.
func (l *layerMLPs) bytes() (n int64) {
	for _, m := range l.all {
		n += m.bytes()
	}
	return n
}

// bytes is the size of the selected matrices.
func (m *mlp) bytes() (n int64) {
	for _, w := range m.weights {
		if w != nil {
			n += w.Bytes()
		}
	}
	return n
}

// routed returns the routed experts.
func (l *layerMLPs) routed() []*mlp {
	if n := len(l.all); n > 0 && l.all[n-1].number < 0 {
		return l.all[:n-1]
	}
	return l.all
}

// layer looks at the experts of a layer, and says what is odd about them.
func (x *examination) layer(l *layerMLPs) (*LayerExperts, []Observation, error) {
	probes, err := x.probes(l)
	if err != nil {
		return nil, nil, err
	}
	all := make([]*ExpertNumbers, len(l.all))
	for i, m := range l.all {
		x.Go(func() (err error) {
			all[i], err = x.examine(m, probes, true)
			return err
		})
	}
	if err := x.Wait(); err != nil {
		return nil, nil, err
	}
	r := &LayerExperts{Layer: l.layer, Experts: []ExpertNumbers{}, Similarity: &Similarity{}}
	for i, m := range l.all {
		if m.number < 0 {
			r.Shared = all[i]
		} else {
			r.Experts = append(r.Experts, *all[i])
		}
	}
	r.spread()
	if err := x.similarities(l, r); err != nil {
		return nil, nil, err
	}
	found := r.observe()
	near, err := x.near(l, r, probes)
	return r, append(found, near...), err
}

// probes returns the inputs of the experts of a layer; nil if there are no whole experts.
func (x *examination) probes(l *layerMLPs) ([]float32, error) {
	for _, m := range l.all {
		if !m.whole() {
			continue
		}
		var norm []float32
		if l.norm != nil && countable(l.norm) == nil {
			var err error
			if norm, err = x.again.All(x.Reader, l.norm, nil); err != nil {
				return nil, err
			}
		}
		return probesOf(m.weights[gateProj].Shape[1], norm), nil
	}
	return nil, nil
}

// matrix reads a weight into the memory of dst.
func (x *examination) matrix(r *weights.Reading, w *weights.Weight, dst *[]float32) (*matrix, error) {
	values, err := r.All(x.Reader, w, *dst)
	if err != nil {
		return nil, err
	}
	*dst = values
	return &matrix{values, w.Shape[0], w.Shape[1]}, nil
}

// examine reads an expert. The first time, it counts for progress, and spectra are computed.
func (x *examination) examine(m *mlp, probes []float32, first bool) (*ExpertNumbers, error) {
	space, p := x.spaces.get(), arithmetic()
	defer x.spaces.put(space)
	defer p.Close(nil)
	reading := x.again
	if first {
		reading = x.Reading
	}
	e := &ExpertNumbers{Expert: m.number, Module: m.module, facts: &examined{}}
	for i, w := range m.weights {
		if w == nil {
			continue
		}
		values, err := x.matrix(reading, w, &space.first)
		if err != nil {
			return nil, err
		}
		n := &MatrixNumbers{Shape: w.Shape}
		e.facts.matrices[i] = values.measure(n, i == downProj)
		*[]**MatrixNumbers{&e.Gate, &e.Up, &e.Down}[i] = n
		if first {
			n.rank(values, p, space)
		}
		if m.whole() && len(probes) == probeCount*m.weights[gateProj].Shape[1] {
			e.facts.run(p, i, values, probes)
		}
	}
	if m.whole() {
		e.ZeroNeurons = e.facts.zeroNeurons()
	}
	if first { // they are many, and only matching needs them
		e.facts.responses = [downProj][]float32{}
	}
	return e, nil
}

// rank computes σ₁ and the stable rank.
func (n *MatrixNumbers) rank(m *matrix, p *model.Plain, space *workspace) {
	if n.Norm == nil {
		return
	}
	space.second = slices.Grow(space.second[:0], len(m.values))[:len(m.values)]
	m.transpose(space.second)
	n.SpectralNorm = finite(m.spectral(p, space.second))
	if s := n.SpectralNorm; s != nil && *s > 0 {
		ratio := *n.Norm / *s
		n.StableRank = finite(ratio * ratio)
	}
}

// run takes the probes through a matrix, which come in the order of projectionNames.
func (x *examined) run(p *model.Plain, projection int, m *matrix, probes []float32) {
	if projection < downProj {
		x.responses[projection] = p.Product(probes, m.values, m.cols)
		return
	}
	inner := hidden(p, x.responses[gateProj], x.responses[upProj], m.cols)
	x.output = p.Product(inner, m.values, m.cols)
}
