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
	return a.scored(y.inherit(x))
}

// scored is y, a router's scores, in the dtypes in which they choose experts and become weights.
func (a *Analysis) scored(y *Value) *Value {
	if a.way(ChoiceScore) != a.way(Score) {
		choice := *y
		choice.Activation, choice.sigma = copied(y.Activation), copied(y.sigma)
		a.RoundTo(&choice, ChoiceScore)
		y.choice = &choice
	}
	a.RoundTo(y, Score)
	return y
}

// choosing is x as it chooses experts.
func (x *Value) choosing() *Value {
	if x.choice != nil {
		return x.choice
	}
	return x
}

// SoftCap implements model.Arithmetic, with t = tanh(x/limit), whose derivative is 1 - t²:
//
//	x/limit:  exact, a rounding point;  t:  v = (1-t²)²·v_x/limit² + (1.5t)², a rounding point;  limit·t, exact
func (a *Analysis) SoftCap(x *Value, limit float32) *Value {
	x = a.settle(x)
	y, p, by := a.computed(a.plain.SoftCap(x.wide(), limit), x.DType), PrecisionOf(x.DType), float64(limit)
	for i, capped := range y.Values {
		z := float64(float32(float64(x.Values[i]) / by))
		_, v := point(p, z, exactly(z, x.Variance(i)/Sq(by)))
		t := float64(capped) / by
		t, v = point(p, t, roughly(t, float64(Sq(1-float64(t*t))*v)+float64(2.25*Sq(t))))
		product := float64(float32(t * by))
		y.Set(i, product, exactly(product, v*Sq(by)))
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
	return a.scored(y.inherit(x))
}

// TableExperts implements model.Arithmetic.
func (a *Analysis) TableExperts(scores *Value, table *model.Weight, ids []int) []int {
	return a.plain.TableExperts(a.settle(scores).Activation, table, ids)
}

// AddBias implements model.Arithmetic.
func (a *Analysis) AddBias(scores *Value, bias *model.Weight) *Value {
	scores = a.settle(scores.choosing())
	y := a.computed(a.plain.AddBias(scores.wide(), bias), scores.DType)
	y.roundLater = false
	deltas := a.deltas(bias)
	for i, s := range y.Values {
		y.Set(i, float64(s), exactly(float64(s), scores.Variance(i)+delta(deltas, i%y.Width())))
	}
	return y.inherit(scores)
}

// GroupWorth implements model.Arithmetic: the sum of the best scores' v, + worth² if they
// are several, a rounding point.
func (a *Analysis) GroupWorth(scores *Value, groups, best int) *Value {
	scores = a.settle(scores.choosing())
	y := a.computed(a.plain.GroupWorth(scores.wide(), groups, best), scores.DType)
	y.roundLater = false
	size := scores.Width() / groups
	for i, worth := range y.Values {
		v := 0.0
		for _, e := range model.TopK(scores.Values[i*size:(i+1)*size], best) {
			v += scores.Variance(i*size + e)
		}
		sum := float64(worth)
		if best > 1 {
			v += Sq(sum)
			sum, v = point(PrecisionOf(scores.DType), sum, v)
		}
		y.Set(i, sum, v)
	}
	return y.inherit(scores)
}

// MaskGroups implements model.Arithmetic. What is masked is exact.
func (a *Analysis) MaskGroups(scores *Value, groups int, chosen []int, masked float32) *Value {
	scores = a.settle(scores.choosing())
	y := &Value{Activation: a.plain.MaskGroups(scores.Activation, groups, chosen, masked)}
	if scores.sigma != nil {
		y.sigma = a.errors.MaskGroups(scores.sigma, groups, chosen, 0)
	}
	return y.inherit(scores)
}

// TopK implements model.Arithmetic.
func (a *Analysis) TopK(scores *Value, k int) []int {
	return a.plain.TopK(a.settle(scores.choosing()).Activation, k)
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
// Errors that experts have in common add more: see addRelated and addCommon. An engine may round otherwise: see Points.
func (a *Analysis) Combine(weight *Value, parts []model.Part[*Value], order config.RoutedSum) *Value {
	d := parts[0].Out.DType
	c := a.combination(weight, d, order)
	weight, parts = c.weight, slices.Clone(parts)
	k, terms := weight.Width(), make([][]weighted, weight.Rows())
	y := a.result(d, weight.Rows(), parts[0].Out.Width())
	for p, part := range parts {
		switch {
		case c.ofSums:
			parts[p].Out = part.Out.unrounded()
		case c.unknown:
			parts[p].Out = a.mayRound(part.Out, d)
		default:
			a.settle(part.Out)
		}
		out := parts[p].Out
		y.inherit(weight, out)
		for i, slot := range part.Slots {
			terms[slot/k] = append(terms[slot/k], weighted{p, i, slot})
		}
		if len(out.Products) == 1 {
			from := out.Products[0]
			from.expert = part.Expert
			for _, slot := range part.Slots {
				by := weight.Values[slot]
				if c.weighed { // its neurons have the weight
					by = 1
				}
				from.tokens, from.weights = append(from.tokens, slot/k), append(from.weights, by)
			}
			y.Products = append(y.Products, from)
		}
	}
	c.parts = parts
	pairs := a.relatedExperts(parts, terms)
	a.plain.Each(y.Rows(), 8*k*len(y.Values), func(t int) {
		if !c.byExpert {
			slices.SortFunc(terms[t], func(a, b weighted) int { return a.slot - b.slot })
		}
		c.sum(y, t, terms[t])
		for _, pair := range pairs[t] {
			c.addRelated(y, t, pair)
		}
	})
	if slices.ContainsFunc(y.Products, func(p product) bool { return p.common != nil }) {
		y.addCommon()
	}
	return a.factored(y)
}

// combination is a sum of experts' outputs, each times its weight.
type combination struct {
	analysis     *Analysis
	weight       *Value
	parts        []model.Part[*Value]
	product      *precision // of an output times its weight
	running      *precision // of sums of some terms, which are added one after the other; nil of one sum
	byExpert     bool       // in the order of experts, not of slots
	unknownOrder bool       // sums of some terms are rounded, of which ones is not known
	ofSums       bool       // outputs are not rounded before they are multiplied
	weighed      bool       // outputs have their weights already
	unknown      bool       // all of these may round or not
}

// combination returns how experts' outputs of dtype d are added up.
func (a *Analysis) combination(weight *Value, d tensor.DType, order config.RoutedSum) *combination {
	weight = a.settle(weight)
	c, p, sum := &combination{analysis: a, weight: weight}, PrecisionOf(d), a.way(ExpertsSum)
	if d != tensor.F32 && !(a.way(ExpertsFactor) == inWeight && a.way(ExpertsW) == InF32) {
		c.weight = a.result(tensor.F32, weight.Shape...) // without the factor if an engine applies that to the sum
		for i, w := range weight.Values {
			own, v := a.ownWeight(float64(w), weight.Variance(i), p)
			c.weight.Set(i, own, v)
		}
		c.weight.roundLater = false
	}
	if _, known := a.points.Ways[ExpertsSum]; !known && order == config.ByChoice {
		sum = InF32
	}
	if c.product = PrecisionOf(weight.DType); sum != InF32 {
		c.product = p
	}
	switch c.byExpert, c.unknownOrder = sum == byExpert, sum == unknownOrder; sum {
	case byExpert, bySlot:
		c.running = p
	}
	switch with := a.way(ExpertsWeight); with {
	case Unknown:
		c.unknown, c.byExpert, c.unknownOrder, c.running, c.product = p != f32, false, p != f32, nil, rounds(p, Unknown)
	case roundedOf, roundedOfSum, ofSum:
		c.ofSums = with != roundedOf && p != f32
		if with != ofSum {
			c.product = p
		}
	case beforeRounded, beforeOnce:
		c.weighed = p != f32
	}
	return c
}

// ownWeight is the weight that an engine multiplies an expert's numbers of precision p with, of topk_weight w of variance
// v: without the factor, if that is applied to the sum.
func (a *Analysis) ownWeight(w, v float64, p *precision) (float64, float64) {
	if a.way(ExpertsFactor) != inWeight { // with which it was multiplied, and rounded
		w = float64(float32(w / a.points.Factor))
		v = roughly(w, v/Sq(a.points.Factor))
	}
	if of := a.way(ExpertsW); of != InF32 {
		return point(rounds(p, of), w, v)
	}
	return w, v
}

// factored is a routed sum with the factor that an engine applies to it.
func (a *Analysis) factored(y *Value) *Value {
	d, way := y.DType, a.way(ExpertsFactor)
	y.routed = d != tensor.F32
	switch {
	case d == tensor.F32 || way == inWeight:
		return y
	case way == afterRounded, way == alpha:
		y = a.settle(y)
	case way == Unknown:
		y = a.mayRound(y, d)
		y.DType, y.routed = d, true
	}
	for i, sum := range y.Values {
		product := float64(float32(float64(sum) * a.points.Factor))
		y.Set(i, product, exactly(product, y.Variance(i)*Sq(a.points.Factor)))
	}
	for i := range y.Products {
		for n := range y.Products[i].weights {
			y.Products[i].weights[n] *= float32(a.points.Factor)
		}
	}
	y.roundLater = true
	return y
}

// share is column column of a weighted part.
func (c *combination) share(w weighted, column int) (float64, float64) {
	out := c.parts[w.part].Out
	i := w.row*out.Width() + column
	y, v := float64(out.Values[i]), out.Variance(i)
	if !c.weighed {
		y, v = times(y, v, float64(c.weight.Values[w.slot]), c.weight.Variance(w.slot))
	}
	return point(c.product, y, v)
}

// sum sets row t of y to a token's sum.
func (c *combination) sum(y *Value, t int, terms []weighted) {
	sums, p := c.analysis.sums(len(terms)), PrecisionOf(y.DType)
	for column := range y.Width() {
		var sum addition
		for i, w := range terms {
			out, v := c.share(w, column)
			if i > 0 && c.running != nil { // the sum begins at 0, to which adding is no rounding
				sum.y, sum.v = point(c.running, sum.y, sum.v)
			}
			if sum = sum.add(out, v); i > 0 && c.running != nil {
				sum.y = float64(float32(sum.y))
				sum.v = exactly(sum.y, sum.v)
			}
		}
		if c.running == nil {
			v := sum.variance(sums)
			if c.unknownOrder {
				v += p.partialSums(sum, len(terms))
			}
			sum.y = float64(float32(sum.y))
			sum.v = roughly(sum.y, v)
		}
		y.Set(t*y.Width()+column, sum.y, sum.v)
	}
}

// AuxLoss implements model.Arithmetic. It is held to limits of its own, and has no variance.
func (a *Analysis) AuxLoss(scores *Value, idx []int, sequences int, alpha float64) *Value {
	return Exact(a.plain.AuxLoss(a.settle(scores).Activation, idx, sequences, alpha))
}
