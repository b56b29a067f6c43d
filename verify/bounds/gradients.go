package bounds

import (
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// Gradients is the arithmetic of a backward pass that is held to the error analysis: what an
// analysis computes and, for each operation, in order, the step that computes from the gradient
// of its result, with a variance, what it adds to those of its operands. The formulas are those
// of model.Tape, the order of operations and the roundings those of autograd.
//
// As in local mode forward, operands are the golden's own wherever the pack has them: then a
// step begins with exact numbers. With L the loss, the gradient ∂x of an activation or a weight
// is ∂L/∂x, of x's shape. Formulas in comments are in units of u² for variances, of float32
// references: others have no gradients.
type Gradients struct {
	*Analysis
	Steps    []func() error      // from the first operation to the last
	adjoints map[*Value]*adjoint // of values since the last rewind
	depth    int                 // of scopes
	// Wanted reports whether the gradient of a weight is to be computed; OnWeight is called with it.
	Wanted   func(weight string) bool
	OnWeight func(weight string, gradient *Value, by WeightSet) error // may not be nil where Wanted is true
	// gradients that another operation will add to: of a tied embedding
	shared map[string]*Value
	// the weight that the embedding and the head share; empty if none
	Tied string
}

// adjoint is the gradient of a value while its consumers add to it.
type adjoint struct {
	sums []addends
	By   WeightSet // weights that it was multiplied by since the last golden
	// rows are the errors that elements of a row share, in the gradient of a softmax's operand.
	rows *softmaxErrors
}

// addends are an element of a gradient: y with variance v, of n contributions, the sum of whose
// squares is kept.
type addends struct {
	y, v, squares float64
	n             int
}

// NewGradients returns an arithmetic for one pass over m.
func NewGradients(a *Analysis, m *model.DeepseekForCausalLM) *Gradients {
	g := &Gradients{Analysis: a, adjoints: map[*Value]*adjoint{}, shared: map[string]*Value{}}
	if m.LMHead.Weight.Name == m.Model.EmbedTokens.Name {
		g.Tied = m.LMHead.Weight.Name
	}
	return g
}

// Scope implements model.Arithmetic. What a layer computes is needed until its gradients are
// known: only the outermost scope, a layer's, takes memory back.
func (g *Gradients) Scope(x *Value, f func(x *Value) *Value) *Value {
	if g.depth > 0 {
		return f(x)
	}
	g.depth++
	defer func() { g.depth-- }()
	return g.Analysis.Scope(x, f)
}

// Adjoint returns the adjoint of x, zeros at first.
func (g *Gradients) Adjoint(x *Value) *adjoint {
	if g.adjoints[x] == nil {
		g.adjoints[x] = &adjoint{sums: make([]addends, len(x.Values)), By: WeightSet{}}
	}
	return g.adjoints[x]
}

// add adds y with variance v to element i.
func (d *adjoint) add(i int, y, v float64) {
	s := &d.sums[i]
	s.y, s.v, s.squares, s.n = s.y+y, s.v+v, s.squares+Sq(y), s.n+1
}

// Set makes x's gradient what is known of it.
func (g *Gradients) Set(x, gradient *Value) {
	d := g.Adjoint(x)
	for i, y := range gradient.Values {
		d.sums[i] = addends{y: float64(y), v: gradient.Variance(i), n: 1}
	}
	d.By, d.rows = WeightSet{}, nil
}

// total is the sum of an element's n contributions: one is itself, of two the sum is exact, and of
// more, whose order is autograd's,
//
//	v = Σ v_c + n/6·(Σ c² + y²)
func (s *addends) total() (y, v float64) {
	switch s.n {
	case 0, 1:
		return s.y, s.v
	case 2:
		y = float64(float32(s.y))
		return y, exactly(y, s.v)
	}
	return s.y, roughly(s.y, s.v+float64(float64(s.n)/6*(s.squares+Sq(s.y))))
}

// Total returns the gradient of x as its consumers left it.
func (g *Gradients) Total(x *Value) *Value {
	d := g.Adjoint(x)
	y := g.result(tensor.F32, x.Shape...)
	y.roundLater = false
	certain := true
	for i := range d.sums {
		sum, v := d.sums[i].total()
		y.Set(i, sum, v)
		certain = certain && v == 0
	}
	if certain {
		y.sigma = nil
	}
	return y
}

// record adds a step behind the operation that gave y, and returns y.
func (g *Gradients) record(y *Value, step func(dy *Value, by WeightSet) error) *Value {
	g.Steps = append(g.Steps, func() error {
		if g.adjoints[y] == nil { // nothing depends on it
			return nil
		}
		return step(g.Total(y), g.Adjoint(y).By)
	})
	return y
}

// view gives y, which has the values of x, the gradient of x.
func (g *Gradients) view(y, x *Value) *Value {
	g.adjoints[y] = g.Adjoint(x)
	return y
}

// Rewind runs the steps from the last to the first, and forgets them.
func (g *Gradients) Rewind() error {
	for _, step := range slices.Backward(g.Steps) {
		if err := step(); err != nil {
			return err
		}
	}
	g.Steps, g.adjoints = nil, map[*Value]*adjoint{}
	return nil
}

// passOn adds a gradient, unchanged, to the gradient of x.
func (g *Gradients) passOn(x, dy *Value, by WeightSet) {
	d := g.Adjoint(x)
	d.addWeights(by)
	for i, y := range dy.Values {
		d.add(i, float64(y), dy.Variance(i))
	}
}

// addWeights adds weights to the gradient's set.
func (d *adjoint) addWeights(by WeightSet, names ...string) {
	for name := range by {
		d.By[name] = struct{}{}
	}
	for _, name := range names {
		d.By[name] = struct{}{}
	}
}

// handOn hands on the gradient of a weight. What a tied embedding is given comes first, since the
// first layer is rewound before the head: it waits for the head's.
func (g *Gradients) handOn(w *model.Weight, by WeightSet, gradient func() *Value) error {
	if w.Name == "" || !g.Wanted(w.Name) {
		return nil
	}
	dw := gradient()
	if w.Name != g.Tied {
		return g.OnWeight(w.Name, dw, by)
	}
	other := g.shared[w.Name]
	if other == nil {
		g.shared[w.Name] = &Value{Activation: copied(dw.Activation), sigma: copied(dw.sigma)}
		return nil
	}
	for i, y := range dw.Values {
		y := float64(float32(float64(y) + float64(other.Values[i])))
		other.Set(i, y, exactly(y, dw.Variance(i)+other.Variance(i)))
	}
	return g.OnWeight(w.Name, other, by)
}

// Embed gives each row of w the sum over its tokens, of n terms in their order:
//
//	∂w[ids[i]] += ∂y[i]:  v = Σ v_∂y + n/6·(Σ ∂y² + ∂w²)
func (g *Gradients) Embed(w *model.Weight, ids []int) *Value {
	y := g.Analysis.Embed(w, ids)
	return g.record(y, func(dy *Value, by WeightSet) error {
		return g.handOn(w, by, func() *Value {
			width, rows := y.Width(), map[int]*adjoint{}
			for i, id := range ids {
				if rows[id] == nil {
					rows[id] = &adjoint{sums: make([]addends, width)}
				}
				for c := range width {
					rows[id].add(c, float64(dy.Values[i*width+c]), dy.Variance(i*width+c))
				}
			}
			dw := g.result(tensor.F32, w.Shape...)
			clear(dw.Values)
			clear(dw.sigma.Values)
			for id, row := range rows {
				for c := range row.sums {
					sum, v := row.sums[c].total()
					dw.Set(id*width+c, sum, v)
				}
			}
			return dw
		})
	})
}

// Linear implements model.Arithmetic: three products, the last two with as many terms as there
// are tokens.
//
//	∂x      += ∂y·weight
//	∂weight += ∂yᵀ·x
//	∂bias   += Σ_t ∂y[t]
func (g *Gradients) Linear(x *Value, l *model.Linear) *Value {
	y := g.Analysis.Linear(x, l)
	return g.record(y, func(dy *Value, by WeightSet) error {
		d, in := matrixOf(dy), x.Width()
		dT := d.transposed()
		if err := g.handOn(&l.Weight, by, func() *Value {
			xT := matrixOf(x).transposed()
			dw := g.gradient(g.product(dT, xT, d.rows), d.cols, in)
			dw.ColumnsShare = x.sigma != nil || xT.repeats()
			return dw
		}); err != nil {
			return err
		}
		ones := matrix{1, d.rows, slices.Repeat([]float32{1}, d.rows), nil}
		if err := g.handOn(&l.Bias, by, func() *Value {
			return g.gradient(g.product(ones, dT, d.rows),
				d.cols)
		}); err != nil {
			return err
		}
		w := matrix{d.cols, in, g.plain.Values(&l.Weight), g.weightSigmas(&l.Weight)}
		dx := g.Adjoint(x)
		dx.addWeights(by, l.Weight.Name)
		g.product(d, w.transposed(), d.cols).each(dx.add)
		return nil
	})
}

// weightSigmas are the standard deviations, in units of u, of a weight that was rounded; nil of
// others.
func (g *Gradients) weightSigmas(w *model.Weight) []float32 {
	how := g.rounded[w.Name]
	if how.By == "" {
		return nil
	}
	steps := g.stepsOf(w)
	if steps == nil {
		steps = halfSteps(w, how)
	}
	sigmas := make([]float32, len(steps))
	for i, h := range steps {
		sigmas[i] = float32(float64(h) / (Unit * math.Sqrt(3)))
	}
	return sigmas
}

// RMSNorm implements model.Arithmetic, of H columns, with n = x·r, r = 1/sqrt(mean(x²) + eps),
// g = ∂y·weight, m = mean(g·n), and the two parts that autograd adds up, A = g·r and B = -n·r·m:
//
//	∂weight += Σ_t ∂y[t]·n[t], a product of as many terms as there are tokens; n: v = n²·v_r + r²·v_x
//	∂x      += A + B: see normBackward
func (g *Gradients) RMSNorm(x *Value, weight *model.Weight, eps float64) *Value {
	y := g.Analysis.RMSNorm(x, weight, eps)
	return g.record(y, func(dy *Value, by WeightSet) error {
		if err := g.handOn(weight, by, func() *Value { return g.normWeight(x, dy, eps) }); err != nil {
			return err
		}
		w, sigmas := g.plain.Values(weight), g.weightSigmas(weight)
		dx := g.Adjoint(x)
		dx.addWeights(by, weight.Name)
		g.plain.Each(x.Rows(), 16*len(x.Values), func(t int) {
			g.normBackward(dx, x, dy, t, w, sigmas, eps)
		})
		return nil
	})
}

// normWeight is the gradient of a norm's weight.
func (g *Gradients) normWeight(x, dy *Value, eps float64) *Value {
	n := g.result(tensor.F32, x.Shape...)
	for t := range x.Rows() {
		r2, vr := inverseRMS(x.Row(t), eps)
		for c, v := range x.Row(t) {
			i, norm := t*x.Width()+c, float64(v)*math.Sqrt(r2)
			n.Set(i, norm, roughly(norm, vr*Sq(norm)+r2*x.Variance(i)))
		}
	}
	width := x.Width()
	dw := g.result(tensor.F32, width)
	a, b := matrixOf(dy).transposed(), matrixOf(n).transposed()
	g.plain.Each(width, 16*len(x.Values), func(c int) {
		one := g.product(a.part(c, 1), b.part(c, 1), a.cols)
		dw.Set(c, one.y[0], one.v[0])
	})
	return dw
}

// normBackward adds what row t of an RMSNorm adds to ∂x: A + B, and the variance of
//
//	A = g·r, three roundings:      A²;  r itself, of which B has three: (A + 3B)²·v_r, as RMSNorm
//	S = Σ g·x, a product:          (B/S)²·(κ(H)·(Σ (g·x)² + S²) + Σ (g·x)²·2/3)
//	B = -x·r³·S/H, six roundings:  2·B²
//	A + B:                         (A + B)²/3
//	∂y:  r²·((1 - n²/H)²·v_g + (n/H)²·Σ' n²·v_g),  Σ' without the element itself, v_g = w²·v_∂y
//	x:   r⁴·Σ_j v_xj·(δ_kj·m + (n_j·g_k + n_k·(g_j - 3·n_j·m))/H)²
func (g *Gradients) normBackward(dx *adjoint, x, dy *Value, t int, w, sigmas []float32, eps float64) {
	width, from := x.Width(), t*x.Width()
	r2, vr := inverseRMS(x.Row(t), eps)
	r, h := math.Sqrt(r2), float64(width)
	gs, vs, ns := make([]float64, width), make([]float64, width), make([]float64, width)
	s, squares, carried := 0.0, 0.0, 0.0
	for k, v := range x.Row(t) {
		wk, d := float64(w[k]), float64(dy.Values[from+k])
		gs[k], ns[k] = d*wk, float64(v)*r
		vs[k] = Sq(wk) * dy.Variance(from+k)
		if sigmas != nil {
			vs[k] += Sq(d) * Sq(float64(sigmas[k]))
		}
		term := gs[k] * float64(v)
		s += term
		squares += Sq(term)
		carried += Sq(ns[k]) * vs[k]
	}
	m := s * r / h
	vS := g.kappa(width)*(squares+Sq(s)) + squares*2/3
	var p, q, u float64 // Σ v_x·n², Σ v_x·n·h, Σ v_x·h², h = g - 3·n·m
	for k := range ns {
		off := gs[k] - 3*ns[k]*m
		p, q, u = p+x.Variance(from+k)*Sq(ns[k]), q+x.Variance(from+k)*ns[k]*off, u+x.Variance(from+k)*Sq(off)
	}
	for k, n := range ns {
		a, b := gs[k]*r, -n*r*m
		v := Sq(a) + vr*Sq(a+3*b) + 2*Sq(b) + Sq(n*r2/h)*vS + Sq(a+b)/3
		v += r2 * (Sq(1-Sq(n)/h)*vs[k] + Sq(n/h)*(carried-Sq(n)*vs[k]))
		if vx := x.Variance(from + k); p > 0 {
			off := gs[k] - 3*n*m
			v += Sq(r2) * (Sq(m)*vx + 2*m*vx*(gs[k]*n+n*off)/h + (Sq(gs[k])*p+2*gs[k]*n*q+Sq(n)*u)/Sq(h))
		}
		dx.add(from+k, a+b, roughly(a+b, v))
	}
}

// Add passes the gradient on to both operands.
func (g *Gradients) Add(a, b *Value) *Value {
	y := g.Analysis.Add(a, b)
	return g.record(y, func(dy *Value, by WeightSet) error {
		g.passOn(a, dy, by)
		g.passOn(b, dy, by)
		return nil
	})
}

// SwiGLU implements model.Arithmetic, with s = silu(gate), σ the logistic function and
// s' = σ·(1 + gate·(1 - σ)), s” = σ·(1 - σ)·(2 + gate·(1 - 2σ)):
//
//	∂up   += ∂y·s:            exact, s with the variance that it has forward
//	∂gate += (∂y·up)·s':      the product in brackets is exact, of variance v_d and value d
//	                          v = s'²·v_d + d²·(v_s' + s”²·v_gate)
//	s':   v = 1.5²·(1 + 0.1·gate²)·(s'² + (σ²·gate)²) + σ²·(gate·(1-σ))² + s'²
func (g *Gradients) SwiGLU(gate, up *Value) *Value {
	y := g.Analysis.SwiGLU(gate, up)
	return g.record(y, func(dy *Value, by WeightSet) error {
		dgate, dup := g.Adjoint(gate), g.Adjoint(up)
		dgate.addWeights(by)
		dup.addWeights(by)
		silu := g.plain.SiLU(gate.wide(), 1)
		g.plain.Each(y.Rows(), 16*len(y.Values), func(t int) {
			for i := t * y.Width(); i < (t+1)*y.Width(); i++ {
				d, u, x := dy.element(i), up.element(i), gate.element(i)
				s, v := siluErrors(x, float64(silu.Values[i]))
				to, vTo := times(d.y, d.v, s, v)
				dup.add(i, to, vTo)
				slope, vSlope := siluSlope(x)
				product, vp := times(d.y, d.v, u.y, u.v)
				into := product * slope
				dgate.add(i, into, roughly(into, Sq(slope)*vp+Sq(product)*vSlope+vp*vSlope*(Unit*Unit)))
			}
		})
		return nil
	})
}

// siluErrors is silu(x) as it was computed, and its variance.
func siluErrors(x uncertain, s float64) (float64, float64) {
	logistic := 0.5
	if x.y != 0 {
		logistic = s / x.y
	}
	slope := logistic + float64(s*(1-logistic))
	v := throughSiLU(x.y, slope, x.v) + float64(2.25*Sq(s)*(1+float64(0.1*Sq(min(x.y, 0))))) + overflow(logistic, s)
	return s, roughly(s, v)
}

// siluSlope is silu'(x) and its variance.
func siluSlope(x uncertain) (float64, float64) {
	logistic := 1 / (1 + math.Exp(-x.y))
	slope := logistic * (1 + x.y*(1-logistic))
	bend := logistic * (1 - logistic) * (2 + x.y*(1-2*logistic))
	v := 2.25*(1+0.1*Sq(x.y))*(Sq(slope)+Sq(Sq(logistic)*x.y)) + Sq(logistic*x.y*(1-logistic)) + Sq(slope)
	return slope, v + Sq(bend)*x.v
}

// softmaxErrors are the errors of the gradient ∂x of a softmax's operand, with D = Σ p·∂p:
//
//	p_j·(e_j - Σ_k p_k·e_k)   e: of ∂p, of variance carried_j/p_j²
//	p_j·e_D                   of D itself, of variance sum per row
//	∂x_j·e_p                  of what all probabilities of a row have in common, of variance common
//	tilt_j·e_S                tilt = p·(∂p - 2D); of the softmax's sum, of variance 1
//	e                         of variance rest_j, each element's own
type softmaxErrors struct{ p, carried, tilt, rest, sum, common []float64 }

// Softmax implements model.Arithmetic, row by row, with D = Σ p·∂p. The softmax's operands have
// variances a, with what computing e^x adds: p moves by p_j·(e_j - Σ p·e), and the gradient by
// ∂x_j·(e_j - Σ p·e) - p_j·Σ ∂x·e. Its sum is rounded, too:
//
//	∂x = p·(∂p - D):  v = ∂x²·(a + Σ p²·a) + p²·Σ ∂x²·a + (p·(∂p - 2D))²
//	                    + p²·((1 - 2p)·v_∂p + Σ p²·v_∂p)               ∂p, which is part of D, too
//	                    + p²·κ·(Σ (p·∂p)² + D²)                          the sum D
//	                    + 2/3·∂x²                                        difference and product
func (g *Gradients) Softmax(x *Value) *Value {
	y := g.Analysis.Softmax(x)
	own, common := slices.Clone(y.sigma.Values), slices.Clone(y.shared)
	return g.record(y, func(dy *Value, by WeightSet) error {
		exact := y.sigma == nil // the golden's
		dx, n := g.Adjoint(x), len(y.Values)
		dx.addWeights(by)
		dx.rows = &softmaxErrors{make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n),
			make([]float64, y.Rows()), make([]float64, y.Rows())}
		g.plain.Each(y.Rows(), 16*n, func(t int) {
			if exact {
				clear(own[t*y.Width() : (t+1)*y.Width()])
			} else {
				dx.rows.common[t] = common[t] - 1
			}
			g.softmaxBackward(dx, y, dy, t, own, exact)
		})
		return nil
	})
}

func (g *Gradients) softmaxBackward(dx *adjoint, y, dy *Value, t int, own []float32, exact bool) {
	var sum, squares, carried, moved float64 // D, Σ (p·∂p)², Σ p²·v_∂p, Σ ∂x²·a
	from, e := t*y.Width(), dx.rows
	for i, p := range y.Row(t) {
		p, d := float64(p), dy.element(from+i)
		sum += p * d.y
		squares += Sq(p * d.y)
		carried += Sq(p) * d.v
	}
	for i := range y.Row(t) {
		moved += Sq((float64(dy.Values[from+i]) - sum) * float64(own[from+i]))
	}
	e.sum[t] = moved + g.kappa(y.Width())*(squares+Sq(sum))
	for i, p := range y.Row(t) {
		p, d, i := float64(p), dy.element(from+i), from+i
		into := p * (d.y - sum)
		e.p[i], e.carried[i], e.rest[i] = p, Sq(p)*d.v, roughly(into, Sq((d.y-sum)*float64(own[i])))
		if !exact {
			e.tilt[i] = p * (d.y - 2*sum)
		}
		dx.add(i, into, e.rest[i]+(1-2*p)*e.carried[i]+Sq(p)*(carried+e.sum[t])+e.common[t]*Sq(into)+Sq(e.tilt[i]))
	}
}

// Float32 shares the gradient.
func (g *Gradients) Float32(x *Value) *Value { return g.view(g.Analysis.Float32(x), x) }

// Reshape shares the gradient.
func (g *Gradients) Reshape(x *Value, shape ...int) *Value {
	return g.view(g.Analysis.Reshape(x, shape...), x)
}

// Move moves the gradient back.
func (g *Gradients) Move(m *model.Move, operands ...*Value) *Value {
	y := g.Analysis.Move(m, operands...)
	return g.record(y, func(dy *Value, by WeightSet) error {
		into := make([]*adjoint, len(operands))
		for i, x := range operands {
			into[i] = g.Adjoint(x)
			into[i].addWeights(by)
		}
		m.Each(func(r model.Run) {
			for i := range r.N {
				into[r.Operand].add(r.From+i*r.Step, float64(dy.Values[r.To+i]), dy.Variance(r.To+i))
			}
		})
		return nil
	})
}

// CrossEntropy returns the loss and the gradient of the logits, of N predictions:
//
//	∂x[b, t] = (softmax(x[b, t]) - onehot(input_ids[b, t+1])) / N
//	v = p²·(v_x + 2 + (z² + log²S + log²p)/3 + Σ p²·v_x + 1)/N² + ∂x²
//
// with z = x - max, S = Σ e^z and p = e^z/S, which is computed as e^log p.
func (g *Gradients) CrossEntropy(x *Value, in *model.Input) (sum float64, dx *Value) {
	n := float64(in.Batch * (in.Seq - 1))
	dx = g.result(tensor.F32, x.Shape...)
	dx.roundLater = false
	clear(dx.Values)
	clear(dx.sigma.Values)
	for row := range x.Rows() {
		if row%in.Seq == in.Seq-1 {
			continue
		}
		label, from := in.InputIDs[row+1], row*x.Width()
		top, total, common := math.Inf(-1), 0.0, 1.0
		for _, v := range x.Row(row) {
			top = max(top, float64(v))
		}
		for _, v := range x.Row(row) {
			total += math.Exp(float64(v) - top)
		}
		logTotal := math.Log(total)
		for i, v := range x.Row(row) {
			common += Sq(math.Exp(float64(v)-top)/total) * x.Variance(from+i)
		}
		for i, v := range x.Row(row) {
			z := float64(v) - top
			p := math.Exp(z - logTotal)
			own := x.Variance(from+i) + 2 + (Sq(z)+Sq(logTotal)+Sq(z-logTotal))/3
			d := p
			if i == label {
				d--
				sum += logTotal - z
			}
			dx.Set(from+i, d/n, roughly(d/n, Sq(p/n)*(own+common)+Sq(d/n)))
		}
	}
	return sum / n, dx
}

// WeightSet is a set of weights' names. It is not changed once a value has it.
type WeightSet map[string]struct{}
