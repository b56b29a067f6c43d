package model

import (
	"encoding/binary"
	"math"
	"slices"

	"dsmoe/config"
	"dsmoe/model/internal/kernel"
)

// Sigmoid implements Arithmetic. The exponential is computed in float64.
func (p *Plain) Sigmoid(x *Activation) *Activation {
	y := p.Make(x.DType, x.Shape...)
	for i, v := range x.Values {
		y.Values[i] = float32(1 / (1 + kernel.Exp(-float64(v))))
	}
	kernel.RoundTo(y.Values, y.format())
	return y
}

// SoftCap implements Arithmetic. The exponential is computed in float64.
func (p *Plain) SoftCap(x *Activation, limit float32) *Activation {
	y := p.Make(x.DType, x.Shape...)
	for i, v := range x.Values {
		y.Values[i] = kernel.Rounded(float32(tanh(float64(kernel.Rounded(v/limit, y.format())))), y.format()) * limit
	}
	kernel.RoundTo(y.Values, y.format())
	return y
}

// tanh is the hyperbolic tangent, with the same bits on all machines.
func tanh(z float64) float64 {
	if math.Abs(z) < 1e-3 { // where the difference below has few digits
		return z - float64(z*z*z)/3
	}
	return 1 - 2/(1+kernel.Exp(2*z))
}

// SqrtSoftplus implements Arithmetic. Exponential and logarithm are computed in float64.
func (p *Plain) SqrtSoftplus(x *Activation) *Activation {
	y := p.Make(x.DType, x.Shape...)
	for i, v := range x.Values {
		soft := kernel.Rounded(float32(kernel.Softplus(float64(v))), y.format())
		y.Values[i] = float32(math.Sqrt(float64(soft)))
	}
	kernel.RoundTo(y.Values, y.format())
	return y
}

// TableExperts implements Arithmetic.
func (p *Plain) TableExperts(_ *Activation, table *Weight, ids []int) (idx []int) {
	for _, id := range ids {
		for row := table.Row(id).Data; len(row) > 0; row = row[8:] {
			idx = append(idx, int(int64(binary.LittleEndian.Uint64(row))))
		}
	}
	return idx
}

// AddBias implements Arithmetic.
func (p *Plain) AddBias(scores *Activation, bias *Weight) *Activation {
	b := p.Values(bias)
	y := p.Make(scores.DType, scores.Shape...)
	for t := range y.Rows() {
		for e, v := range scores.Row(t) {
			y.Row(t)[e] = v + b[e]
		}
	}
	return y
}

// GroupWorth implements Arithmetic. The best scores are added in ascending order.
func (p *Plain) GroupWorth(scores *Activation, groups, best int) *Activation {
	y := p.Make(scores.DType, scores.Rows(), groups)
	size := scores.Width() / groups
	sorted := make([]float32, size)
	for i := range y.Values {
		copy(sorted, scores.Values[i*size:])
		slices.Sort(sorted)
		sum := float32(0)
		for _, v := range sorted[size-best:] {
			sum += v
		}
		y.Values[i] = kernel.Rounded(sum, y.format())
	}
	return y
}

// MaskGroups implements Arithmetic.
func (p *Plain) MaskGroups(scores *Activation, groups int, chosen []int, masked float32) *Activation {
	y := p.Make(scores.DType, scores.Shape...)
	k := len(chosen) / scores.Rows()
	copy(y.Values, scores.Values)
	for t := range y.Rows() {
		maskGroups(y.Row(t), groups, chosen[t*k:(t+1)*k], masked)
	}
	return y
}

// MaskGroups returns a token's scores, set to masked in all groups that are not chosen.
func MaskGroups[F float32 | float64](scores []F, groups int, chosen []int, masked F) []F {
	y := slices.Clone(scores)
	maskGroups(y, groups, chosen, masked)
	return y
}

// maskGroups sets a token's scores to masked in all groups that are not chosen.
func maskGroups[F float32 | float64](scores []F, groups int, chosen []int, masked F) {
	size := len(scores) / groups
	for g := range groups {
		if slices.Contains(chosen, g) {
			continue
		}
		for e := range size {
			scores[g*size+e] = masked
		}
	}
}

// TopK implements Arithmetic.
func (p *Plain) TopK(scores *Activation, k int) []int {
	idx, order := make([]int, 0, scores.Rows()*k), make([]int, scores.Width())
	for t := range scores.Rows() {
		idx = append(idx, topK(order, scores.Row(t), k)...)
	}
	return idx
}

// TopK returns the positions of the k largest of x, largest first, the lower position
// first among equals.
func TopK[F float32 | float64](x []F, k int) []int {
	return topK(make([]int, len(x)), x, k)
}

// topK is TopK with the memory of order, which is as long as x.
func topK[F float32 | float64](order []int, x []F, k int) []int {
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case x[a] > x[b]:
			return -1
		case x[a] < x[b]:
			return 1
		}
		return 0 // NaN too
	})
	return order[:k]
}

// Normalise implements Arithmetic. The sum is taken in float64.
func (p *Plain) Normalise(w *Activation, d Divisor) *Activation {
	y := p.Make(w.DType, w.Shape...)
	for t := range y.Rows() {
		total := rowTotal(w.Row(t), d, w.format())
		for i, v := range w.Row(t) {
			y.Row(t)[i] = kernel.Rounded(v/total, y.format())
		}
	}
	return y
}

// rowTotal returns the divisor of w's sum, rounded to f after the sum and again after d.
func rowTotal(w []float32, d Divisor, f kernel.Format) float32 {
	sum := 0.0
	for _, v := range w {
		sum += float64(v)
	}
	return kernel.Rounded(d.Of(kernel.Rounded(float32(sum), f)), f)
}

// Scale implements Arithmetic.
func (p *Plain) Scale(x *Activation, factor float32) *Activation {
	y := p.Make(x.DType, x.Shape...)
	for i, v := range x.Values {
		y.Values[i] = v * factor
	}
	kernel.RoundTo(y.Values, y.format())
	return y
}

// Combine implements Arithmetic.
func (p *Plain) Combine(weight *Activation, parts []Part[*Activation], order config.RoutedSum) *Activation {
	out := parts[0].Out
	y := p.Make(out.DType, weight.Rows(), out.Width())
	if order == config.ByChoice {
		p.sumByChoice(y, weight, parts)
	} else {
		p.sumByExpert(y, weight, parts)
	}
	return y
}

// sumByExpert adds the weighted parts to y one after the other.
func (p *Plain) sumByExpert(y, weight *Activation, parts []Part[*Activation]) {
	clear(y.Values)
	k, format := weight.Width(), y.format()
	for _, part := range parts {
		mark := p.arena.Mark()
		weighted := p.Make(y.DType, part.Out.Shape...)
		p.Each(len(part.Slots), 2*len(part.Out.Values), func(first int) {
			if first > 0 && part.Slots[first-1]/k == part.Slots[first]/k {
				return // the token's first slot of this expert adds all of them
			}
			for i := first; i < len(part.Slots) && part.Slots[i]/k == part.Slots[first]/k; i++ {
				slot, product := part.Slots[i], weighted.Row(i)
				for c, v := range part.Out.Row(i) {
					product[c] = v * weight.Values[slot]
				}
				kernel.RoundTo(product, format)
				sum := y.Row(slot / k)
				for c, v := range product {
					sum[c] += v
				}
				kernel.RoundTo(sum, format)
			}
		})
		p.arena.Release(mark, nil, nil)
	}
}

// sumByChoice sums each token's weighted parts in float64, in the order of its choices.
func (p *Plain) sumByChoice(y, weight *Activation, parts []Part[*Activation]) {
	outs := make([][]float32, len(weight.Values)) // by slot
	for _, part := range parts {
		for i, slot := range part.Slots {
			outs[slot] = part.Out.Row(i)
		}
	}
	k, product, sum := weight.Width(), weight.format(), make([]float64, y.Width())
	for t := range y.Rows() {
		clear(sum)
		for slot := t * k; slot < (t+1)*k; slot++ {
			for c, v := range outs[slot] {
				sum[c] += float64(kernel.Rounded(float32(v*weight.Values[slot]), product))
			}
		}
		for c, v := range sum {
			y.Row(t)[c] = kernel.Rounded(float32(v), y.format())
		}
	}
}

// AuxLoss implements Arithmetic. The sums are float64.
func (p *Plain) AuxLoss(scores *Activation, idx []int, sequences int, alpha float64) *Activation {
	ce, loss := ExpertLoad(scores, idx, sequences), 0.0
	for i, s := range scores.Values {
		loss += float64(ce(i) * float64(s))
	}
	mean := float32(loss * (alpha / float64(scores.Rows())))
	y := &Activation{Shape: []int{1}, Values: []float32{mean}, DType: scores.DType}
	kernel.RoundTo(y.Values, y.format())
	return y
}

// ExpertLoad returns a function of the position of a score, which gives ce of its sequence and
// expert: how often the sequence chose the expert, over the expert's fair share.
func ExpertLoad(scores *Activation, idx []int, sequences int) func(i int) float64 {
	n, tokens := scores.Width(), scores.Rows()/sequences
	k := len(idx) / scores.Rows()
	ce := make([]float64, sequences*n)
	for i, e := range idx {
		ce[i/k/tokens*n+e]++
	}
	for i := range ce {
		ce[i] /= float64(tokens*k) / float64(n)
	}
	return func(i int) float64 { return ce[i/n/tokens*n+i%n] }
}
