package experts

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/inspect"
	"dsmoe/inspect/matrix"
	"dsmoe/text/page"
)

// alikeLayer is a layer of n experts without any likeness.
func alikeLayer(layer, n int) Layer {
	zeros := func() (c matrix.Cosines) {
		for range n {
			c = append(c, make([]float64, n))
		}
		return c
	}
	l := Layer{Layer: layer, Function: &matrix.PairSpread{},
		Similarity: &Similarity{Matrices[matrix.Cosines]{Gate: zeros(), Up: zeros()}, zeros()}}
	for e := range n {
		l.Experts = append(l.Experts, Expert{Expert: e})
	}
	return l
}

// TestPairsShareCells: of more than maxSide experts a cell has the largest of its pairs, matrices
// above the diagonal and functions below, and is outlined if a finding names one of them.
func TestPairsShareCells(t *testing.T) {
	l := alikeLayer(3, 130)
	l.Similarity.Up[5][129], l.Similarity.Up[129][5] = -.75, -.75
	l.Similarity.Function[5][129], l.Similarity.Function[129][5] = .5, .5
	l.Similarity.Gate[6][7] = math.NaN()
	m := l.Pairs([]inspect.Observation{{Members: []inspect.Member{{Layer: 3, Experts: []int{5, 129}},
		{Layer: 4, Experts: []int{0, 64}}}}}).(page.Heatmap)
	require.Len(t, m.Rows, 44)
	assert.Equal(t, []string{"0–2", "3–5"}, m.Rows[:2])
	assert.Equal(t, "129", m.Rows[43])
	sum, marked := 0.0, 0
	for i, row := range m.Values {
		for k, v := range row {
			if v == v {
				sum += v
			} else {
				assert.True(t, i == 43 && k == 43, "%d %d", i, k)
			}
			if m.Marked(i, k) {
				marked++
			}
		}
	}
	assert.Equal(t, .75, m.Values[1][43])
	assert.Equal(t, .5, m.Values[43][1])
	assert.Equal(t, 1.25, sum)
	assert.True(t, m.Marked(1, 43) && m.Marked(43, 1) && marked == 2)
	few := alikeLayer(0, 3)
	assert.Equal(t, []string{"0", "1", "2"}, few.Pairs(nil).(page.Heatmap).Columns)
}
