package routing

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"dsmoe/inspect"
)

// layerTally counts a layer's choices. Its memory is a number per pair of experts, and one per token for the margins.
type layerTally struct {
	layer, experts, k int
	tokens            int
	counts            []int     // n_e
	mass              []float64 // Σ of gate weights by expert; nil if they are not known
	total             float64   // Σ of all gate weights
	pairs             []uint32  // n_ij at pair(i, j)
	scored            bool      // selection scores are known
	margins           []float64
	byTable           bool    // a table gives each token its experts: there are no margins, and an expert may come twice
	below             int     // tokens without a margin: the scores exclude a chosen expert
	lastToken         []int   // by expert: the last token that chose it, from 1
	blocks            *blocks // nil unless they are counted
}

// newTally returns the tally of a layer whose gate weights, and selection scores, are known or not.
func newTally(layer, experts, k int, weighed, scored bool) *layerTally {
	t := &layerTally{layer: layer, experts: experts, k: k, counts: make([]int, experts),
		pairs:  make([]uint32, experts*(experts-1)/2),
		scored: scored, lastToken: make([]int, experts)}
	if weighed {
		t.mass = make([]float64, experts)
	}
	return t
}

// pair is the place of experts i < j among all pairs, row after row.
func (t *layerTally) pair(i, j int) int { return i*(2*t.experts-i-1)/2 + j - i - 1 }

// choose counts the experts of the next token. They must be k different ones unless a table gives them.
func (t *layerTally) choose(ids []int) error {
	t.tokens++
	for _, e := range ids {
		if e < 0 || e >= t.experts {
			return fmt.Errorf("expert %d is not one of %d", e, t.experts)
		}
		if t.lastToken[e] == t.tokens && !t.byTable {
			return fmt.Errorf("expert %d appears twice", e)
		}
		t.lastToken[e] = t.tokens
		t.counts[e]++
	}
	for a, i := range ids {
		for _, j := range ids[a+1:] {
			if i != j {
				t.pairs[t.pair(min(i, j), max(i, j))]++
			}
		}
	}
	return nil
}

// weigh adds a token's gate weights, in the order of its experts.
func (t *layerTally) weigh(ids []int, weights []float32) error {
	for i, e := range ids {
		w := float64(weights[i])
		if !(math.Abs(w) <= math.MaxFloat32) {
			return fmt.Errorf("the gate weight of expert %d is %g", e, w)
		}
		t.mass[e] += w
		t.total += w
	}
	return nil
}

// score notes how near a token's choice of experts was, by its selection scores.
func (t *layerTally) score(ids []int, scores []float32) error {
	if i := slices.IndexFunc(scores, func(v float32) bool { return !(v <= math.MaxFloat32) }); i >= 0 {
		return fmt.Errorf("the score of expert %d is %g", i, scores[i])
	}
	lowest, highest := math.Inf(1), math.Inf(-1)
	for e, v := range scores {
		if slices.Contains(ids, e) {
			lowest = min(lowest, float64(v))
		} else {
			highest = max(highest, float64(v))
		}
	}
	switch {
	case math.IsInf(lowest, -1):
		t.below++
	case !math.IsInf(highest, -1):
		t.margins = append(t.margins, lowest-highest)
	}
	return nil
}

// report returns the layer's numbers.
func (t *layerTally) report(o Options) Layer {
	n, k, tokens := float64(t.experts), float64(t.k), float64(t.tokens)
	fair := tokens * k / n
	r := Layer{Layer: t.layer, Tokens: t.tokens, MaxEntropy: decimals(math.Log(n)), Unreached: []int{},
		Experts:   []expert{},
		CVUniform: math.Sqrt((1 - k/n) / fair), UnreachedUniform: decimals(n * math.Pow(1-k/n, tokens)),
		Margins: t.marginReport(), Pairs: t.pairReport(o), blocks: t.blocks}
	squares := 0.0
	for e, count := range t.counts {
		share := float64(count) / (tokens * k)
		if count == 0 {
			r.Unreached = append(r.Unreached, e)
		} else {
			r.Entropy -= float64(share * math.Log(share))
		}
		off := float64(count) - fair
		squares += float64(off * off)
		r.MaxVio = max(r.MaxVio, off/fair)
		if o.Experts.Has(e) {
			x := expert{Expert: e, Tokens: count, Share: share, Load: float64(count) / fair}
			if t.mass != nil {
				mean := t.mass[e] / tokens
				x.Mass, x.MeanWeight = &t.mass[e], &mean
			}
			r.Experts = append(r.Experts, x)
		}
	}
	r.Entropy = decimals(r.Entropy)
	r.CV = math.Sqrt(squares/n) / fair
	if t.mass != nil {
		mean := t.total / tokens
		r.Mass = &mean
	}
	return r
}

// decimals rounds to 12 of them: the last bits of a logarithm depend on the machine.
func decimals(v float64) float64 { return math.Round(v*1e12)/1e12 + 0 }

// pairReport returns the pairs of selected experts that share a token: all, or those furthest above what is expected.
func (t *layerTally) pairReport(o Options) []pair {
	pairs := []pair{}
	for i := range t.experts {
		for j := i + 1; j < t.experts; j++ {
			if n := int(t.pairs[t.pair(i, j)]); n > 0 && o.Experts.Has(i) && o.Experts.Has(j) {
				a, b := float64(t.counts[i]), float64(t.counts[j])
				pairs = append(pairs, pair{[2]int{i, j}, n, a * b / float64(t.tokens), float64(n) / a, float64(n) / b})
			}
		}
	}
	if o.By == inspect.ByPair {
		return pairs
	}
	above := func(p pair) float64 { return float64(p.Tokens) - p.Expected }
	slices.SortStableFunc(pairs, func(a, b pair) int { return cmp.Compare(above(b), above(a)) })
	return slices.Clone(pairs[:min(len(pairs), maxPairs)])
}

// marginReport sums the margins up.
func (t *layerTally) marginReport() *margins {
	if !t.scored {
		return nil
	}
	m := &margins{Tokens: len(t.margins), Below: t.below}
	if m.Tokens == 0 {
		return m
	}
	slices.Sort(t.margins)
	quantile := func(percent int) *float64 { return &t.margins[max((m.Tokens*percent+99)/100, 1)-1] }
	m.Min, m.Q01, m.Q10, m.Median = quantile(0), quantile(1), quantile(10), quantile(50)
	for _, v := range t.margins {
		switch {
		case v == 0:
			m.Ties++
		case v < 0:
			m.Below++
		}
	}
	return m
}
