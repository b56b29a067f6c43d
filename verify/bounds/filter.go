package bounds

import (
	"cmp"
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// screenZ is the z of the screen up to which a neuron is not suspected.
const screenZ = 4

// filter looks for a wrong neuron: one that is off changes all outputs of its MLP a little, each
// below its noise. The residual of a token, projected on the neuron's column of down_proj,
// collects that. With D = down_proj [o, i], of a routed expert times its weight, outputs of
// variance s_o² = v_o + ulp(max(|g_o|, |y_o|))²/12, and w_o = 1/s_o²:
//
//	N_i = Σ_o D_oi·w_o·(g_o - y_o)
//	z_i = |N_i| / √Var(N_i)
//
// The variance is found in up to three steps, because the exact one takes a product with all
// of D for each neuron and token. A screen takes outputs for independent of each other, which
// they are if D is random:
//
//	Var(N_i) ≈ E_i·(1 + v_hi·E_i),  E_i = Σ_o D_oi²·w_o,  v_hi the neuron's own variance
//
// Neurons beyond screenZ have their exact variance computed (examineExactly). Where a token has too
// many of them, a simulation finds those that are worth it (simulate).
type filter struct {
	*Analysis
	x        *Value    // the stage
	want     []float32 // its golden
	selected *Rows     // its rows that are compared
	factor   float64   // the user's, on standard deviations
	outputs  *classes  // of the stage's columns; nil if no two are equal
	related  []bool    // tokens with related experts

	terms    [][]term    // of each token, what its row is the sum of
	suspects [][]suspect // of each token
	crowded  []bool      // tokens that had more than mostSuspects

	named *Neuron
	z     float64
}

// term is a row of a product.
type term struct {
	*product
	row int
}

// suspect is a neuron whose exact z is to be computed. Its Z is an estimate.
type suspect struct {
	Neuron
	term
}

// filter returns a filter of stage x, with the terms of its tokens.
func (a *Analysis) filter(x *Value, want []float32) *filter {
	f := &filter{Analysis: a, x: x, want: want, outputs: classesOf(x),
		terms: make([][]term, x.Rows()), suspects: make([][]suspect, x.Rows()), crowded: make([]bool, x.Rows()),
		related: make([]bool, x.Rows())}
	for i := range x.Products {
		p := &x.Products[i]
		if p.tokens == nil { // all tokens take part in it
			for t := range x.Rows() {
				p.tokens = append(p.tokens, t)
			}
		}
		for row, t := range p.tokens {
			f.terms[t] = append(f.terms[t], term{p, row})
		}
	}
	for t, terms := range f.terms {
		for i, x := range terms {
			f.related[t] = f.related[t] || slices.ContainsFunc(terms[:i], func(y term) bool {
				return haveNeuronsInCommon(x.deviations(), y.deviations())
			})
		}
	}
	return f
}

// inScope calls do, and takes back what it took from the arithmetic of errors.
func (f *filter) inScope(do func()) {
	f.scratch(func() *model.Activation {
		do()
		return &model.Activation{}
	})
}

// weight is what the product's row is multiplied by.
func (t term) weight() float64 {
	if t.weights == nil {
		return 1
	}
	return float64(t.weights[t.row])
}

// deviations are the standard deviations of the row's neurons, in units of u.
func (t term) deviations() []float32 { return t.neurons(t.row) }

// consider takes note of a neuron's z, and names the better suspect: beyond the limit, with the larger share of the
// residual, then with the larger explained part, then with the larger z.
func (f *filter) consider(n Neuron) {
	f.z = max(f.z, n.Z)
	over, m := n.Z > NeuronLimit, f.named
	clearer := cmp.Or(cmp.Compare(n.Share, m.Share), cmp.Compare(n.explained, m.explained), cmp.Compare(n.Z, m.Z)) > 0
	if beyond := m.Z > NeuronLimit; over && !beyond || over == beyond && clearer {
		f.named = &n
	}
}

// addSuspect adds a suspect, and keeps the mostSuspects first ones of a token.
func (f *filter) addSuspect(s suspect) {
	all := append(f.suspects[s.Token], s)
	if len(all) == 2*mostSuspects {
		slices.SortFunc(all, suspect.compare)
		all = all[:mostSuspects]
		f.crowded[s.Token] = true
	}
	f.suspects[s.Token] = all
}

// suspectKey names a neuron of a token.
type suspectKey struct{ token, expert, index int }

func (s *suspect) key() suspectKey { return suspectKey{s.Token, s.Expert, s.Index} }

// compare orders suspects: neurons that a residual certainly lies on, by falling z.
func (s suspect) compare(r suspect) int {
	sure := func(n suspect) int {
		if n.Share >= Certain {
			return 0
		}
		return 1
	}
	return cmp.Or(sure(s)-sure(r), cmp.Compare(r.Z, s.Z), s.Token-r.Token, s.Expert-r.Expert, s.Index-r.Index)
}

// screen computes the screen's z of the neurons of one MLP for each of its tokens.
func (f *filter) screen(p *product) {
	rows, width := len(p.tokens), f.x.Width()
	residuals, inverse := f.errors.Make(tensor.F32, rows, width), f.errors.Make(tensor.F32, rows, width)
	least, totals := make([]float64, rows), make([]float64, rows)
	for i, t := range p.tokens {
		least[i], totals[i] = f.residual(residuals.Row(i), inverse.Row(i), t)
	}
	sums, energies := f.errors.Columns(residuals, inverse, &p.down.Weight)
	for i, t := range p.tokens {
		if _, compared := slices.BinarySearch(f.selected.Compared, t); !compared {
			continue // padding
		}
		f.judgeProjections(term{p, i}, sums.Row(i), energies.Row(i), least[i], max(0, totals[i]-float64(width)))
	}
}

// judgeProjections judges the projections of a token's residual on the neurons of one MLP. The
// variances are those of sums and energies times least; what exceeds rounding in the residual
// is excess.
func (f *filter) judgeProjections(t term, sums, energies []float32, least, excess float64) {
	weight, deviations := math.Abs(t.weight()), t.deviations()
	explained := func(k int) float64 {
		if energies[k] == 0 {
			return 0
		}
		return math.Abs(float64(sums[k])) / math.Sqrt(float64(energies[k]))
	}
	most, second, clearest := 0.0, 0.0, 0
	for k := range sums {
		if e := explained(k); e > most {
			most, second, clearest = e, most, k
		} else {
			second = max(second, e)
		}
	}
	token := t.tokens[t.row]
	for k := range sums {
		n := Neuron{Expert: t.expert, Index: k, Token: token, explained: Sq(explained(k))}
		n.Z = explained(k) / math.Sqrt(1+Sq(Unit*float64(deviations[k])*weight)*float64(energies[k])/least) / f.factor
		if k == clearest && 2*Sq(second) < Sq(most) {
			n.Share = min(1, Ratio(Sq(most), excess))
		}
		if n.Z > screenZ {
			f.addSuspect(suspect{n, t})
		} else if n.Share > 0 || n.Z > f.z {
			f.consider(n)
		}
	}
}

// variances are s² of a token's outputs: the variance computed, and that of the golden's rounding.
func (f *filter) variances(t int) []float64 {
	p, s2 := PrecisionOf(f.x.DType), make([]float64, f.x.Width())
	for c := range s2 {
		i := t*len(s2) + c
		largest := max(math.Abs(float64(f.want[i])), math.Abs(float64(f.x.Values[i])))
		s2[c] = float64(f.x.Variance(i)*(Unit*Unit)) + Sq(p.Ulp(largest))/12
	}
	return s2
}

// residual sets the two rows to (g - y)·m/s² and m²/s² of a token, m² being the smallest s²,
// which it returns with the sum of all squares of the residual, in standard deviations.
func (f *filter) residual(residuals, inverse []float32, t int) (least, total float64) {
	s2 := f.variances(t)
	least = slices.Min(s2)
	for c, s2 := range s2 {
		i := t*len(inverse) + c
		inverse[c] = float32(least / s2)
		r := float64(f.want[i]) - float64(f.x.Values[i])
		residuals[c] = float32(r * math.Sqrt(least) / s2)
		total += float64(r * r / s2)
	}
	return least, total
}

// mostSuspects is how many neurons of a token are examined one by one; if more are suspected,
// a simulation thins them out first.
const mostSuspects = 64

// examinedAtOnce is how many neurons are examined with one reading of down_proj: of DeepSeek-V3 they take 100 MB.
const examinedAtOnce = 8 * mostSuspects
