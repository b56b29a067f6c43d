package tensors

import (
	"context"
	"math"
	"slices"

	"dsmoe/inspect"
	"dsmoe/inspect/matrix"
	"dsmoe/model/table"
	"dsmoe/text"
)

// Find reads the weights of w that have numbers, and returns what is odd about them. The error names every weight that
// cannot be read. It takes the memory of two blocks for each worker.
func Find(ctx context.Context, w inspect.Weights) ([]inspect.Observation, error) {
	x := matrix.NewReader(ctx, w)
	var all []*measured
	for _, weight := range w.List {
		if inspect.Countable(weight) != nil || weight.IsScales() || weight.Len() == 0 {
			continue
		}
		m := &measured{Weight: weight, rank: math.NaN()}
		all = append(all, m)
		x.Expect(weight.Bytes())
	}
	for _, m := range all {
		x.Go(func() error { return m.Failed(m.measure(x)) })
	}
	if err := x.Wait(); err != nil {
		return nil, err
	}
	tied := w.Config != nil && w.Config.TieWordEmbeddings
	return slices.Concat(equal(all, tied), rows(all), norms(all), untrained(all), trends(all), coded(all)), nil
}

// equal finds matrices with the numbers of others, by their hashes. Prediction layers have embedding and head again.
func equal(all []*measured, tied bool) (found []inspect.Observation) {
	matrices := slices.DeleteFunc(slices.Clone(all), func(m *measured) bool { return len(m.Shape) != 2 || m.size != m.size })
	one, zero := 1.0, 0.0
	for _, g := range inspect.GroupBy(matrices, func(m *measured) uint64 { return m.hash }) {
		shape := g[0].Shape
		g = slices.DeleteFunc(g, func(m *measured) bool { return !slices.Equal(m.Shape, shape) })
		of := func(role table.Role) int {
			return slices.IndexFunc(g, func(m *measured) bool { return m.Role() == role })
		}
		embedding, head := of(table.EmbedTokens), of(table.LMHead)
		switch vocabulary := !slices.ContainsFunc(g, func(m *measured) bool { return !m.isVocabulary() }); {
		case len(g) < 2 || vocabulary && (tied || embedding < 0 || head < 0):
		case vocabulary:
			found = append(found, g[head].about("head-is-embedding", &one, &zero,
				"has the numbers of %s, and the config does not tie them", text.Quote(g[embedding].Name)))
		default:
			var others []string
			o := g[0].about("duplicate-matrix", &one, &zero, "")
			for i, m := range g {
				o.Members = append(o.Members, inspect.Member{Layer: m.Layer, Experts: []int{}, Tensor: m.Name, Value: &one})
				if i > 0 {
					others = append(others, text.Quote(m.Name))
				}
			}
			o.Text = "has the numbers of " + inspect.List(others)
			found = append(found, o)
		}
	}
	return found
}

// rowFactor: a token's row is a finding from so many times the median of typical magnitudes on. Small rows are no
// finding: tokens that no text has may have rows far smaller than the others.
const rowFactor = 6

// upper returns the values above the median, as many as far below it, and the median: the spread of large rows does not
// depend on the small ones.
func upper(values []float64) (all []float64) {
	known := slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return v != v })
	median := inspect.LowerMedian(known)
	for _, v := range known {
		if v > median {
			all = append(all, v, 2*median-v)
		}
	}
	return append(all, median)
}

// rows finds blocks of zero rows, and rows that are too large, of embedding and head.
func rows(all []*measured) (found []inspect.Observation) {
	tokens := 0
	for _, m := range all {
		tokens += len(m.rows)
	}
	for _, m := range all {
		if m.rows == nil || m.size != m.size {
			continue
		}
		var sizes []float64
		var zeros, large []int
		for r, sum := range m.rows {
			if sizes = append(sizes, sum.Log2()); sizes[r] != sizes[r] {
				zeros = append(zeros, r)
			}
		}
		p, most := inspect.TailedPeersOf(upper(sizes), tokens), 0
		for r, v := range sizes {
			if p.Odd(v, math.Log2(rowFactor)) && v > p.Median {
				if large = append(large, r); len(large) == 1 || v > sizes[most] {
					most = r
				}
			}
		}
		var blocks []int // a single zero row belongs to the padding token; a padded vocabulary ends in zero rows
		for first, last := range text.Runs(zeros) {
			for i := first; i <= last && last > first && last < len(sizes)-1; i++ {
				blocks = append(blocks, i)
			}
		}
		if blocks != nil {
			n := float64(len(blocks))
			found = append(found, m.about("zero-rows", &n, inspect.Finite(0), "%s in blocks are zero, rows %s",
				text.Plural(len(blocks), "row"), text.Ranges(blocks[:min(len(blocks), 100)])))
		}
		if large != nil {
			size, usual := math.Exp2(sizes[most]), math.Exp2(p.Median)
			such := ""
			if len(large) > 1 {
				such = "; such are rows " + inspect.List(large)
			}
			found = append(found, m.about("row-norm", &size, &usual, "row %d has typical magnitude %.4g, the median row %.4g%s",
				most, size, usual, such))
		}
	}
	return found
}

// norms finds norms that are all ones where fewer than half of the numbers of all others are: training in BF16 leaves
// most of them at 1.
func norms(all []*measured) (found []inspect.Observation) {
	for _, kind := range byKind(all) {
		ones, others := []*measured{}, 0
		for _, m := range kind {
			switch {
			case len(m.Shape) == 1 && m.ones == m.Len():
				ones = append(ones, m)
			case 2*m.ones < m.Len():
				others++
			}
		}
		if len(ones)+others < len(kind) || len(ones) >= others {
			continue
		}
		for _, m := range ones {
			found = append(found, m.about("untrained", nil, nil, "every number is 1, fewer than half in the %s of the kind: "+
				"as at initialisation", text.Plural(others, "other tensor")))
		}
	}
	return found
}

// A layer's attention looks random if the geometric mean of its matrices' ranks is at least randomRank, every other
// layer's below trainedRank, and there are more than leastOthers layers.
const (
	randomRank  = 0.85
	trainedRank = 0.6
	leastOthers = 2
)

// untrained finds layers whose attention looks random among trained ones.
func untrained(all []*measured) (found []inspect.Observation) {
	attention := slices.DeleteFunc(slices.Clone(all), func(m *measured) bool {
		return m.Layer < 0 || m.Module() != table.Attention || len(m.Shape) != 2
	})
	layers, ranks := inspect.GroupBy(attention, func(m *measured) int { return m.Layer }), []float64{}
	for _, layer := range layers {
		sum := 0.0
		for _, m := range layer {
			sum += math.Log(m.rank)
		}
		ranks = append(ranks, math.Exp(sum/float64(len(layer))))
	}
	for i, v := range ranks {
		others := 0.0
		for k := range ranks {
			if k != i && !(ranks[k] <= others) {
				others = ranks[k]
			}
		}
		if v >= randomRank && others < trainedRank && len(layers) > leastOthers {
			for _, m := range layers[i] {
				found = append(found, m.about("untrained", inspect.Finite(m.rank), &others,
					"the attention of layer %d has %.2f of "+
						"the stable rank of random numbers, that of other layers at most %.2f: as at initialisation", m.Layer, v, others))
			}
		}
	}
	return found
}

// trends finds matrices with a typical magnitude far from the layers around: see inspect.Trend.
func trends(all []*measured) (found []inspect.Observation) {
	kinds, matrices := byKind(all), 0
	for _, kind := range kinds {
		matrices += len(kind)
	}
	for _, kind := range kinds {
		if len(kind[0].Shape) != 2 {
			continue
		}
		var sizes []float64
		for _, m := range kind {
			sizes = append(sizes, m.size)
		}
		usual, off := inspect.Trend(sizes, matrices)
		for i, m := range kind {
			if off[i] {
				size, median := math.Exp2(m.size), math.Exp2(usual[i])
				found = append(found, m.about("trend", &size, &median, "typical magnitude %.4g, %.4g in the layers around it",
					size, median))
			}
		}
	}
	return found
}

// coded finds matrices whose numbers went through few bits.
func coded(all []*measured) (found []inspect.Observation) {
	for _, m := range all {
		if m.codeBits > 0 {
			found = append(found, m.about("low-bits", inspect.Finite(float64(m.codeBits)), nil, "%s",
				inspect.CodedText(m.codeBits)))
		}
	}
	return found
}
