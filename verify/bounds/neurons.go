package bounds

import (
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// Neurons returns the largest z of a neuron, and the neuron on which most of a token's residual
// lies, of largest N_i²/E_i, of the token that says so most clearly. Once a neuron is beyond
// the limit, neurons that are less suspicious are not examined any more.
func (a *Analysis) Neurons(x *Value, want []float32, rows *Rows, factor float64) (named *Neuron, z float64) {
	f := a.filter(x, want)
	f.selected, f.factor, f.named = rows, factor, &Neuron{Expert: -1}
	for i := range x.Products {
		f.inScope(func() { f.screen(&x.Products[i]) })
		a.errors.DontNeed(&x.Products[i].down.Weight)
	}
	all := f.sorted()
	if !slices.Contains(f.crowded, true) {
		f.examineInTurn(all)
		return f.named, f.z
	}
	first := all[:mostSuspects] // a crowded token has as many
	if f.examineInTurn(first); f.z > NeuronLimit {
		return f.named, f.z
	}
	for _, s := range first {
		same := func(other suspect) bool { return other.key() == s.key() }
		f.suspects[s.Token] = slices.DeleteFunc(f.suspects[s.Token], same)
	}
	f.simulate()
	f.examineInTurn(f.sorted())
	return f.named, f.z
}

// examineInTurn computes the exact z of suspects, and takes note of mostSuspects of them at a time until a neuron is
// beyond the limit. down_proj is read once for examinedAtOnce of them.
func (f *filter) examineInTurn(suspects []suspect) {
	for batch := range slices.Chunk(suspects, examinedAtOnce) {
		f.inScope(func() { f.examineExactly(batch) })
		for some := range slices.Chunk(batch, mostSuspects) {
			for _, s := range some {
				f.consider(s.Neuron)
			}
			if f.z > NeuronLimit {
				return
			}
		}
	}
}

// sorted are the suspects of all tokens.
func (f *filter) sorted() []suspect {
	all := slices.Concat(f.suspects...)
	slices.SortFunc(all, suspect.compare)
	return all
}

// noise is what a right token's residual consists of.
type noise struct {
	least   float64   // smallest variance s² of an output
	inverse []float32 // w = least/s² of each output
	scaled  []float32 // (g - y)·√least/s²
	// rest is the variance of each output that is not its neurons' own, in units of least:
	// that of down_proj's sum, of its weights' rounding, and of the golden's.
	rest []float64
	// common are the deviations of the outputs by the neurons' common error, in units of √least.
	common []float64
	// flips is the noise of g - R(y), see filter.flips; nil in float32.
	flips *noise
}

// noises returns the noise of tokens:
//
//	q_o = s_o² - Σ_k D_ok²·v_hk - c_o²,  and at least the variance of the golden's rounding
//
// where k runs over the neurons of all MLPs that the token is a sum of, equal neurons as in carried, and c_o is the
// deviation by their common error.
func (f *filter) noises(tokens []int) []noise {
	width := f.x.Width()
	all := make([]noise, len(tokens))
	for i, t := range tokens {
		n := noise{inverse: make([]float32, width), scaled: make([]float32, width),
			rest: make([]float64, width), common: make([]float64, width)}
		n.least, _ = f.residual(n.scaled, n.inverse, t)
		for _, term := range f.terms[t] {
			if term.common != nil {
				scale := Unit / math.Sqrt(n.least)
				for c, s := range term.common[term.row*width : (term.row+1)*width] {
					n.common[c] += float64(scale * term.weight() * float64(s))
				}
			}
		}
		for c := range n.rest {
			n.rest[c] = float64(f.x.Variance(t*width+c)*(Unit*Unit)) / n.least
		}
		all[i] = n
	}
	f.each(tokens, func(p *product, rows []position) {
		terms := f.errors.Make(tensor.F32, len(rows), p.down.Weight.Shape[1])
		for i, r := range rows {
			r.variances(terms.Row(i), all[r.at].least)
		}
		own := f.carried(terms, &p.down.Weight, p.equal)
		for i, r := range rows {
			for c, v := range own.Row(i) {
				all[r.at].rest[c] -= float64(v)
			}
		}
	})
	for i, t := range tokens {
		for c, s2 := range f.variances(t) {
			golden := s2 - float64(f.x.Variance(t*width+c)*(Unit*Unit))
			all[i].rest[c] = max(0, all[i].rest[c]-Sq(all[i].common[c])) + golden/all[i].least
		}
		if f.x.DType != tensor.F32 {
			all[i].flips = f.flips(t, &all[i])
		}
	}
	return all
}

// flips returns a token's residual g - R(y), R(y) being y rounded, and its noise, for outputs with deviations below
// 1/16 of the spacing of numbers. Only outputs that may round to either neighbour have noise. Parallel columns of
// down_proj put all outputs along one direction, and rounding may move them all the same way. Then g - y lies along
// each neuron although every g is R(y).
func (f *filter) flips(t int, n *noise) *noise {
	p, width := PrecisionOf(f.x.DType), f.x.Width()
	flips := &noise{least: n.least, inverse: n.inverse, scaled: make([]float32, width),
		rest: make([]float64, width), common: make([]float64, width)}
	for c, inverse := range n.inverse {
		i := t*width + c
		y := float64(f.x.Values[i])
		if Unit*math.Sqrt(f.x.Variance(i)) >= p.Ulp(y)/16 { // g - y says more than g - R(y)
			flips.scaled[c], flips.rest[c] = n.scaled[c], n.rest[c]
			continue
		}
		r, v := p.point(y, f.x.Variance(i))
		flips.scaled[c] = float32((float64(f.want[i]) - r) * float64(inverse) / math.Sqrt(n.least))
		flips.rest[c] = v * (Unit * Unit) / n.least
	}
	return flips
}

// position is a product's row with the number of its token in a list.
type position struct {
	term
	at int
}

// variances sets dst to the variances of the row's neurons times their squared weight, in
// units of least.
func (t term) variances(dst []float32, least float64) {
	scale := Sq(Unit*t.weight()) / least
	for k, s := range t.deviations() {
		dst[k] = float32(scale * Sq(float64(s)))
	}
}

// each calls visit for each product that some of the tokens are a sum of, with its rows. Memory
// of the arithmetic of errors is taken back after visit.
func (f *filter) each(tokens []int, visit func(p *product, rows []position)) {
	for i := range f.x.Products {
		p, rows := &f.x.Products[i], []position(nil)
		for at, t := range tokens {
			for _, term := range f.terms[t] {
				if term.product == p {
					rows = append(rows, position{term, at})
				}
			}
		}
		if rows != nil {
			f.inScope(func() { visit(p, rows) })
			f.errors.DontNeed(&p.down.Weight)
		}
	}
}

// examineExactly sets the z of suspects to the exact one. With M = Dᵀ·diag(w)·D, of which it computes the
// suspects' rows, and k over the neurons of all MLPs that the token is a sum of, each of their
// columns of D times its expert's weight:
//
//	Var(N_i) = Σ_k M_ik²·v_hk + Σ_o D_oi²·w_o²·q_o + (Σ_o D_oi·w_o·c_o)²
//
// classes.squares has the sums over k and o: equal neurons, and equal outputs, have one error. Experts with neurons in
// common add contribution.covariance. In 16 bits z is at most the z of flips.
func (f *filter) examineExactly(suspects []suspect) {
	n := len(suspects)
	tokens := make([]int, n)
	for i, s := range suspects {
		tokens[i] = s.Token
	}
	distinct := slices.Compact(slices.Sorted(slices.Values(tokens)))
	noises := f.noises(distinct)
	columns := f.errors.Make(tensor.F32, n, f.x.Width()) // D_oi·w_o
	sums, variances, least := make([]float64, n), make([]float64, n), make([]float64, n)
	flipped := make([]float64, n) // z of flips
	for i, s := range suspects {
		at, _ := slices.BinarySearch(distinct, s.Token)
		least[i], flipped[i] = noises[at].least, math.Inf(1)
		column := f.errors.Column(&s.down.Weight, s.Index)
		if flips := noises[at].flips; flips != nil {
			sum, variance := flips.project(columns.Row(i), column, s.weight(), f.outputs)
			flipped[i] = Ratio(math.Abs(sum), math.Sqrt(variance))
		}
		sums[i], variances[i] = noises[at].project(columns.Row(i), column, s.weight(), f.outputs)
	}
	before := make([][]contribution, n)
	f.each(tokens, func(p *product, rows []position) {
		some := f.errors.Make(tensor.F32, len(rows), f.x.Width())
		own := f.errors.Make(tensor.F32, len(rows), p.down.Weight.Shape[1])
		for i, r := range rows {
			copy(some.Row(i), columns.Row(r.at))
			r.variances(own.Row(i), least[r.at])
		}
		f.errors.EachColumns(some, &p.down.Weight, func(from int, m *model.Activation) {
			for i := range rows {
				for k, mik := range m.Row(i) {
					v := &own.Row(i)[from+k]
					*v = mik * float32(math.Sqrt(float64(*v))) // M_ik·σ_k
				}
			}
		})
		for i, r := range rows {
			variances[r.at] += p.equal.squares(own.Row(i))
			if f.related[tokens[r.at]] {
				c := contribution{r.deviations(), slices.Clone(own.Row(i))}
				variances[r.at] += c.covariance(before[r.at])
				before[r.at] = append(before[r.at], c)
			}
		}
	})
	for i := range suspects {
		suspects[i].Z = min(Ratio(math.Abs(sums[i]), math.Sqrt(variances[i])), flipped[i]) / f.factor
	}
}

// project sets dst to D_oi·w_o of a column of D, and returns the projection of the residual on
// it, with the variance that is not the neurons' own.
func (n *noise) project(dst, column []float32, weight float64, equal *classes) (sum, variance float64) {
	common, deviations := 0.0, make([]float32, len(column))
	for o, d := range column {
		d := weight * float64(d)
		sum += float64(d * float64(n.scaled[o]))
		a := d * float64(n.inverse[o])
		dst[o], deviations[o] = float32(a), float32(a*math.Sqrt(n.rest[o]))
		common += float64(a * n.common[o])
	}
	return sum, equal.squares(deviations) + Sq(common)
}
