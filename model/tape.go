package model

import (
	"slices"

	"dsmoe/config"
	"dsmoe/model/internal/kernel"
)

// Tape is the arithmetic of training. It computes Plain's activations and records a step for
// each operation, in order: a function that takes the gradient of the result and adds to the
// gradients of the operands. Gradients are float32, each contribution summed in the precision
// of Options.Accumulate. The gradient of a rounding point is the identity.
//
// With L the loss, the gradient ∂x of an activation or a weight is ∂L/∂x, of x's shape.
type Tape struct {
	*Plain      // computes the activations
	wants       func(weight string) bool
	steps       []func()
	outstanding int // steps that have yet to add to the gradient of a wanted weight
	activations map[*Activation]gradient
	weights     map[string]gradient
}

// gradient is the gradient of an activation or a weight, row-major.
type gradient []float32

// add adds x to the gradient.
func (g gradient) add(x []float32) {
	for i, v := range x {
		g[i] += v
	}
}

// row returns the gradient of row i of activation a.
func (g gradient) row(i int, a *Activation) gradient { return g[i*a.Width() : (i+1)*a.Width()] }

// NewTape returns a tape around plain. It keeps the gradients of the weights for which wants
// returns true.
func NewTape(plain *Plain, wants func(weight string) bool) *Tape {
	return &Tape{
		Plain: plain, wants: wants, activations: map[*Activation]gradient{}, weights: map[string]gradient{},
	}
}

// Scope implements Arithmetic. It takes no memory back: the steps need all activations.
func (t *Tape) Scope(x *Activation, f func(x *Activation) *Activation) *Activation { return f(x) }

// of returns ∂a, initially zeros.
func (t *Tape) of(a *Activation) gradient {
	if t.activations[a] == nil {
		t.activations[a] = make(gradient, len(a.Values))
	}
	return t.activations[a]
}

// record adds a step to the tape, and returns the step's result.
func (t *Tape) record(y *Activation, step func(dy gradient)) *Activation {
	t.steps = append(t.steps, func() { step(t.of(y)) })
	return y
}

// view records that y shares the values of x, and returns y: they share the gradient.
func (t *Tape) view(y, x *Activation) *Activation {
	t.activations[y] = t.of(x)
	return y
}

// wanted returns the gradient of a wanted weight, to which a step adds; nil for other weights. It
// is called while recording, once for each step that will add to the gradient.
func (t *Tape) wanted(w *Weight) gradient {
	if w.Name == "" || !t.wants(w.Name) {
		return nil
	}
	t.outstanding++
	if t.weights[w.Name] == nil {
		t.weights[w.Name] = make(gradient, w.Len())
	}
	return t.weights[w.Name]
}

// rewind runs the steps from the last to the first, until no gradient of a wanted weight is
// outstanding: no wanted weight depends on earlier steps.
func (t *Tape) rewind() {
	for _, step := range slices.Backward(t.steps) {
		if t.outstanding == 0 {
			return
		}
		step()
	}
}

// Embed adds
//
//	∂w[ids[i]] += ∂y[i]
func (t *Tape) Embed(w *Weight, ids []int) *Activation {
	y, dw := t.Plain.Embed(w, ids), t.wanted(w)
	if dw == nil {
		return y
	}
	return t.record(y, func(dy gradient) {
		for i, id := range ids {
			dw.row(id, y).add(dy.row(i, y))
		}
		t.outstanding--
	})
}

// Linear adds
//
//	∂x      += ∂y·weight
//	∂weight += ∂yᵀ·x
//	∂bias   += Σ_t ∂y[t]
func (t *Tape) Linear(x *Activation, l *Linear) *Activation {
	y, dw, db := t.Plain.Linear(x, l), t.wanted(&l.Weight), t.wanted(&l.Bias)
	return t.record(y, func(dy gradient) {
		in, out, rows := x.Width(), y.Width(), x.Rows()
		dyT := transposed(dy, rows, out)
		if dw != nil {
			dw.add(t.Product(dyT, transposed(x.Values, rows, in), rows))
			t.outstanding--
		}
		if db != nil {
			db.add(t.Product(slices.Repeat([]float32{1}, rows), dyT, rows))
			t.outstanding--
		}
		t.of(x).add(t.Product(dy, transposed(t.Values(&l.Weight), out, in), out))
	})
}

// transposed returns x [rows, cols] as [cols, rows].
func transposed(x []float32, rows, cols int) []float32 {
	y := make([]float32, len(x))
	for r := range rows {
		for c := range cols {
			y[c*rows+r] = x[r*cols+c]
		}
	}
	return y
}

// RMSNorm adds, with n = x·r and r = 1/sqrt(mean(x²) + eps),
//
//	∂weight += Σ_t ∂y[t] · n[t]
//	∂x      += r · (g - n · mean(g·n)),  g = ∂y · weight
func (t *Tape) RMSNorm(x *Activation, weight *Weight, eps float64) *Activation {
	y, dw, w := t.Plain.RMSNorm(x, weight, eps), t.wanted(weight), t.Values(weight)
	return t.record(y, func(dy gradient) {
		sum := make([]float64, x.Width()) // ∂weight
		for i := range x.Rows() {
			row, dx, dy, r, mean := x.Row(i), t.of(x).row(i, x), dy.row(i, x), inverseRMS(x.Row(i), eps), 0.0
			for k, v := range row {
				norm := float64(v) * r
				mean += float64(float64(dy[k]) * float64(w[k]) * norm)
				sum[k] += float64(float64(dy[k]) * norm)
			}
			mean /= float64(len(row))
			for k, v := range row {
				g := float64(dy[k]) * float64(w[k])
				dx[k] += float32(r * (g - float64(float64(v)*r*mean)))
			}
		}
		if dw != nil {
			for k, v := range sum {
				dw[k] += float32(v)
			}
			t.outstanding--
		}
	})
}

// Add adds
//
//	∂a += ∂y,  ∂b += ∂y
func (t *Tape) Add(a, b *Activation) *Activation {
	return t.record(t.Plain.Add(a, b), func(dy gradient) {
		t.of(a).add(dy)
		t.of(b).add(dy)
	})
}

// SwiGLU adds, with σ the logistic function,
//
//	∂up   += ∂y · silu(gate)
//	∂gate += ∂y · up · σ(gate) · (1 + gate·(1 - σ(gate)))
func (t *Tape) SwiGLU(gate, up *Activation) *Activation {
	return t.record(t.Plain.SwiGLU(gate, up), func(dy gradient) {
		dgate, dup := t.of(gate), t.of(up)
		for i, d := range dy {
			g, u := float64(gate.Values[i]), float64(up.Values[i])
			s := 1 / (1 + kernel.Exp(-g))
			dup[i] += float32(float64(d) * g * s)
			dgate[i] += float32(float64(d) * u * s * (1 + float64(g*(1-s))))
		}
	})
}

// SiLU adds, with s = σ(alpha·x),
//
//	∂x += ∂y · s · (1 + alpha·x·(1 - s))
func (t *Tape) SiLU(x *Activation, alpha float32) *Activation {
	return t.record(t.Plain.SiLU(x, alpha), func(dy gradient) {
		dx := t.of(x)
		for i, d := range dy {
			z := float64(x.Values[i]) * float64(alpha)
			s := 1 / (1 + kernel.Exp(-z))
			dx[i] += float32(float64(d) * s * (1 + float64(z*(1-s))))
		}
	})
}

// Multiply adds
//
//	∂a += ∂y · (b + shift),  ∂b += ∂y · a
func (t *Tape) Multiply(a, b *Activation, shift float32) *Activation {
	return t.record(t.Plain.Multiply(a, b, shift), func(dy gradient) {
		da, db := t.of(a), t.of(b)
		for i, d := range dy {
			da[i] += d * (b.Values[i] + shift)
			db[i] += d * a.Values[i]
		}
	})
}

// Softmax adds, row by row,
//
//	∂x += y · (∂y - Σ y·∂y)
func (t *Tape) Softmax(x *Activation) *Activation {
	y := t.Plain.Softmax(x)
	return t.record(y, func(dy gradient) {
		for i := range y.Rows() {
			dx, dy, sum := t.of(x).row(i, x), dy.row(i, y), 0.0
			for k, v := range y.Row(i) {
				sum += float64(v) * float64(dy[k])
			}
			for k, v := range y.Row(i) {
				dx[k] += float32(float64(v) * (float64(dy[k]) - sum))
			}
		}
	})
}

// Float32 shares the gradient.
func (t *Tape) Float32(x *Activation) *Activation { return t.view(t.Plain.Float32(x), x) }

// Reshape shares the gradient.
func (t *Tape) Reshape(x *Activation, shape ...int) *Activation {
	return t.view(t.Plain.Reshape(x, shape...), x)
}

// Move adds, for the values of each run,
//
//	∂operand[From + i·Step] += ∂y[To + i]
func (t *Tape) Move(m *Move, operands ...*Activation) *Activation {
	return t.record(t.Plain.Move(m, operands...), func(dy gradient) {
		m.Each(func(r Run) {
			dx := t.of(operands[r.Operand])
			for i, d := range dy[r.To : r.To+r.N] {
				dx[r.From+i*r.Step] += d
			}
		})
	})
}

// RoPE adds ∂y rotated back.
func (t *Tape) RoPE(x, cos, sin *Activation, r *Rotary) *Activation {
	y := t.Plain.RoPE(x, cos, sin, r)
	from, to := r.Part(x.Width())
	return t.record(y, func(dy gradient) {
		back := t.Plain.Scale(sin, -1)
		for i := range y.Rows() {
			d := append(gradient{}, dy.row(i, y)...)
			r.rotate(d[from:to], cos.Row(i%x.Shape[2]), back.Row(i%x.Shape[2]), kernel.F32)
			t.of(x).row(i, x).add(d)
		}
	})
}

// Scores adds, for each head, with q the n queries,
//
//	∂s  = ∂y · scale, or ∂y / scale
//	∂q += ∂s·k,  ∂k += ∂sᵀ·q
func (t *Tape) Scores(q, k *Activation, first, n int, s *Scoring) *Activation {
	y := t.Plain.Scores(q, k, first, n, s)
	return t.record(y, func(dy gradient) {
		seq, dim := k.Shape[2], q.Width()
		for i := range q.Shape[0] * q.Shape[1] {
			ds := append([]float32{}, dy[i*n*seq:(i+1)*n*seq]...)
			s.scale(ds)
			group := headOf(i, q, k)
			block := q.Matrix(i)[first*dim : (first+n)*dim]
			dq, dk := t.of(q)[(i*seq+first)*dim:], t.of(k)[group*seq*dim:]
			dq.add(t.Product(ds, transposed(k.Matrix(group), seq, dim), seq))
			dk.add(t.Product(transposed(ds, n, seq), transposed(block, n, dim), n))
		}
	})
}

// Context adds, for each head, with P its probabilities,
//
//	∂v += Pᵀ·∂y,  ∂P += ∂y·vᵀ
func (t *Tape) Context(probs, vT *Activation) *Activation {
	y := t.Plain.Context(probs, vT)
	return t.record(y, func(dy gradient) {
		n, seq, width := probs.Shape[2], probs.Width(), vT.Shape[2]
		for i := range probs.Shape[0] * probs.Shape[1] {
			d, group := dy[i*n*width:(i+1)*n*width], headOf(i, probs, vT)
			dv := t.of(vT)[group*width*seq:]
			dv.add(t.Product(transposed(d, n, width), transposed(probs.Matrix(i), n, seq), n))
			t.of(probs)[i*n*seq:].add(t.Product(d, transposed(vT.Matrix(group), width, seq), width))
		}
	})
}

// SoftCap adds
//
//	∂x += ∂y · (1 - (y/limit)²)
func (t *Tape) SoftCap(x *Activation, limit float32) *Activation {
	y := t.Plain.SoftCap(x, limit)
	return t.record(y, func(dy gradient) {
		dx := t.of(x)
		for i, d := range dy {
			share := float64(y.Values[i] / limit)
			dx[i] += float32(float64(d) * (1 - float64(share*share)))
		}
	})
}

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

// Normalise adds, with total the divisor of a row,
//
//	∂w[i] += (∂y[i] - Σ_j ∂y[j]·y[j]) / total
func (t *Tape) Normalise(w *Activation, divisor Divisor) *Activation {
	y := t.Plain.Normalise(w, divisor)
	return t.record(y, func(dy gradient) {
		for r := range y.Rows() {
			d, dw, shift := dy.row(r, y), t.of(w).row(r, w), 0.0
			for i, v := range y.Row(r) {
				shift += float64(d[i]) * float64(v)
			}
			total := float64(rowTotal(w.Row(r), divisor, w.format()))
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
