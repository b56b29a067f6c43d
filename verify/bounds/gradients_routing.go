package bounds

import (
	"slices"

	"dsmoe/config"
	"dsmoe/model"
)

// A mixture of experts backward, beside routing.go. The choice of experts is a
// constant of the loss: what serves it alone passes no gradient on.

// Normalise implements model.Arithmetic, total being a row's sum + 1e-20, A = ∂y/total and D = Σ
// ∂y·y/total:
//
//	∂w += A - D:  v = A²·(v_total/total² + 1/3) + Σ (∂y·y/total)²·2 + κ·(Σ (∂y·y/total)² + D²)
//	                  + ((1 - 2y)·v_∂y + Σ y²·v_∂y)/total²
//	                  + Σ_m v_wm·((A - D) + (A_m - D))²/total²
func (g *Gradients) Normalise(w *Value, d model.Divisor) *Value {
	y := g.Analysis.Normalise(w, d)
	return g.record(y, func(dy *Value, by WeightSet) error {
		dw := g.Adjoint(w)
		dw.addWeights(by)
		for t := range w.Rows() {
			from, width, total := t*w.Width(), w.Width(), 0.0
			for _, v := range w.Row(t) {
				total += float64(v)
			}
			var sum, squares, carried float64
			relative := 2.25
			for i := from; i < from+width; i++ {
				term := float64(dy.Values[i]) * float64(y.Values[i]) / total
				sum += term
				squares += Sq(term)
				carried += Sq(float64(y.Values[i])) * dy.Variance(i)
				relative += w.Variance(i) / Sq(total)
			}
			for i := from; i < from+width; i++ {
				a := float64(dy.Values[i]) / total
				v := Sq(a)*(relative+1.0/3) + 2*squares + g.kappa(width)*(squares+Sq(sum)) +
					((1-2*float64(y.Values[i]))*dy.Variance(i)+carried)/Sq(total)
				for m := from; m < from+width; m++ {
					v += w.Variance(m) * Sq((a-sum)+(float64(dy.Values[m])/total-sum)) / Sq(total)
				}
				dw.add(i, a-sum, roughly(a-sum, v))
			}
		}
		return nil
	})
}

// Scale passes ∂y·factor on, exact.
func (g *Gradients) Scale(x *Value, factor float32) *Value {
	y := g.Analysis.Scale(x, factor)
	return g.record(y, func(dy *Value, by WeightSet) error {
		dx := g.Adjoint(x)
		dx.addWeights(by)
		for i, d := range dy.Values {
			product := float64(float32(d * factor))
			dx.add(i, product, exactly(product, dy.Variance(i)*Sq(float64(factor))))
		}
		return nil
	})
}

// Combine implements model.Arithmetic, for the expert that token t chose as its i-th:
//
//	∂out          += weight[t, i]·∂y[t], exact
//	∂weight[t, i] += ∂y[t]·out, a product of hidden_size terms. What out has of its neurons' errors
//	                 is not independent from column to column:  v += Σ v_h·(∂y[t]·down)²
func (g *Gradients) Combine(weight *Value, parts []model.Part[*Value], order config.RoutedSum) *Value {
	y := g.Analysis.Combine(weight, parts, order)
	return g.record(y, func(dy *Value, by WeightSet) error {
		for _, part := range parts {
			dw, dout, k, width := g.Adjoint(weight), g.Adjoint(part.Out), weight.Width(), dy.Width()
			dw.addWeights(by)
			dout.addWeights(by)
			d, out, neurons := matrixOf(dy), matrixOf(part.Out), g.neuronErrors(part, dy, k)
			for i, slot := range part.Slots {
				row := d.part(slot/k, 1)
				into := g.product(row, out.part(i, 1), width)
				dw.add(slot, into.y[0], into.v[0]+neurons[i])
				for c, v := range row.y {
					product, vp := times(float64(v), variance(row.sigma, c), float64(weight.Values[slot]), weight.Variance(slot))
					dout.add(i*width+c, product, vp)
				}
			}
		}
		return nil
	})
}

// neuronErrors is, for each token of an expert, Σ v_h·(∂y·down)² over its neurons, 0 if these are
// the golden's.
func (g *Gradients) neuronErrors(part model.Part[*Value], dy *Value, k int) []float64 {
	errors := make([]float64, len(part.Slots))
	if part.Out.sigma == nil || len(part.Out.Products) != 1 {
		return errors
	}
	p := part.Out.Products[0]
	rows := matrix{len(part.Slots), dy.Width(), nil, nil}
	for _, slot := range part.Slots {
		rows.y = append(rows.y, dy.Row(slot/k)...)
	}
	down := &p.down.Weight
	columns := matrix{down.Shape[0], down.Shape[1], g.plain.Values(down), nil}.transposed()
	g.product(rows, columns, rows.cols).each(func(i int, y, _ float64) {
		errors[i/columns.rows] += Sq(y * float64(p.hidden[i]))
	})
	return errors
}

// AuxLoss is part of what is learned, with a gradient of 1 (AddAuxiliaryLoss), and so adds, with
// four roundings,
//
//	∂scores[b, t, e] += alpha · ce[b, e] / tokens
func (g *Gradients) AuxLoss(scores *Value, idx []int, sequences int, alpha float64) *Value {
	y := g.Analysis.AuxLoss(scores, idx, sequences, alpha)
	idx = slices.Clone(idx)
	g.Adjoint(y).add(0, 1, 0)
	return g.record(y, func(dy *Value, by WeightSet) error {
		ds, ce := g.Adjoint(scores), model.ExpertLoad(scores.Activation, idx, sequences)
		for i := range ds.sums {
			if into := float64(dy.Values[0]) * alpha * ce(i) / float64(scores.Rows()); into != 0 {
				ds.add(i, into, roughly(into, 4.0/3*Sq(into)))
			}
		}
		return nil
	})
}
