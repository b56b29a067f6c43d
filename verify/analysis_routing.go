package verify

import (
	"slices"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
)

// Sigmoid implements model.Arithmetic: v = (y·(1-y))²·v_x + (1.5y)².
func (a *analysis) Sigmoid(x *value) *value {
	x = a.use(x)
	y := a.computed(a.plain.Sigmoid(x.wide()), x.DType)
	for i, p := range y.Values {
		p := float64(p)
		y.set(i, p, roughly(p, float64(sq(p*(1-p))*x.v(i))+float64(2.25*sq(p))))
	}
	return y.after(x)
}

// AddBias implements model.Arithmetic.
func (a *analysis) AddBias(scores *value, bias *model.Weight) *value {
	scores = a.use(scores)
	y := a.computed(a.plain.AddBias(scores.wide(), bias), scores.DType)
	y.unrounded = false
	deltas := a.deltas(bias)
	for i, s := range y.Values {
		y.set(i, float64(s), exactly(float64(s), scores.v(i)+delta(deltas, i%y.Width())))
	}
	return y.after(scores)
}

// GroupWorth implements model.Arithmetic: the sum of the best scores' v, + worth² if they
// are several.
func (a *analysis) GroupWorth(scores *value, groups, best int) *value {
	scores = a.use(scores)
	y := a.computed(a.plain.GroupWorth(scores.wide(), groups, best), scores.DType)
	y.unrounded = false
	size := scores.Width() / groups
	for i, worth := range y.Values {
		v := 0.0
		for _, e := range model.TopK(scores.Values[i*size:(i+1)*size], best) {
			v += scores.v(i*size + e)
		}
		if best > 1 {
			v += sq(float64(worth))
		}
		y.set(i, float64(worth), v)
	}
	return y.after(scores)
}

// MaskGroups implements model.Arithmetic. What is masked is exact.
func (a *analysis) MaskGroups(scores *value, groups int, chosen []int, masked float32) *value {
	scores = a.use(scores)
	y := &value{Activation: a.plain.MaskGroups(scores.Activation, groups, chosen, masked)}
	if scores.sigma != nil {
		y.sigma = a.errors.MaskGroups(scores.sigma, groups, chosen, 0)
	}
	return y.after(scores)
}

// TopK implements model.Arithmetic.
func (a *analysis) TopK(scores *value, k int) []int { return a.plain.TopK(a.use(scores).Activation, k) }

// Normalise implements model.Arithmetic, S being a row's sum:
//
//	S:    v = Σ v_w + (1.5·S)², a rounding point; + 1e-20, exact, a rounding point
//	w/S:  v = (w/S)²·(v_w/w² + v_S/S²), exact
func (a *analysis) Normalise(w *value) *value {
	w = a.use(w)
	y := a.result(w.DType, w.Shape...)
	for t := range w.Rows() {
		sum, v := 0.0, 0.0
		for i, x := range w.Row(t) {
			sum += float64(x)
			v += w.v(t*w.Width() + i)
		}
		sum = float64(float32(sum))
		sum, v = point(w.DType, sum, roughly(sum, v+float64(2.25*sq(sum))))
		sum = float64(float32(sum) + 1e-20)
		sum, v = point(w.DType, sum, exactly(sum, v))
		for i, x := range w.Row(t) {
			at := t*w.Width() + i
			share := float64(float32(float64(x) / sum))
			y.set(at, share, exactly(share, (w.v(at)+float64(sq(share)*v))/sq(sum)))
		}
	}
	return y.after(w)
}

// Scale implements model.Arithmetic.
func (a *analysis) Scale(x *value, factor float32) *value {
	x = a.use(x)
	y := a.result(x.DType, x.Shape...)
	for i, v := range x.Values {
		product := float64(float32(v * factor))
		y.set(i, product, exactly(product, x.v(i)*sq(float64(factor))))
	}
	return y.after(x)
}

// weighted is an expert's output for a token: a row of it, and its position in topk_idx.
type weighted struct{ part, row, slot int }

// Combine implements model.Arithmetic. Products and, by expert, their sums are exact; by
// choice the sum is one of K terms p:
//
//	v = Σ v_p + sums.variance
func (a *analysis) Combine(weight *value, parts []model.Part[*value], order config.RoutedSum) *value {
	weight = a.use(weight)
	k, terms := weight.Width(), make([][]weighted, weight.Rows())
	y := a.result(parts[0].Out.DType, weight.Rows(), parts[0].Out.Width())
	for p, part := range parts {
		out := a.use(part.Out)
		y.after(weight, out)
		from := product{expert: part.Expert}
		for i, slot := range part.Slots {
			terms[slot/k] = append(terms[slot/k], weighted{p, i, slot})
			from.tokens, from.weights = append(from.tokens, slot/k), append(from.weights, weight.Values[slot])
		}
		if len(out.products) == 1 {
			from.hidden, from.down = out.products[0].hidden, out.products[0].down
			y.products = append(y.products, from)
		}
	}
	sum := a.sumByExpert
	if order == config.ByChoice {
		sum = a.sumByChoice
	}
	a.plain.Each(y.Rows(), 8*k*len(y.Values), func(t int) { sum(y, t, weight, parts, terms[t]) })
	return y
}

// share is column c of a weighted part, of dtype d.
func share(d tensor.DType, weight *value, parts []model.Part[*value], w weighted, c int) (float64, float64) {
	out := parts[w.part].Out
	i := w.row*out.Width() + c
	y, v := times(float64(out.Values[i]), out.v(i), float64(weight.Values[w.slot]), weight.v(w.slot))
	return point(d, y, v)
}

// sumByExpert adds a token's weighted parts in the order of ascending experts.
func (a *analysis) sumByExpert(y *value, t int, weight *value, parts []model.Part[*value], terms []weighted) {
	for c := range y.Width() {
		sum, v := 0.0, 0.0
		for i, w := range terms {
			p, vp := share(y.DType, weight, parts, w, c)
			if i > 0 { // the sum begins at 0, to which adding is no rounding
				sum, v = point(y.DType, sum, v)
				p = float64(float32(sum + p))
				vp = exactly(p, v+vp)
			}
			sum, v = p, vp
		}
		y.set(t*y.Width()+c, sum, v)
	}
}

// sumByChoice adds a token's weighted parts in one sum.
func (a *analysis) sumByChoice(y *value, t int, weight *value, parts []model.Part[*value], terms []weighted) {
	slices.SortFunc(terms, func(a, b weighted) int { return a.slot - b.slot })
	sums := a.sums(len(terms))
	for c := range y.Width() {
		sum, v, partial, squares := 0.0, 0.0, 0.0, 0.0
		for _, w := range terms {
			p, vp := share(weight.DType, weight, parts, w, c)
			sum += p
			v += vp
			partial += sq(sum)
			squares += sq(p)
		}
		sum = float64(float32(sum))
		y.set(t*y.Width()+c, sum, roughly(sum, v+sums.variance(sum, partial+sq(sum), squares)))
	}
}

// AuxLoss implements model.Arithmetic. It is held to limits of its own, and has no variance.
func (a *analysis) AuxLoss(scores *value, idx []int, sequences int, alpha float64) *value {
	return exact(a.plain.AuxLoss(a.use(scores).Activation, idx, sequences, alpha))
}
