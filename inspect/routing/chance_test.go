package routing

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
)

const (
	testExperts = 8
	testChosen  = 2
)

// setOf returns a set of n blocks of a length, whose tokens choose two of the experts that choose returns.
func setOf(n, length int, choose func(block int) []int) *blocks {
	b := &blocks{length: length, seq: length, counts: make([][]uint32, n), tokens: make([]int, n)}
	for i := range n {
		b.counts[i] = make([]uint32, testExperts)
		for token := range length {
			b.add(i*length+token, choose(i))
		}
	}
	return b
}

// compared compares sets as a layer of a model.
func compared(layer int, sets ...*blocks) *Comparison {
	var names []string
	var reports []*Report
	for i, s := range sets {
		counts, tokens := make([]int, testExperts), 0
		for _, b := range s.filled() {
			tokens += b.tokens
			for e, count := range b.counts {
				counts[e] += int(count)
			}
		}
		l := Layer{Layer: layer, blocks: s}
		for e, count := range counts {
			l.Experts = append(l.Experts, expert{Expert: e, Load: float64(count) / (float64(tokens) * testChosen / testExperts)})
		}
		names = append(names, string(rune('a'+i)))
		reports = append(reports, &Report{Experts: testExperts, PerToken: testChosen, Layers: []Layer{l}})
	}
	return Compare(names, reports, Options{})
}

// TestChance: sets that are wholly apart are found from the fewest blocks on that can tell, and sets that are alike are
// not; nothing is said of fewer. The number of a layer changes nothing.
func TestChance(t *testing.T) {
	apart := func(n int) []*blocks { // the experts 0 and 1 in one set, 2 and 3 in the other
		return []*blocks{setOf(n, leastBlock, func(int) []int { return []int{0, 1} }), setOf(n, leastBlock, func(int) []int { return []int{2, 3} })}
	}
	alike := func(sizes ...int) (sets []*blocks) { // every second block
		for _, n := range sizes {
			sets = append(sets, setOf(n, leastBlock, func(b int) []int { return []int{b % 2, 2 + b%2} }))
		}
		return sets
	}
	text := func(c *Comparison) string {
		var b bytes.Buffer
		for i := range c.Sets {
			c.Sets[i].Routing = &Report{Path: "p"}
		}
		require.NoError(t, c.WriteText(&b))
		return b.String()
	}
	for n := 4; n < 40; n++ {
		c := compared(7, apart(n)...)
		l := c.Layers[0]
		if n < 6 {
			assert.Nil(t, l.Chance, n)
			assert.Empty(t, l.beyond())
			assert.Nil(t, l.Experts[0].Beyond)
			continue
		}
		require.NotNil(t, l.Chance, n)
		assert.Len(t, l.beyond(), 4, n)
		assert.Equal(t, *l.Chance, *compared(8, apart(n)...).Layers[0].Chance, "the number of a layer")
		assert.Empty(t, compared(7, alike(n, n)...).Layers[0].beyond(), n)
	}
	assert.Contains(t, text(compared(1, apart(4)...)), "\ntoo few tokens to tell what chance gives: sets of 4 and 4 blocks can be "+
		"exchanged in 35 ways, and 200 are needed\n")
	assert.Contains(t, text(compared(1, alike(3, 40)...)), "\ntoo few tokens to tell what chance gives: a set has fewer than 4 blocks of tokens\n")
	assert.Contains(t, text(compared(1, alike(20, 20)...)), "\nno expert's loads differ by more than chance gives\n")
	assert.Contains(t, text(compared(1, apart(6)...)), "\n4 experts: loads differ by more than chance gives; most:\n")
	assert.NotNil(t, compared(1, alike(4, 6)...).Layers[0].Chance, "210 ways")
	assert.NotNil(t, compared(1, alike(4, 4, 4)...).Layers[0].Chance, "5775 ways")

	padded := apart(6)
	padded[0].tokens[0] = 0 // padding: no block
	assert.NotNil(t, compared(1, padded...).Layers[0].Chance, "5 and 6 blocks: 462 ways")
	padded[1].tokens[0] = 0
	assert.Nil(t, compared(1, padded...).Layers[0].Chance)
}

// TestChanceIsOneIn200_every: of sets that are alike, whose blocks are as different from each other as those of real texts or
// not at all, at most about one layer of 200 has an expert beyond chance; sets of short and of long blocks too.
func TestChanceIsOneIn200_every(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for i, sets := range [][][2]int{ // blocks, and their length
		{{6, 64}, {6, 64}}, {{4, 64}, {7, 64}}, {{16, 64}, {16, 64}}, {{5, 64}, {5, 64}, {5, 64}},
		{{16, 64}, {16, 16}}, {{40, 64}, {8, 16}}, {{8, 64}, {40, 16}},
	} {
		for j, unlike := range []float64{0, 0.3} {
			if (i+j)%2 > 0 && !configtest.Every(t) {
				continue
			}
			beyond, layers := 0, 50
			if configtest.Every(t) {
				layers = 400
			}
			for layer := range layers {
				var all []*blocks
				for _, s := range sets {
					topics := make([]int, s[0])
					for i := range topics {
						topics[i] = random.IntN(testExperts)
					}
					all = append(all, setOf(s[0], s[1], func(block int) []int {
						if random.Float64() < unlike {
							return []int{topics[block], (topics[block] + 1) % testExperts}
						}
						first := random.IntN(testExperts)
						return []int{first, (first + 1 + random.IntN(testExperts-1)) % testExperts}
					}))
				}
				if compared(layer, all...).Layers[0].beyond() != nil {
					beyond++
				}
			}
			// Of Poisson distributions with the means 2 and 0.25, one value in 10⁵ is above 10 and 4.
			assert.LessOrEqual(t, beyond, map[int]int{400: 10, 50: 4}[layers], "%v blocks, %g of a topic: %d of %d", sets, unlike, beyond, layers)
		}
	}
}

// TestDivisions: all divisions are listed once, those that exchange sets of one size too; draws differ.
func TestDivisions(t *testing.T) {
	for _, x := range []struct {
		sizes  []int
		ways   string
		others int
	}{{[]int{4, 5}, "126", 0}, {[]int{4, 6}, "210", 209}, {[]int{6, 6}, "462", 461}, {[]int{7, 4}, "330", 329},
		{[]int{5, 4, 4}, "45045", 199}, {[]int{40, 40}, "53753604366668088230810", 199}} {
		var sets []*blocks
		for _, n := range x.sizes {
			sets = append(sets, setOf(n, 1, func(int) []int { return nil }))
		}
		d := newDivisions(sets)
		require.Equal(t, x.ways, d.ways.String())
		require.Len(t, d.others, x.others)
		seen := map[string]bool{fmt.Sprint(d.observed()): true}
		for _, division := range d.others {
			named := d.named(division)
			require.False(t, seen[fmt.Sprint(named)], named)
			seen[fmt.Sprint(named)] = true
			for set, size := range x.sizes {
				require.Len(t, slices.DeleteFunc(slices.Clone(division), func(s int) bool { return s != set }), size)
			}
		}
	}
}
