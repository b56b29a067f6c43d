package verify

import (
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/report"
)

// TestRowsAlikeWithinSequences: a layer's input exercises no attention if all tokens of a sequence are alike. Two
// sequences may differ. Padding does not count.
func TestRowsAlikeWithinSequences(t *testing.T) {
	in := &model.Input{Batch: 2, Seq: 3, InputIDs: make([]int, 6), AttentionMask: []int{1, 1, 1, 1, 0, 1}}
	x := &model.Activation{Shape: []int{2, 3, 2}, Values: []float32{1, 2, 1, 2, 1, 2, 3, 4, 9, 9, 3, 4}, DType: tensor.F32}
	require.True(t, sameRows(x, in))
	x.Values[11] = 5
	require.False(t, sameRows(x, in))
}

// TestCutsAmongEqualScores: queries that see more keys than are chosen are counted, those among equal scores, and among
// zeros, apart.
func TestCutsAmongEqualScores(t *testing.T) {
	rows := &keyRows{&choice{Scores: uncertainly(3, 3, 2, 1, 3, 2, 2, 3, 0, 0)}, 2, 3}
	count := report.KeyChoices{}
	for row := range 3 {
		rows.countCut(&count, row)
	}
	require.Equal(t, report.KeyChoices{Queries: 3, TiedCuts: 2, ZeroCuts: 1}, count)
	rows.k = 3 // every query sees no more
	rows.countCut(&count, 0)
	require.Equal(t, 3, count.Queries)
}
