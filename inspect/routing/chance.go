package routing

// By how much the loads of sets of tokens differ by chance: the observed division of blocks of tokens among the sets is
// compared with others.

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"

	"dsmoe/inspect"
)

// rate is how many layers of sets that are alike have one with an expert beyond layerLoads.Chance.
const rate = 200

// mostDivisions is the number of divisions up to which all are compared. Of more, rate - 1 are drawn.
const mostDivisions = 1000

// divisions are ways to divide blocks of tokens among sets, each as many as it has. Sets of as many blocks are
// interchangeable: their differences are the same.
type divisions struct {
	sizes  []int    // blocks of each set
	ways   *big.Int // in all, with the one that was observed
	others [][]int  // the set of each block, in other ways than the observed one; nil if there are too few ways
}

// newDivisions returns the divisions of the blocks of sets. It draws the same ones for every layer of a model.
func newDivisions(sets []*blocks) *divisions {
	d := &divisions{ways: big.NewInt(1)}
	n := 0
	alike := map[int]int64{}
	for _, s := range sets {
		size := len(s.filled())
		d.sizes, n = append(d.sizes, size), n+size
		d.ways.Mul(d.ways, new(big.Int).Binomial(int64(n), int64(size)))
		alike[size]++
	}
	for _, sets := range alike {
		d.ways.Quo(d.ways, new(big.Int).MulRange(1, sets))
	}
	switch {
	case slices.Min(d.sizes) < fewBlocks || d.ways.Cmp(big.NewInt(rate)) < 0:
	case d.ways.Cmp(big.NewInt(mostDivisions)) <= 0:
		d.list(make([]int, 0, n), slices.Clone(d.sizes))
		d.others = d.others[1:] // the first is the observed one
	default:
		observed := d.observed()
		drawn, random := map[string]bool{fmt.Sprint(observed): true}, rand.New(rand.NewPCG(0, 0))
		for len(d.others) < rate-1 { // that differ from each other and from the observed one
			division := slices.Clone(observed)
			random.Shuffle(n, func(i, j int) { division[i], division[j] = division[j], division[i] })
			if key := fmt.Sprint(d.named(division)); !drawn[key] {
				drawn[key] = true
				d.others = append(d.others, division)
			}
		}
	}
	return d
}

// list appends all divisions that begin with some blocks, when each set has so many blocks left to take. Sets of one
// size without blocks so far can be exchanged: the first of them takes the next block.
func (d *divisions) list(begin, left []int) {
	if len(begin) == cap(begin) {
		d.others = append(d.others, slices.Clone(begin))
		return
	}
	untouched := map[int]bool{} // sizes of sets without blocks so far
	for set, n := range d.sizes {
		if left[set] == 0 || left[set] == n && untouched[n] {
			continue
		}
		untouched[n] = untouched[n] || left[set] == n
		left[set]--
		d.list(append(begin, set), left)
		left[set]++
	}
}

// observed is the division that was observed: the blocks are in the order of the sets.
func (d *divisions) observed() (division []int) {
	for set, size := range d.sizes {
		division = append(division, slices.Repeat([]int{set}, size)...)
	}
	return division
}

// named gives sets of as many blocks their names in the order of their first blocks.
func (d *divisions) named(division []int) []int {
	names := map[int]int{}
	for _, set := range division {
		if _, known := names[set]; known {
			continue
		}
		for name, size := range d.sizes { // the first that is free
			if size == d.sizes[set] && !slices.Contains(slices.Collect(maps.Values(names)), name) {
				names[set] = name
				break
			}
		}
	}
	named := make([]int, len(division))
	for i, set := range division {
		named[i] = names[set]
	}
	return named
}

// chance returns layerLoads.Chance.
//
// The loads of a set of few tokens vary more than those of a set of many. So the largest differences of divisions are
// compared in units of √(Σ 1/tokens), over the sets. If all blocks are of one length, the unit is always the same.
func (d *divisions) chance(sets []*blocks, k int) *float64 {
	if d.others == nil {
		return nil
	}
	var all []block
	for _, s := range sets {
		all = append(all, s.filled()...)
	}
	var others []difference
	for _, division := range d.others {
		others = append(others, differenceOf(division, all, len(sets), k))
	}
	slices.SortFunc(others, func(a, b difference) int {
		return cmp.Or(cmp.Compare(a.largest/a.unit, b.largest/b.unit), cmp.Compare(a.largest, b.largest))
	})
	asLarge := (len(others)+1)/rate - 1 // so many others may be as large as the observed one
	x, observed := others[len(others)-1-asLarge], differenceOf(d.observed(), all, len(sets), k)
	if x.unit != observed.unit {
		x.largest *= observed.unit / x.unit
	}
	return &x.largest
}

// tooFew says why chance is not known; "" if it is.
func (d *divisions) tooFew() string {
	const what = "too few tokens to tell what chance gives: "
	switch {
	case d.others != nil:
		return ""
	case slices.Min(d.sizes) < fewBlocks:
		return fmt.Sprintf(what+"a set has fewer than %d blocks of tokens", fewBlocks)
	}
	return fmt.Sprintf(what+"sets of %s blocks can be exchanged in %s ways, and %d are needed",
		strings.ReplaceAll(inspect.List(d.sizes), ", ", " and "), d.ways, rate)
}

// difference is how far the loads of sets are apart.
type difference struct {
	largest float64 // of an expert
	unit    float64 // √(Σ 1/tokens), over the sets
}

// differenceOf returns the difference in a division of blocks among sets, each token with k experts.
func differenceOf(division []int, all []block, sets, k int) (d difference) {
	n := len(all[0].counts)
	sums, tokens := make([]uint64, sets*n), make([]int, sets)
	for i, b := range all {
		tokens[division[i]] += b.tokens
		for e, count := range b.counts {
			sums[division[i]*n+e] += uint64(count)
		}
	}
	for e := range n {
		least, most := math.Inf(1), 0.0
		for set, total := range tokens {
			load := float64(sums[set*n+e]) / (float64(total) * float64(k) / float64(n))
			least, most = min(least, load), max(most, load)
		}
		d.largest = max(d.largest, most-least)
	}
	slices.Sort(tokens) // so that the sum does not depend on their order
	for _, total := range tokens {
		d.unit += 1 / float64(total)
	}
	d.unit = math.Sqrt(d.unit)
	return d
}

// blocks counts a layer's choices block by block.
type blocks struct {
	length int        // tokens of a block at most
	seq    int        // tokens of a sequence
	counts [][]uint32 // [block][expert]
	tokens []int      // [block]
}

// The blocks of a set: at most mostBlocks, so that their counts are small, unless there are more sequences.
const (
	leastBlock = 64
	mostBlocks = 256
	fewBlocks  = 4 // of a set: fewer say nothing about chance
)

// newBlocks divides a batch of sequences into blocks.
func newBlocks(batch, seq, experts int) *blocks {
	b := &blocks{length: max(leastBlock, (batch*seq+mostBlocks-1)/mostBlocks), seq: seq}
	b.length = min(b.length, seq)
	n := batch * b.perSequence()
	b.counts, b.tokens = make([][]uint32, n), make([]int, n)
	for i := range b.counts {
		b.counts[i] = make([]uint32, experts)
	}
	return b
}

// perSequence returns how many blocks a sequence has.
func (b *blocks) perSequence() int { return (b.seq + b.length - 1) / b.length }

// add counts the choice of a token, by its place in the batch.
func (b *blocks) add(token int, ids []int) {
	i := token/b.seq*b.perSequence() + token%b.seq/b.length
	b.tokens[i]++
	for _, e := range ids {
		b.counts[i][e]++
	}
}

// block is how often the tokens of a block choose each expert.
type block struct {
	counts []uint32 // [expert]
	tokens int
}

// filled returns the blocks that are not of padding alone.
func (b *blocks) filled() (filled []block) {
	for i, n := range b.tokens {
		if n > 0 {
			filled = append(filled, block{b.counts[i], n})
		}
	}
	return filled
}
