package verify

import (
	"math"
	"slices"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// Neuron is the neuron of an MLP on which most of a residual lies.
type Neuron struct {
	Expert int     `json:"expert"` // number of the routed expert, -1 for other MLPs
	Index  int     `json:"index"`  // row of gate_proj and up_proj, column of down_proj
	Token  int     `json:"token"`  // row of the stage
	Z      float64 `json:"z"`      // the largest of a neuron for the token, in standard deviations
	// Share is how much of the token's residual, of what exceeds rounding, lies on the neuron;
	// 0 if another neuron would explain half of that.
	Share float64 `json:"share"`
}

// certain is the share of a residual from which on it is the neuron's.
const certain = 0.9

// neurons looks for a wrong neuron: one that is off changes all outputs a little, each
// below its noise. The residual of a token, projected on the neuron's column of down_proj,
// collects that. With D = down_proj [o, i], of a routed expert times its weight:
//
//	s_o² = v_o + ulp(max(|g_o|, |y_o|))²/12
//	N_i  = Σ_o D_oi·(g_o - y_o)/s_o²,  E_i = Σ_o D_oi²/s_o²
//	z_i  = |N_i| / √(E_i·(1 + v_hi·E_i)),  v_hi the neuron's own variance
//
// The largest z of all is returned, too. The neuron that is named is the one on which most of
// a token's residual lies, of largest N_i²/E_i, of the token that says so most clearly.
func (a *analysis) neurons(x *value, want []float32, factor float64) (named *Neuron, z float64) {
	named = &Neuron{Expert: -1}
	for _, p := range x.products {
		if p.tokens == nil {
			for t := range x.Rows() {
				p.tokens = append(p.tokens, t)
			}
		}
		a.errors.Scope(&model.Activation{}, func(*model.Activation) *model.Activation {
			a.projected(x, want, &p, func(n Neuron) {
				n.Z /= factor
				z = max(z, n.Z)
				if n.clearer(named) {
					named = &n
				}
			})
			return &model.Activation{}
		})
	}
	return named, z
}

// clearer says whether n is a better answer than m: beyond the limit, and sure of it.
func (n *Neuron) clearer(m *Neuron) bool {
	if over := n.Z > neuronZ; over != (m.Z > neuronZ) {
		return over
	}
	if n.Share != m.Share {
		return n.Share > m.Share
	}
	return n.Z > m.Z
}

// projected gives the worst neuron of one MLP for each of its tokens.
func (a *analysis) projected(x *value, want []float32, p *product, found func(Neuron)) {
	residuals, inverse := a.errors.Make(tensor.F32, len(p.tokens), x.Width()), a.errors.Make(tensor.F32, len(p.tokens), x.Width())
	scales := make([]float64, len(p.tokens)) // the smallest s² of a token, which the sums are in
	totals := make([]float64, len(p.tokens))
	for i, t := range p.tokens {
		scales[i], totals[i] = residual(residuals.Row(i), inverse.Row(i), x, want, t)
	}
	sums, energies := a.errors.Columns(residuals, inverse, &p.down.Weight)
	for i, t := range p.tokens {
		weight, most, second, n := 1.0, 0.0, 0.0, Neuron{Expert: p.expert, Token: t}
		if p.weights != nil {
			weight = math.Abs(float64(p.weights[i]))
		}
		for k, projection := range sums.Row(i) {
			e := float64(energies.Row(i)[k]) * sq(weight)
			if e == 0 {
				continue
			}
			v := sq(unit * float64(p.hidden[i*sums.Width()+k]))
			explained := weight * math.Abs(float64(projection)) / math.Sqrt(e)
			if explained > most {
				most, second, n.Index = explained, most, k
			} else {
				second = max(second, explained)
			}
			n.Z = max(n.Z, explained/math.Sqrt(1+float64(v*e)/scales[i]))
		}
		if 2*sq(second) < sq(most) {
			n.Share = min(1, ratio(sq(most), max(0, totals[i]-float64(x.Width()))))
		}
		found(n)
	}
}

// residual sets the two rows to (g - y)·m/s² and m²/s² of a token, m² being the smallest s²,
// which it returns with the sum of all squares of the residual, in standard deviations.
func residual(residuals, inverse []float32, x *value, want []float32, t int) (least, total float64) {
	p, width := precisionOf(x.DType), x.Width()
	variances := make([]float64, width)
	for c := range variances {
		i := t*width + c
		largest := max(math.Abs(float64(want[i])), math.Abs(float64(x.Values[i])))
		variances[c] = float64(x.v(i)*(unit*unit)) + sq(p.ulp(largest))/12
	}
	least = slices.Min(variances)
	for c, s2 := range variances {
		i := t*width + c
		inverse[c] = float32(least / s2)
		r := float64(want[i]) - float64(x.Values[i])
		residuals[c] = float32(r * math.Sqrt(least) / s2)
		total += float64(r * r / s2)
	}
	return least, total
}
