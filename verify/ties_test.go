package verify

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// uncertainly returns scores [rows, width] with a standard deviation of one float32 unit of
// 1 each, so that 8 of their differences' are 11.3 such units.
func uncertainly(width int, values ...float32) *bounds.Value {
	scores := &model.Activation{Shape: []int{len(values) / width, width}, Values: values, DType: tensor.F32}
	return bounds.WithErrors(scores, func(int) float64 { return bounds.Unit })
}

// TestChoicesOfExperts compares choices of two experts of four with the golden's, a row
// of scores per token.
func TestChoicesOfExperts(t *testing.T) {
	const u = 0x1p-24
	for name, test := range map[string]struct {
		scores  []float32
		golden  []int
		want    report.LayerRouting
		verdict report.Verdict
	}{
		"the same":                  {[]float32{4, 3, 2, 1}, []int{0, 1}, report.LayerRouting{Choices: 2, Pinned: 2}, report.Pass},
		"the same in another order": {[]float32{4, 3, 2, 1}, []int{1, 0}, report.LayerRouting{Choices: 2, Pinned: 2}, report.Pass},
		"equal to the bit":          {[]float32{4, 3, 3, 1}, []int{0, 2}, report.LayerRouting{Choices: 2, Pinned: 1, ExactTies: 1}, report.Pass},
		"8 σ apart":                 {[]float32{4, 0.5 + 11*u, 0.5, 0}, []int{0, 2}, report.LayerRouting{Choices: 2, Pinned: 1, NearTies: 1}, report.Pass},
		"as near, and the same":     {[]float32{4, 0.5 + 11*u, 0.5, 0}, []int{0, 1}, report.LayerRouting{Choices: 2, Pinned: 1}, report.Pass},
		"further":                   {[]float32{4, 0.5 + 12*u, 0.5, 0}, []int{0, 2}, report.LayerRouting{Choices: 2, Pinned: 2, Mismatches: 1}, report.Fail},
		"both of others":            {[]float32{4, 3, 2, 1}, []int{2, 3}, report.LayerRouting{Choices: 2, Pinned: 2, Mismatches: 2}, report.Fail},
		"one for the best, though it ties with the second": {[]float32{4, 3, 3, 1}, []int{1, 2},
			report.LayerRouting{Choices: 2, Pinned: 1, Mismatches: 1}, report.Fail},
		"any number of tokens may tie": {[]float32{4, 0.5 + u, 0.5, 0, 4, 0.5 + u, 0.5, 0}, []int{0, 2, 0, 2},
			report.LayerRouting{Choices: 4, Pinned: 2, NearTies: 2}, report.Pass},
	} {
		t.Run(name, func(t *testing.T) {
			ours := &choice{Scores: uncertainly(4, test.scores...)}
			for row := range ours.Scores.Rows() {
				ours.Idx = append(ours.Idx, model.TopK(ours.Scores.Row(row), 2)...)
			}
			tr := passOf(tensor.F32, Options{Mode: report.Local})
			c := report.Check{Tensor: "model.layers.0.mlp.gate.topk_idx", Verdict: report.Fail}
			got := tr.compareTopK(&c, ours, test.golden, 2, nil)
			require.Equal(t, test.want, report.LayerRouting{Choices: got.Choices, Pinned: got.Pinned, ExactTies: got.ExactTies,
				NearTies: got.NearTies, Mismatches: got.Mismatches})
			require.Equal(t, test.verdict, c.Verdict, c.Reason)
		})
	}
}

// TestNoiseOfScoresEndToEnd: scores vary by their own size times twice the error of the
// logits and their rounding; a difference of twice that ties.
func TestNoiseOfScoresEndToEnd(t *testing.T) {
	scores := &model.Activation{Shape: []int{2, 2}, Values: []float32{0.5, 0.25, 0.5, 0.25}, DType: tensor.F32}
	tr := passOf(tensor.F32, Options{Mode: report.Chained})
	tr.logitsErr = []float64{1e-6, 0}
	x := newChainedTrace(tr).scoreErrors(scores)
	ties := func(row int) float64 { // of two scores of 0.5
		s := bounds.Unit * math.Sqrt(x.Variance(2*row))
		return bounds.Lambda * math.Sqrt2 * s
	}
	require.InEpsilon(t, 2*(0x1p-22+2e-6)*0.5, ties(0), 1e-6)
	require.InEpsilon(t, 2*0x1p-22*0.5, ties(1), 1e-6)
}

// TestScoresThatAreNoNumbers cannot be compared.
func TestScoresThatAreNoNumbers(t *testing.T) {
	nan := float32(math.NaN())
	ours := &choice{Scores: uncertainly(3, 1, 2, 3, 4, nan, 6)}
	require.Equal(t, "the score of expert 1 for token 1 is not a number", notRouting([]int{0, 1}, 1, ours, nil))
	require.Empty(t, notRouting([]int{0, 1}, 1, ours, pack.Padding{false, true}))
}

// TestGroupsThatTie: with groups {0, 1} {2, 3} {4, 5} of which two may be chosen, the
// golden's experts may come from a group that ties with one of ours.
func TestGroupsThatTie(t *testing.T) {
	const u = 0x1p-24
	for name, test := range map[string]struct {
		worth  []float32
		golden []int
		want   bounds.TieKind
		groups []int
	}{
		"ours":                    {[]float32{3, 2, 1}, []int{0, 2}, bounds.NoTie, nil},
		"one of ours":             {[]float32{3, 2, 1}, []int{0, 1}, bounds.NoTie, nil},
		"another, that ties":      {[]float32{3, 2, 2}, []int{0, 4}, bounds.ExactTie, []int{0, 2}},
		"another, nearly tied":    {[]float32{3, 0.5 + 11*u, 0.5}, []int{0, 4}, bounds.NearTie, []int{0, 2}},
		"another, far off":        {[]float32{3, 0.5 + 12*u, 0.5}, []int{0, 4}, bounds.NoTie, nil},
		"another alone":           {[]float32{3, 2, 2}, []int{4, 5}, bounds.ExactTie, []int{2, 0}},
		"more groups than may be": {[]float32{3, 3, 3}, []int{0, 2, 4}, bounds.NoTie, nil},
	} {
		t.Run(name, func(t *testing.T) {
			scores := uncertainly(6, make([]float32, 6)...)
			ours := &choice{Scores: scores, Groups: &model.Groups[*bounds.Value]{Scores: scores, Worth: uncertainly(3, test.worth...), Chosen: model.TopK(test.worth, 2)}}
			groups, kind := otherGroups(ours, test.golden, 0)
			require.Equal(t, test.want, kind)
			require.Equal(t, test.groups, groups)
		})
	}
}

// TestGapToTheWorstOfOurs: an expert that the golden chose is compared with the worst that only we chose, and one of a
// group that was not chosen with the worst group that was.
func TestGapToTheWorstOfOurs(t *testing.T) {
	ours := &choice{Scores: uncertainly(4, 8, 4, 2, 1), Idx: []int{0, 1}}
	gap := gapOf(ours, []int{2, 3}, 0, 2)
	require.Equal(t, report.Gap{Of: "expert", Golden: 2, Ours: 1, Score: 2, Z: gap.Z}, *gap)
	ours.Groups = &model.Groups[*bounds.Value]{Scores: ours.Scores, Worth: uncertainly(4, 8, 4, 2, 1), Chosen: []int{0, 1}}
	gap = gapOf(ours, []int{2, 3}, 0, 3)
	require.Equal(t, report.Gap{Of: "group", Golden: 3, Ours: 1, Score: 3, Z: gap.Z}, *gap)
}

// TestGroupsPinTheirExperts: an expert whose score is far above all others' is not pinned
// if its group might not have been chosen.
func TestGroupsPinTheirExperts(t *testing.T) {
	scores := uncertainly(4, 1, 0, 2, 0)
	ours := &choice{Scores: scores, Idx: []int{2}, Groups: &model.Groups[*bounds.Value]{Scores: scores, Worth: uncertainly(2, 1, 2), Chosen: []int{1}}}
	require.Equal(t, 1, pinned(ours, 0, 1))
	ours.Groups.Worth = uncertainly(2, 2, 2)
	require.Equal(t, 0, pinned(ours, 0, 1))
}

// TestBiasPins: how far the bias of each expert may move without another choice.
func TestBiasPins(t *testing.T) {
	masked := float32(math.Inf(-1))
	ours := &choice{Scores: uncertainly(5,
		5, 4, 1, 0.5, masked,
		1, 4, 5, masked, masked)}
	p := biasPins(3, ours, []int{0, 1, 2, 1}, 2, nil)
	// 0: 5 - 1 chosen, 4 - 1 not; 1: 4 - 1; 2: 4 - 1, 5 - 1; 3: 4 - 0.5; 4 is always masked
	require.Equal(t, report.BiasPins{Layer: "model.layers.3", Median: 3, Widest: 3.5, Expert: 3, Free: []int{4}, Same: []string{}}, p)
	p = biasPins(3, ours, []int{0, 1, 2, 1}, 2, pack.Padding{false, true})
	require.Equal(t, report.BiasPins{Layer: "model.layers.3", Median: 3.5, Widest: 4, Expert: 0, Free: []int{4}, Same: []string{}}, p)
}

// TestRoutingByLayer: the counts of a layer leave padding out. addLayer adds them to the totals.
func TestRoutingByLayer(t *testing.T) {
	ours := &choice{Scores: uncertainly(4, 4, 3, 2, 1, 1, 2, 3, 4), Idx: []int{0, 1, 3, 2}}
	golden := []int{1, 0, 3, 1}
	for _, test := range []struct {
		padded pack.Padding
		want   report.LayerRouting
	}{
		{nil, report.LayerRouting{Layer: "model.layers.0", Choices: 4, Same: 3, Pinned: 4, Mismatches: 1, Load: []int{1, 2, 0, 1},
			Wrong: map[int]bool{1: true}}},
		{pack.Padding{true, false}, report.LayerRouting{Layer: "model.layers.0", Choices: 2, Same: 1, Pinned: 2, Mismatches: 1,
			Load: []int{0, 1, 0, 1}, Wrong: map[int]bool{1: true}}},
	} {
		c := report.Check{Tensor: "model.layers.0.mlp.gate.topk_idx", Verdict: report.Fail, Padding: test.padded.Count()}
		got := passOf(tensor.F32, Options{Mode: report.Local}).compareTopK(&c, ours, golden, 2, test.padded)
		require.Equal(t, test.want, got)
		require.Equal(t, []int{1, 1}, c.Index)
	}
	r := report.Routing{Choices: 10, Pinned: 8, ExactTies: 3, NearTies: 2, Mismatches: 1}
	l := report.LayerRouting{Layer: "model.layers.3", Choices: 6, Same: 4, Pinned: 5, NearTies: 2}
	addLayer(&r, l)
	require.Equal(t, report.Routing{Choices: 16, Pinned: 13, ExactTies: 3, NearTies: 4, Mismatches: 1,
		Layers: []report.LayerRouting{l}}, r)
}
