package bounds

import (
	"math"
	"slices"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
)

// Sigmoid implements model.Arithmetic: v = (y·(1-y))²·v_x + (1.5y)².
func (a *Analysis) Sigmoid(x *Value) *Value {
	x = a.settle(x)
	y := a.computed(a.plain.Sigmoid(x.wide()), x.DType)
	for i, p := range y.Values {
		p := float64(p)
		y.Set(i, p, roughly(p, float64(Sq(p*(1-p))*x.Variance(i))+float64(2.25*Sq(p))))
	}
	return y.inherit(x)
}

// SqrtSoftplus implements model.Arithmetic, with s = log(1 + e^x), whose derivative is 1 - e^-s:
//
//	s:   v = (1-e^-s)²·(v_x + 1) + (1.5s)², a rounding point
//	√s:  σ = the larger of |√(s ± λσ_s) - √s|/λ, exact: near 0 the root is no line
func (a *Analysis) SqrtSoftplus(x *Value) *Value {
	x = a.settle(x)
	y := a.computed(a.plain.SqrtSoftplus(x.wide()), x.DType)
	for i, root := range y.Values {
		s := Sq(float64(root)) // off by 4/3 of its square for the rounding of root
		v := float64(Sq(math.Expm1(-s))*(x.Variance(i)+1)) + float64((2.25+4.0/3)*Sq(s)) + denormal
		if x.DType != tensor.F32 {
			s, v = point(PrecisionOf(x.DType), s, v)
			root = float32(math.Sqrt(s))
		}
		off := Lambda * Unit * math.Sqrt(v)
		spread := max(float64(root)-math.Sqrt(max(0, s-off)), math.Sqrt(s+off)-float64(root)) / (Lambda * Unit)
		y.Set(i, float64(root), roughly(float64(root), Sq(spread)))
	}
	return y.inherit(x)
}

// TableExperts implements model.Arithmetic.
func (a *Analysis) TableExperts(scores *Value, table *model.Weight, ids []int) []int {
	return a.plain.TableExperts(a.settle(scores).Activation, table, ids)
}

// AddBias implements model.Arithmetic.
func (a *Analysis) AddBias(scores *Value, bias *model.Weight) *Value {
	scores = a.settle(scores)
	y := a.computed(a.plain.AddBias(scores.wide(), bias), scores.DType)
	y.roundLater = false
	deltas := a.deltas(bias)
	for i, s := range y.Values {
		y.Set(i, float64(s), exactly(float64(s), scores.Variance(i)+delta(deltas, i%y.Width())))
	}
	return y.inherit(scores)
}

// GroupWorth implements model.Arithmetic: the sum of the best scores' v, + worth² if they
// are several.
func (a *Analysis) GroupWorth(scores *Value, groups, best int) *Value {
	scores = a.settle(scores)
	y := a.computed(a.plain.GroupWorth(scores.wide(), groups, best), scores.DType)
	y.roundLater = false
	size := scores.Width() / groups
	for i, worth := range y.Values {
		v := 0.0
		for _, e := range model.TopK(scores.Values[i*size:(i+1)*size], best) {
			v += scores.Variance(i*size + e)
		}
		if best > 1 {
			v += Sq(float64(worth))
		}
		y.Set(i, float64(worth), v)
	}
	return y.inherit(scores)
}

// MaskGroups implements model.Arithmetic. What is masked is exact.
func (a *Analysis) MaskGroups(scores *Value, groups int, chosen []int, masked float32) *Value {
	scores = a.settle(scores)
	y := &Value{Activation: a.plain.MaskGroups(scores.Activation, groups, chosen, masked)}
	if scores.sigma != nil {
		y.sigma = a.errors.MaskGroups(scores.sigma, groups, chosen, 0)
	}
	return y.inherit(scores)
}

// TopK implements model.Arithmetic.
func (a *Analysis) TopK(scores *Value, k int) []int {
	return a.plain.TopK(a.settle(scores).Activation, k)
}

// Normalise implements model.Arithmetic, S being a row's sum:
//
//	S:    v = Σ v_w + (1.5·S)², a rounding point; changed by d, exact, a rounding point
//	w/S:  v = (w/S)²·(v_w/w² + v_S/S²), exact
func (a *Analysis) Normalise(w *Value, d model.Divisor) *Value {
	w = a.settle(w)
	y, p := a.result(w.DType, w.Shape...), PrecisionOf(w.DType)
	for t := range w.Rows() {
		sum, v := 0.0, 0.0
		for i, x := range w.Row(t) {
			sum += float64(x)
			v += w.Variance(t*w.Width() + i)
		}
		sum = float64(float32(sum))
		sum, v = point(p, sum, roughly(sum, v+float64(2.25*Sq(sum))))
		sum = float64(d.Of(float32(sum)))
		sum, v = point(p, sum, exactly(sum, v))
		for i, x := range w.Row(t) {
			at := t*w.Width() + i
			share := float64(float32(float64(x) / sum))
			y.Set(at, share, exactly(share, (w.Variance(at)+float64(Sq(share)*v))/Sq(sum)))
		}
	}
	return y.inherit(w)
}

// Scale implements model.Arithmetic.
func (a *Analysis) Scale(x *Value, factor float32) *Value {
	x = a.settle(x)
	y := a.result(x.DType, x.Shape...)
	for i, v := range x.Values {
		product := float64(float32(v * factor))
		y.Set(i, product, exactly(product, x.Variance(i)*Sq(float64(factor))))
	}
	return y.inherit(x)
}

// weighted is an expert's output for a token: a row of it, and its position in topk_idx.
type weighted struct{ part, row, slot int }

// Combine implements model.Arithmetic. Products and, by expert, their sums are exact; by
// choice the sum is one of K terms p:
//
//	v = Σ v_p + sums.variance
//
// Errors that experts have in common add more: see addRelated and addCommon.
func (a *Analysis) Combine(weight *Value, parts []model.Part[*Value], order config.RoutedSum) *Value {
	weight = a.settle(weight)
	k, terms := weight.Width(), make([][]weighted, weight.Rows())
	y := a.result(parts[0].Out.DType, weight.Rows(), parts[0].Out.Width())
	for p, part := range parts {
		out := a.settle(part.Out)
		y.inherit(weight, out)
		for i, slot := range part.Slots {
			terms[slot/k] = append(terms[slot/k], weighted{p, i, slot})
		}
		if len(out.Products) == 1 {
			from := out.Products[0]
			from.expert = part.Expert
			for _, slot := range part.Slots {
				from.tokens, from.weights = append(from.tokens, slot/k), append(from.weights, weight.Values[slot])
			}
			y.Products = append(y.Products, from)
		}
	}
	sum, p := a.sumByExpert, PrecisionOf(y.DType)
	if order == config.ByChoice {
		sum, p = a.sumByChoice, PrecisionOf(weight.DType)
	}
	pairs := a.relatedExperts(parts, terms)
	a.plain.Each(y.Rows(), 8*k*len(y.Values), func(t int) {
		sum(y, p, t, weight, parts, terms[t])
		for _, pair := range pairs[t] {
			y.addRelated(p, t, weight, parts, pair)
		}
	})
	if slices.ContainsFunc(y.Products, func(p product) bool { return p.common != nil }) {
		y.addCommon()
	}
	return y
}

// share is column c of a weighted part, of precision p.
func share(p *precision, weight *Value, parts []model.Part[*Value], w weighted, c int) (float64, float64) {
	out := parts[w.part].Out
	i := w.row*out.Width() + c
	y, v := times(float64(out.Values[i]), out.Variance(i), float64(weight.Values[w.slot]), weight.Variance(w.slot))
	return point(p, y, v)
}

// sumByExpert adds a token's weighted parts in the order of ascending experts, all of precision p.
func (a *Analysis) sumByExpert(y *Value, p *precision, t int, weight *Value, parts []model.Part[*Value],
	terms []weighted) {
	for c := range y.Width() {
		sum, v := 0.0, 0.0
		for i, w := range terms {
			out, vOut := share(p, weight, parts, w, c)
			if i > 0 { // the sum begins at 0, to which adding is no rounding
				sum, v = point(p, sum, v)
				out = float64(float32(sum + out))
				vOut = exactly(out, v+vOut)
			}
			sum, v = out, vOut
		}
		y.Set(t*y.Width()+c, sum, v)
	}
}

// sumByChoice adds a token's weighted parts, of precision p, in one sum.
func (a *Analysis) sumByChoice(y *Value, p *precision, t int, weight *Value, parts []model.Part[*Value],
	terms []weighted) {
	slices.SortFunc(terms, func(a, b weighted) int { return a.slot - b.slot })
	sums := a.sums(len(terms))
	for c := range y.Width() {
		var sum addition
		for _, w := range terms {
			sum = sum.add(share(p, weight, parts, w, c))
		}
		sum.y = float64(float32(sum.y))
		y.Set(t*y.Width()+c, sum.y, roughly(sum.y, sum.variance(sums)))
	}
}

// AuxLoss implements model.Arithmetic. It is held to limits of its own, and has no variance.
func (a *Analysis) AuxLoss(scores *Value, idx []int, sequences int, alpha float64) *Value {
	return Exact(a.plain.AuxLoss(a.settle(scores).Activation, idx, sequences, alpha))
}
