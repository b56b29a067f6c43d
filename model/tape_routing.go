package model

import (
	"dsmoe/config"
	"dsmoe/model/internal/kernel"
)

// The loss treats the choice of experts as a constant: AddBias, GroupWorth, MaskGroups and TopK
// are Plain's methods, which record no step.

// Sigmoid adds
//
//	∂x += ∂y · y · (1 - y)
func (t *Tape) Sigmoid(x *Activation) *Activation {
	y := t.Plain.Sigmoid(x)
	return t.record(y, func(dy gradient) {
		dx := t.of(x)
		for i, v := range y.Values {
			dx[i] += float32(float64(dy[i]) * float64(v) * (1 - float64(v)))
		}
	})
}

// Normalise adds, with total a row's sum + 1e-20,
//
//	∂w[i] += (∂y[i] - Σ_j ∂y[j]·y[j]) / total
func (t *Tape) Normalise(w *Activation) *Activation {
	y := t.Plain.Normalise(w)
	return t.record(y, func(dy gradient) {
		for r := range y.Rows() {
			d, dw, shift := dy.row(r, y), t.of(w).row(r, w), 0.0
			for i, v := range y.Row(r) {
				shift += float64(d[i]) * float64(v)
			}
			total := float64(rowTotal(w.Row(r), w.format()))
			for i := range d {
				dw[i] += float32((float64(d[i]) - shift) / total)
			}
		}
	})
}

// Scale adds
//
//	∂x += ∂y · factor
func (t *Tape) Scale(x *Activation, factor float32) *Activation {
	return t.record(t.Plain.Scale(x, factor), func(dy gradient) {
		dx := t.of(x)
		for i, d := range dy {
			dx[i] += float32(d * factor)
		}
	})
}

// Combine adds, for the output out of the i-th expert of token t,
//
//	∂out          += weight[t, i] · ∂y[t]
//	∂weight[t, i] += ∂y[t] · out
func (t *Tape) Combine(weight *Activation, parts []Part[*Activation], order config.RoutedSum) *Activation {
	y := t.Plain.Combine(weight, parts, order)
	return t.record(y, func(dy gradient) {
		dw, k := t.of(weight), weight.Width()
		for _, part := range parts {
			for i, slot := range part.Slots {
				d := dy.row(slot/k, y)
				dw[slot] += float32(kernel.Dot64(d, part.Out.Row(i)))
				dout := t.of(part.Out).row(i, y)
				for c, g := range d {
					dout[c] += float32(weight.Values[slot] * g)
				}
			}
		}
	})
}

// AuxLoss adds, as AddAuxiliaryLoss makes the gradient of the auxiliary loss 1,
//
//	∂scores[b, t, e] += alpha · ce[b, e] / tokens
func (t *Tape) AuxLoss(scores *Activation, idx []int, sequences int, alpha float64) *Activation {
	return t.record(t.Plain.AuxLoss(scores, idx, sequences, alpha), func(gradient) {
		ds, ce := t.of(scores), ExpertLoad(scores, idx, sequences)
		for i := range ds {
			ds[i] += float32(alpha * ce(i) / float64(scores.Rows()))
		}
	})
}
