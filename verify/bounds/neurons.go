package bounds

import (
	"slices"
)

// Neurons returns the largest z of a neuron, and the neuron on which most of a token's residual
// lies, of largest N_i²/E_i, of the token that says so most clearly. Once a neuron is beyond
// the limit, neurons that are less suspicious are not examined any more.
func (a *Analysis) Neurons(x *Value, want []float32, rows *Rows, factor float64) (named *Neuron, z float64) {
	f := &filter{
		Analysis: a, x: x, want: want, selected: rows, factor: factor, named: &Neuron{Expert: -1},
		terms: make([][]term, x.Rows()), suspects: make([][]suspect, x.Rows()), crowded: make([]bool, x.Rows()),
	}
	for i := range x.Products {
		f.add(&x.Products[i])
	}
	for i := range x.Products {
		f.inScope(func() { f.screen(&x.Products[i]) })
	}
	f.examine()
	return f.named, f.z
}

// examine computes the exact z of the neurons that are suspected, until one is beyond the
// limit.
func (f *filter) examine() {
	all := f.sorted()
	n := min(mostSuspects, len(all))
	f.inScope(func() { f.examineExactly(all[:n]) })
	if f.z > NeuronLimit || len(all) == 0 {
		return
	}
	for _, s := range all[:n] {
		same := func(other suspect) bool { return other.key() == s.key() }
		f.suspects[s.Token] = slices.DeleteFunc(f.suspects[s.Token], same)
	}
	f.simulate()
	for batch := range slices.Chunk(f.sorted(), mostSuspects) {
		if f.z > NeuronLimit {
			return
		}
		f.inScope(func() { f.examineExactly(batch) })
	}
}

// sorted are the suspects of all tokens.
func (f *filter) sorted() []suspect {
	all := slices.Concat(f.suspects...)
	slices.SortFunc(all, suspect.compare)
	return all
}
