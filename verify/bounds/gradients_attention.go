package bounds

import (
	"math"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// Attention backward, beside attention.go. Heads with the same keys and values form a group; the sum
// over the heads of a group has as many terms as the group has heads (repeat_kv).

// RoPE rotates the gradient back: two products and a sum, all exact.
func (g *Gradients) RoPE(x, cosines, sines *Value, r *model.Rotary) *Value {
	y := g.Analysis.RoPE(x, cosines, sines, r)
	return g.record(y, func(dy *Value, by WeightSet) error {
		dx, width, seq := g.Adjoint(x), x.Width(), x.Shape[2]
		from, to := r.Part(width)
		dx.addWeights(by)
		g.plain.Each(x.Rows(), 16*width, func(t int) {
			first, table := t*width+from, t%seq*r.Half
			for i := range width {
				if at := t*width + i; i < from || i >= to {
					dx.add(at, float64(dy.Values[at]), dy.Variance(at))
				}
			}
			for i := range r.Half {
				ia, ib := r.Pair(i)
				ia, ib = first+ia, first+ib
				da, db, cos, sin := dy.element(ia), dy.element(ib), cosines.element(table+i), sines.element(table+i)
				dx.addRotated(ia, da, cos, db, sin)
				dx.addRotated(ib, db, cos, uncertain{-da.y, da.v}, sin)
			}
		})
		return nil
	})
}

// addRotated adds a·cos + b·sin to element i.
func (d *adjoint) addRotated(i int, a, cos, b, sin uncertain) {
	ac, va := times(a.y, a.v, cos.y, cos.v)
	bs, vb := times(b.y, b.v, sin.y, sin.v)
	sum := float64(float32(ac + bs))
	d.add(i, sum, exactly(sum, va+vb))
}

// Scores implements model.Arithmetic, of each head:
//
//	∂s  = ∂y/scale, or ∂y·scale, exact
//	∂q += ∂s·k,  ∂k += ∂sᵀ·q:  products of as many terms as there are positions
func (g *Gradients) Scores(q, k *Value, first, n int, s *model.Scoring) *Value {
	y := g.Analysis.Scores(q, k, first, n, s)
	return g.record(y, func(dy *Value, by WeightSet) error {
		dq, dk, seq, dim := g.Adjoint(q), g.Adjoint(k), k.Shape[2], q.Width()
		dq.addWeights(by)
		dk.addWeights(by)
		rows := g.Adjoint(y).rows
		dy = g.scaled(dy, s)
		for i := range q.Shape[0] * q.Shape[1] {
			ds, group := dy.matrixAt(i), groupOf(i, q, k)
			from := (i*seq + first) * dim
			keys := k.matrixAt(group).transposed()
			g.intoQueries(ds, keys, rows, i, s).each(func(c int, y, v float64) { dq.add(from+c, y, v) })
			from = group * seq * dim
			queries := q.matrixAt(i).part(first, n)
			g.product(ds.transposed(), queries.transposed(), seq).each(func(c int, y, v float64) { dk.add(from+c, y, v) })
		}
		return nil
	})
}

// intoQueries is ∂s·k of head i: the errors of a row of ∂s are not independent where they are those of
// a softmax, of which e tells. With the mean k̄ = Σ p·k of the keys:
//
//	v = Σ carried·(k - k̄)² + sum·k̄² + common·(∂s·k)² + (Σ tilt·k)² + Σ rest·k²
func (g *Gradients) intoQueries(ds, keys matrix, e *softmaxErrors, i int, s *model.Scoring) productOf {
	if e == nil {
		return g.product(ds, keys, ds.cols)
	}
	n, seq, by := ds.rows, ds.cols, float64(s.By)
	if s.Divides {
		by = 1 / by
	}
	own, from := make([]float32, n*seq), i*n*seq
	for c := range own {
		own[c] = float32(math.Sqrt(Sq(by)*e.rest[from+c] + Sq(float64(ds.y[c]))/3))
	}
	into := g.product(matrix{n, seq, ds.y, own}, keys, seq)
	g.plain.Each(n, 8*n*seq*keys.rows, func(t int) {
		row := from + t*seq
		for c := range keys.rows {
			mean, tilted, v := 0.0, 0.0, 0.0
			column := keys.part(c, 1).y
			for j, k := range column {
				mean += e.p[row+j] * float64(k)
				tilted += e.tilt[row+j] * float64(k)
			}
			for j, k := range column {
				v += e.carried[row+j] * Sq(float64(k)-mean)
			}
			at := t*keys.rows + c
			into.v[at] += Sq(by)*(v+e.sum[i*n+t]*Sq(mean)+Sq(tilted)) + e.common[i*n+t]*Sq(into.y[at])
		}
	})
	return into
}

// scaled is the gradient of scores before their scale.
func (g *Gradients) scaled(dy *Value, s *model.Scoring) *Value {
	ds := g.result(tensor.F32, dy.Shape...)
	for i, d := range dy.Values {
		by := float64(s.By)
		if s.Divides {
			by = 1 / by
			d /= s.By
		} else {
			d *= s.By
		}
		ds.Set(i, float64(d), exactly(float64(d), dy.Variance(i)*Sq(by)))
	}
	if dy.sigma == nil {
		ds.sigma = nil
	}
	return ds
}

// Context implements model.Arithmetic, of each head, P being its probabilities:
//
//	∂v += Pᵀ·∂y, a product of as many terms as there are positions;  ∂P += ∂y·vᵀ
func (g *Gradients) Context(probs, vT *Value) *Value {
	y := g.Analysis.Context(probs, vT)
	return g.record(y, func(dy *Value, by WeightSet) error {
		dp, dv := g.Adjoint(probs), g.Adjoint(vT)
		dp.addWeights(by)
		dv.addWeights(by)
		p := probs
		if probs.shared != nil { // the elements get the errors that their rows share
			p = &Value{Activation: probs.Activation, sigma: copied(probs.sigma), shared: probs.shared}
			p.DistributeShared()
		}
		n, seq, width := probs.Shape[2], probs.Width(), vT.Shape[2]
		for i := range probs.Shape[0] * probs.Shape[1] {
			d, group := dy.matrixAt(i), groupOf(i, probs, vT)
			from := group * width * seq
			g.product(d.transposed(), p.matrixAt(i).transposed(), seq).each(func(c int, y, v float64) { dv.add(from+c, y, v) })
			from = i * n * seq
			g.product(d, vT.matrixAt(group).transposed(), width).each(func(c int, y, v float64) { dp.add(from+c, y, v) })
		}
		return nil
	})
}
