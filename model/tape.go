package model

import (
	"slices"

	"dsmoe/model/internal/kernel"
)

// tape records a training forward: for each step, in order, the function that adds
// to the gradients of the step's inputs, given that of its output. Gradients are
// float32, each contribution summed as Options.Accumulate says.
//
// With L the loss, the gradient of x is ∂L/∂x, of x's shape.
type tape struct {
	wants func(weight string) bool
	steps []func()
	due   int // steps that add to the gradient of a wanted weight
	grads map[string]*gradient
}

// gradient is ∂L/∂x of an activation or a weight. Views of one activation share it.
type gradient struct{ values []float32 }

// add adds g to the gradient.
func (d *gradient) add(g []float32) {
	for i, v := range g {
		d.values[i] += v
	}
}

// record adds a step to the tape. Without a tape nothing is recorded.
func (p *pass) record(step func()) {
	if p.tape != nil {
		p.tape.steps = append(p.tape.steps, step)
	}
}

// wanted returns the gradient of a weight to add to, nil if nobody asked for it. It
// is called while recording, once for each step that will add to it.
func (p *pass) wanted(w Weight) *gradient {
	if p.tape == nil || w.Name == "" || !p.tape.wants(w.Name) {
		return nil
	}
	p.tape.due++
	if p.tape.grads[w.Name] == nil {
		p.tape.grads[w.Name] = &gradient{make([]float32, w.Len())}
	}
	return p.tape.grads[w.Name]
}

// done says that a step has added to a wanted weight's gradient.
func (t *tape) done() { t.due-- }

// rewind runs the steps from the last to the first, as far as a wanted weight is
// still due: gradients further down are nobody's.
func (t *tape) rewind() {
	for _, step := range slices.Backward(t.steps) {
		if t.due == 0 {
			return
		}
		step()
	}
}

// reshaped returns a with another shape, sharing values and gradient.
func (a *Activation) reshaped(shape ...int) *Activation {
	return &Activation{Shape: shape, Values: a.Values, DType: a.DType, Weights: a.Weights, grad: a.grad}
}

// backward adds the gradients of y = x·weightᵀ + bias:
//
//	∂x      = ∂y·weight
//	∂weight = ∂yᵀ·x
//	∂bias   = Σ_t ∂y[t]
func (l *Linear) backward(p *pass, x, y *Activation) func() {
	weight, bias := p.wanted(l.Weight), p.wanted(l.Bias)
	return func() {
		in, out, rows := x.Width(), y.Width(), x.Rows()
		if weight != nil {
			weight.add(p.product(transposed(nil, y.grad.values, rows, out), transposed(nil, x.Values, rows, in), rows))
			p.tape.done()
		}
		if bias != nil {
			bias.add(p.product(onesRow(rows), transposed(nil, y.grad.values, rows, out), rows))
			p.tape.done()
		}
		stored := make([]float32, 0, in*out)
		stored, _ = l.Weight.Float32s(stored) // Load has checked the dtype
		x.grad.add(p.product(y.grad.values, transposed(nil, stored, out, in), out))
	}
}

// product returns a·bᵀ, both with rows of k numbers.
func (p *pass) product(a, b []float32, k int) []float32 {
	dst := make([]float32, len(a)/k*(len(b)/k))
	kernel.MatMul(dst, a, kernel.Matrix{Rows: len(b) / k, Cols: k, Values: b}, nil, p.Accumulate, p.Parallelism)
	return dst
}

func onesRow(n int) []float32 { return slices.Repeat([]float32{1}, n) }
