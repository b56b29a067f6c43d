package bounds

import (
	"math"
	"math/rand/v2"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// draws is how many residuals of a token are simulated: a variance that they estimate has a
// standard deviation of a quarter. One that is too large by 9/4, which would hide a z of 6
// behind screenZ, comes up once in 20,000 times.
const draws = 32

// simulatedElements bounds the numbers of a product of simulated residuals.
const simulatedElements = 1 << 21

// simulate replaces the suspects of tokens that have too many. It draws errors of neurons and of
// outputs, each ± its standard deviation, and projects what they add up to on all neurons: the
// mean of squares estimates Var(N_i), for all neurons of a token at once. Those that stay
// beyond screenZ are suspects.
func (f *filter) simulate() {
	widest := f.x.Width()
	for _, p := range f.x.Products {
		widest = max(widest, p.down.Weight.Shape[1])
	}
	size := max(1, simulatedElements/((draws+1)*widest))
	var block []int
	for t, crowded := range f.crowded {
		if crowded {
			block = append(block, t)
		}
		if len(block) == size || t == len(f.crowded)-1 && len(block) > 0 {
			f.inScope(func() { f.simulateBlock(block) })
			block = block[:0]
		}
	}
}

// simulateBlock does that for a block of tokens.
func (f *filter) simulateBlock(tokens []int) {
	residuals, _ := f.draw(tokens)
	before := map[suspectKey]Neuron{}
	for _, t := range tokens {
		for _, s := range f.suspects[t] {
			before[s.key()] = s.Neuron
		}
		f.suspects[t] = nil
	}
	f.each(tokens, func(p *product, rows []position) {
		some := f.errors.Make(tensor.F32, len(rows)*(draws+1), f.x.Width())
		for i, r := range rows {
			n := (draws + 1) * f.x.Width()
			copy(some.Values[i*n:(i+1)*n], residuals.Values[r.at*n:(r.at+1)*n])
		}
		f.errors.EachColumns(some, &p.down.Weight, func(from int, projections *model.Activation) {
			for i, r := range rows {
				f.suspectAgain(r.term, from, projections, i*(draws+1), before)
			}
		})
	})
}

// draw returns the draws of each token's residual, followed by the real residual, all times w, and the tokens' noises.
func (f *filter) draw(tokens []int) (*model.Activation, []noise) {
	noises := f.noises(tokens)
	residuals := f.errors.Make(tensor.F32, len(tokens)*(draws+1), f.x.Width())
	clear(residuals.Values)
	f.each(tokens, func(p *product, rows []position) { f.drawNeurons(residuals, p, rows, noises) })
	for i, t := range tokens {
		next := newSigns(t, -2)
		common, signs := next(), f.outputs.signs(f.x.Width(), next)
		n, first := &noises[i], i*(draws+1)
		for o, q := range n.rest { // the outputs' own errors and their common one
			s := float32(math.Sqrt(q))
			for d := range draws {
				e := &residuals.Row(first + d)[o]
				*e = (*e + signed(s, signs[o]>>d) + signed(float32(n.common[o]), common>>d)) * n.inverse[o]
			}
		}
		copy(residuals.Row(first+draws), n.scaled)
	}
	return residuals, noises
}

// Independent returns the number of independent errors in row t of a stage: its width if no two errors are correlated,
// 1 if one error moves all outputs along one direction. The RMS of so many independent errors varies as much as the
// row's. With simulated errors z and z', in standard deviations, it is (mean z·z)² / mean (z·z')².
func (a *Analysis) Independent(x *Value, want []float32, t int) int {
	if x.Products == nil {
		return x.Width()
	}
	f, own, mixed := a.filter(x, want), 0.0, 0.0
	f.inScope(func() {
		residuals, noises := f.draw([]int{t})
		z := residuals.Values[:draws*x.Width()]
		for i := range z {
			z[i] /= float32(math.Sqrt(float64(noises[0].inverse[i%x.Width()])))
		}
		for i, product := range f.errors.Product(z, z, x.Width()) {
			if product := float64(product); i/draws == i%draws {
				own += product / draws
			} else {
				mixed += Sq(product) / (draws * (draws - 1))
			}
		}
	})
	return max(1, min(x.Width(), int(Sq(own)/mixed+0.5)))
}

// drawNeurons adds to the draws of tokens what errors of a product's neurons do to outputs.
func (f *filter) drawNeurons(residuals *model.Activation, p *product, rows []position, noises []noise) {
	width := p.down.Weight.Shape[1]
	errors := f.errors.Make(tensor.F32, len(rows)*draws, width)
	for i, r := range rows {
		token, expert := p.tokens[r.row], p.expert
		if f.related[token] {
			expert = -1 // neurons in common have one error
		}
		scale, signs := Unit*r.weight()/math.Sqrt(noises[r.at].least), p.equal.signs(width, newSigns(token, expert))
		for k, s := range r.deviations() {
			for d := range draws {
				errors.Values[(i*draws+d)*width+k] = signed(float32(scale*float64(s)), signs[k]>>d)
			}
		}
	}
	outputs := f.errors.Linear(errors, &model.Linear{Weight: p.down.Weight})
	for i, r := range rows {
		for d := range draws {
			sum := residuals.Row(r.at*(draws+1) + d)
			for o, e := range outputs.Row(i*draws + d) {
				sum[o] += e
			}
		}
	}
}

// suspectAgain estimates the z of neurons from … of the projections of draws, and of the real
// residual, which are rows of a tile.
func (f *filter) suspectAgain(t term, from int, projections *model.Activation, row int, before map[suspectKey]Neuron) {
	for k, projection := range projections.Row(row + draws) {
		sum := 0.0
		for d := range draws {
			sum += Sq(float64(projections.Row(row + d)[k]))
		}
		s := suspect{Neuron{Expert: t.expert, Index: from + k, Token: t.tokens[t.row]}, t}
		s.Z = Ratio(math.Abs(float64(projection)), math.Sqrt(sum/draws)) / f.factor
		s.Share, s.explained = before[s.key()].Share, before[s.key()].explained
		if s.Z > screenZ {
			f.addSuspect(s)
		} else if s.Share > 0 || s.Z > f.z {
			f.consider(s.Neuron)
		}
	}
}

// newSigns returns a generator of random bits, the same for the same token and expert.
func newSigns(token, expert int) func() uint64 {
	return rand.NewPCG(uint64(token), uint64(expert)).Uint64
}

// signs returns random bits for each of n columns, the same bits for the columns of a class.
func (c *classes) signs(n int, next func() uint64) []uint64 {
	signs := make([]uint64, n)
	for i := range signs {
		if c == nil || c.first[c.class[i]] == i {
			signs[i] = next()
		} else {
			signs[i] = signs[c.first[c.class[i]]]
		}
	}
	return signs
}

// signed is s or, if the lowest bit is set, -s.
func signed(s float32, bits uint64) float32 {
	return math.Float32frombits(math.Float32bits(s) ^ uint32(bits&1)<<31)
}
