package verify

import (
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// TestChoicesOfExperts compares choices of two experts of four with the golden's, a row
// of scores per token.
func TestChoicesOfExperts(t *testing.T) {
	const near = 0x1p-23 // of 1, a unit of float32 above it
	for name, test := range map[string]struct {
		scores  []float32
		golden  []int
		dtype   tensor.DType
		options Options
		noise   []float64 // of the logits, for chained mode
		want    Routing
		verdict Verdict
	}{
		"the same": {[]float32{4, 3, 2, 1}, []int{0, 1}, tensor.F32, Options{Mode: Local}, nil,
			Routing{Choices: 2, Rows: 1, NearRowsAllowed: 1}, Pass},
		"the same in another order": {[]float32{4, 3, 2, 1}, []int{1, 0}, tensor.F32, Options{Mode: Local}, nil,
			Routing{Choices: 2, Rows: 1, NearRowsAllowed: 1}, Pass},
		"equal to the bit": {[]float32{4, 3, 3, 1}, []int{0, 2}, tensor.F32, Options{Mode: Local}, nil,
			Routing{Choices: 2, Rows: 1, NearRowsAllowed: 1, ExactTies: 1}, Pass},
		"a unit apart": {[]float32{4, 1 + near, 1, 0}, []int{0, 2}, tensor.F32, Options{Mode: Local}, nil,
			Routing{Choices: 2, Rows: 1, NearRowsAllowed: 1, NearTies: 1, NearRows: 1}, Pass},
		"too far apart": {[]float32{4, 1 + 8*near, 1, 0}, []int{0, 2}, tensor.F32, Options{Mode: Local}, nil,
			Routing{Choices: 2, Rows: 1, NearRowsAllowed: 1, Mismatches: 1}, Fail},
		"a unit apart in BF16": {[]float32{4, 1.0078125, 1, 0}, []int{0, 2}, tensor.BF16, Options{Mode: Local}, nil,
			Routing{Choices: 2, Rows: 1, NearRowsAllowed: 1, NearTies: 1, NearRows: 1}, Pass},
		"both of others": {[]float32{4, 3, 2, 1}, []int{2, 3}, tensor.F32, Options{Mode: Local}, nil,
			Routing{Choices: 2, Rows: 1, NearRowsAllowed: 1, Mismatches: 2}, Fail},
		"one for the best, though it ties with the second": {[]float32{4, 3, 3, 1}, []int{1, 2}, tensor.F32, Options{Mode: Local}, nil,
			Routing{Choices: 2, Rows: 1, NearRowsAllowed: 1, Mismatches: 1}, Fail},
		"as far as noise end to end": {[]float32{4, 1 + 8*near, 1, 0}, []int{0, 2}, tensor.F32, Options{Mode: Chained}, []float64{1e-6},
			Routing{Choices: 2, Rows: 1, NearRowsAllowed: 1, NearTies: 1, NearRows: 1}, Pass},
		"the noise counts in chained mode only": {[]float32{4, 1 + 8*near, 1, 0}, []int{0, 2}, tensor.F32, Options{Mode: Local}, []float64{1e-6},
			Routing{Choices: 2, Rows: 1, NearRowsAllowed: 1, Mismatches: 1}, Fail},
		"end to end in BF16": {[]float32{4, 3, 2, 1}, []int{2, 3}, tensor.BF16, Options{Mode: Chained}, nil,
			Routing{Choices: 2, Rows: 1, NearRowsAllowed: 1, Mismatches: 2}, Skipped},
		"more near ties than may be": {[]float32{4, 1 + near, 1, 0, 4, 1 + near, 1, 0}, []int{0, 2, 0, 2}, tensor.F32, Options{Mode: Local}, nil,
			Routing{Choices: 4, Rows: 2, NearRowsAllowed: 1, NearTies: 2, NearRows: 2}, Fail},
	} {
		t.Run(name, func(t *testing.T) {
			scores := &model.Activation{Shape: []int{len(test.scores) / 4, 4}, Values: test.scores, DType: test.dtype}
			ours := &choice{Scores: scores}
			for row := range scores.Rows() {
				ours.Idx = append(ours.Idx, model.TopK(scores.Row(row), 2)...)
			}
			tr := tracerOf(test.dtype, test.options)
			tr.logitsErr = test.noise
			c := Check{Verdict: Fail}
			tr.compareTopK(&c, ours, test.golden, 2)
			require.Equal(t, test.want, tr.routing)
			require.Equal(t, test.verdict, c.Verdict, c.Reason)
		})
	}
}

// TestNearTiesThatMayBe: one in a thousand tokens in float32, one in a hundred in BF16
// and F16, and one in any case.
func TestNearTiesThatMayBe(t *testing.T) {
	for d, most := range map[tensor.DType]int{tensor.F32: 3, tensor.BF16: 30, tensor.F16: 30} {
		for near, verdict := range map[int]Verdict{most: Pass, most + 1: Fail} {
			c := Check{Verdict: Fail}
			tracerOf(d, Options{Mode: Local}).judgeTopK(&c, d, near, 0, 3000)
			require.Equal(t, verdict, c.Verdict, "%s: %d", d, near)
		}
	}
}

// TestScoresThatAreNoNumbers cannot be compared.
func TestScoresThatAreNoNumbers(t *testing.T) {
	nan := float32(0)
	nan /= nan
	ours := &choice{Scores: &model.Activation{Shape: []int{2, 3}, Values: []float32{1, 2, 3, 4, nan, 6}}}
	require.Equal(t, "the score of expert 1 for token 1 is not a number", notRouting([]int{0, 1}, 1, ours))
}

// TestGroupsThatTie: with groups {0, 1} {2, 3} {4, 5} of which two may be chosen, the
// golden's experts may come from a group that ties with one of ours.
func TestGroupsThatTie(t *testing.T) {
	const near = 0x1p-23
	for name, test := range map[string]struct {
		worth  []float32
		golden []int
		want   tieKind
		groups []int
	}{
		"ours":                    {[]float32{3, 2, 1}, []int{0, 2}, noTie, nil},
		"one of ours":             {[]float32{3, 2, 1}, []int{0, 1}, noTie, nil},
		"another, that ties":      {[]float32{3, 2, 2}, []int{0, 4}, exactTie, []int{0, 2}},
		"another, nearly tied":    {[]float32{3, 1 + near, 1}, []int{0, 4}, nearTie, []int{0, 2}},
		"another, far off":        {[]float32{3, 2, 1}, []int{0, 4}, noTie, nil},
		"another alone":           {[]float32{3, 2, 2}, []int{4, 5}, exactTie, []int{2, 0}},
		"more groups than may be": {[]float32{3, 3, 3}, []int{0, 2, 4}, noTie, nil},
	} {
		t.Run(name, func(t *testing.T) {
			scores := &model.Activation{Shape: []int{1, 6}, Values: make([]float32, 6), DType: tensor.F32}
			worth := &model.Activation{Shape: []int{1, 3}, Values: test.worth, DType: tensor.F32}
			ours := &choice{Scores: scores, Groups: &model.Groups[value]{Scores: scores, Worth: worth, Chosen: model.TopK(test.worth, 2)}}
			groups, kind := tracerOf(tensor.F32, Options{Mode: Local}).otherGroups(ours, test.golden, 0)
			require.Equal(t, test.want, kind)
			require.Equal(t, test.groups, groups)
		})
	}
}
