package verify

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// TestSelectRows: padding is left out, and rows that are alike share one weight.
func TestSelectRows(t *testing.T) {
	near := 1 + float32(alikeRows)
	want := []float32{
		1, 2,
		9, 9, // padding
		0, 0,
		1, 2,
		1 - alikeRows, 2 + alikeRows, // alike
		1, 2 + 4*alikeRows, // not
		0, near,
	}
	r := selectRows(want, 2, pack.Padding{false, true, false, false, false, false, false})
	require.Equal(t, []int{0, 2, 3, 4, 5, 6}, r.compared)
	require.Equal(t, 1, r.padding)
	require.Equal(t, 4, r.distinct)
	require.Equal(t, []float64{1.0 / 3, 1, 1.0 / 3, 1.0 / 3, 1, 1}, r.weights)
	require.Equal(t, []float32{1, 2, 0, 0, 1, 2, 1 - alikeRows, 2 + alikeRows, 1, 2 + 4*alikeRows, 0, near}, r.gather(want, 2))
	require.Equal(t, want, selectRows(want, 2, nil).gather(want, 2))
	require.Zero(t, selectRows(want, 2, pack.Padding{true, true, true, true, true, true, true}).distinct)
}

// TestRowsThatAreNotAlike: numbers, signs and NaN keep rows apart.
func TestRowsThatAreNotAlike(t *testing.T) {
	nan := float32(math.NaN())
	for _, test := range []struct {
		a, b []float32
		want bool
	}{
		{[]float32{-8, 0}, []float32{-8, 8 * alikeRows}, true},
		{[]float32{-8, 0}, []float32{-8, 9 * alikeRows}, false},
		{[]float32{-8, 9 * alikeRows}, []float32{-8, 0}, false},
		{[]float32{1, 1}, []float32{1, -1}, false},
		{[]float32{0, 0}, []float32{0, 0}, true},
		{[]float32{0, 0}, []float32{0, 0x1p-149}, false},
		{[]float32{1, nan}, []float32{1, nan}, false},
	} {
		require.Equal(t, test.want, alike(test.a, test.b), test)
	}
}

// TestPaddedRows: which row of which stage is which token.
func TestPaddedRows(t *testing.T) {
	in := &model.Input{Batch: 2, Seq: 3, InputIDs: make([]int, 6), AttentionMask: []int{1, 1, 1, 0, 1, 1}}
	tr := tracerOf(tensor.F32, Options{})
	tr.in, tr.m.Config.NumExpertsPerTok = in, 2
	tr.chosen = []int{0, 1, 2, 1, 0, 2, 1, 2, 2, 0, 1, 0} // two experts of each token; the fourth is padding
	for name, test := range map[string]struct {
		shape []int
		want  []int // rows of padding
	}{
		"model.layers.0.self_attn.q_proj.output":             {[]int{2, 3, 4}, []int{3}},
		"model.layers.0.mlp.gate.logits":                     {[]int{6, 8}, []int{3}},
		"model.layers.0.mlp.experts.1.gate_proj.output":      {[]int{4, 8}, []int{2}},
		"model.layers.0.mlp.experts.2.output":                {[]int{4, 8}, []int{2}},
		"model.layers.0.mlp.experts.0.down_proj.input":       {[]int{4, 8}, nil},
		"model.layers.0.self_attn.attn_weights":              {[]int{2, 2, 3, 3}, []int{6, 9}},
		"model.layers.1.eh_proj.output":                      {[]int{2, 2, 4}, []int{2}},
		"model.layers.2.shared_head.norm.output":             {[]int{2, 1, 4}, []int{1}},
		pack.RotaryCos:                                       {[]int{3, 4}, nil},
		"model.layers.0.mlp.gate.aux_loss":                   {[]int{1}, nil},
		"model.layers.0.self_attn.q_proj.weight" + pack.Grad: {[]int{6, 4}, nil},
		"lm_head.output":                                     {[]int{2, 3, 9}, []int{3}},
		"model.layers.0.mlp.shared_experts.up_proj.output":   {[]int{2, 3, 5}, []int{3}},
	} {
		n := 1
		for _, dim := range test.shape {
			n *= dim
		}
		a := &model.Activation{Shape: test.shape, Values: make([]float32, n)}
		require.Equal(t, test.want, indices(tr.paddedRows(name, a)), name)
	}
	in.AttentionMask = nil
	require.Nil(t, tr.paddedRows("lm_head.output", &model.Activation{Shape: []int{2, 3, 9}, Values: make([]float32, 54)}))
}

// TestDistancesOfSelectedRows: padding is not looked at, be it far off or a NaN, and rows that
// are alike count once.
func TestDistancesOfSelectedRows(t *testing.T) {
	const width = 2
	x := uncertainly(width, 1, 2, 1, 2, 1, 2, 3, 4, 5, 6)
	want := slices.Clone(x.Values)
	want[8], want[9] = float32(math.NaN()), 1e9 // padding
	want[1] += 12 * unit                        // 10 σ beyond the half unit, 2 u, of the golden's own rounding
	rows := selectRows(want, width, pack.Padding{false, false, false, false, true})
	require.Equal(t, 2, rows.distinct)
	d := measure(x, want, rows, 1)
	require.True(t, d.finite)
	require.Equal(t, 10.0, d.largest)
	z2 := sq(d.largest)
	require.InEpsilon(t, math.Sqrt(z2/3/4), d.rms, 1e-9, "a third of one row of two, four elements")
	require.InEpsilon(t, math.Sqrt(z2/3/2), d.columnRMS, 1e-9)
	require.InEpsilon(t, math.Sqrt(z2/2), d.rowRMS, 1e-9, "a row's is its own")
	require.Equal(t, 1, d.beyond)
	require.Equal(t, []bool{true, false, false, false, false}, d.rows)
	want[0] = float32(math.NaN())
	require.False(t, measure(x, want, selectRows(want, width, pack.Padding{false, false, false, false, true}), 1).finite)

	m := rows.metrics(x.Values, x.Values, width, tensor.F32)
	require.Equal(t, 1.0, m.BitEqual)
	off := slices.Clone(x.Values)
	off[7], off[8], off[9] = 4.5, float32(math.Inf(1)), -7
	m = rows.metrics(off, x.Values, width, tensor.F32)
	require.True(t, m.Finite)
	require.Equal(t, 0.5, m.MaxAbs)
	require.Equal(t, []int{7, 3}, []int{m.Worst, m.WorstRow})
	m = selectRows(off, width, pack.Padding{true, false, false, true, false}).metrics(off, x.Values, width, tensor.F32)
	require.Equal(t, 8, m.Worst, "of the whole tensor, not of what is compared")
}

// TestLinesOnBothSides of each limit: RMS of a tensor, a row and a column, and the number of
// distinct rows from which on the first and the last are judged.
func TestLinesOnBothSides(t *testing.T) {
	for name, test := range map[string]struct {
		set             func(d *distances, rms float64)
		limit           float64
		width, distinct int
		rounded         bool
	}{
		"tensor":                         {func(d *distances, rms float64) { d.rms = rms }, 1, 64, 8, false},
		"tensor of rounded weights":      {func(d *distances, rms float64) { d.rms = rms }, math.Sqrt(3) + 0.5, 64, 8, true},
		"row":                            {func(d *distances, rms float64) { d.rowRMS = rms }, 3, 16, 1, false},
		"row of rounded weights":         {func(d *distances, rms float64) { d.rowRMS = rms }, 3, 16, 1, true},
		"column of 8 rows":               {func(d *distances, rms float64) { d.columnRMS = rms }, 1 + 4/math.Sqrt(8), 64, 8, false},
		"column of 16 rows":              {func(d *distances, rms float64) { d.columnRMS = rms }, 2, 64, 16, false},
		"no limit of 7 rows":             {func(d *distances, rms float64) { d.rms, d.columnRMS = rms, rms }, math.Inf(1), 64, 7, false},
		"no limit of a narrow row":       {func(d *distances, rms float64) { d.rowRMS = rms }, math.Inf(1), 15, 16, false},
		"no column of rounded weights":   {func(d *distances, rms float64) { d.columnRMS = rms }, math.Inf(1), 64, 16, true},
		"no limit of 7 rows, if rounded": {func(d *distances, rms float64) { d.rms = rms }, math.Inf(1), 64, 7, true},
	} {
		t.Run(name, func(t *testing.T) {
			margin := func(rms float64) float64 {
				var d distances
				test.set(&d, rms)
				return lines(&report.Check{}, &d, &report.Limits{}, test.width, test.distinct, test.rounded, false)
			}
			if math.IsInf(test.limit, 1) {
				require.Zero(t, margin(1e9))
				return
			}
			require.LessOrEqual(t, margin(test.limit*(1-1e-9)), 1.0)
			require.Greater(t, margin(test.limit*(1+1e-9)), 1.0)
		})
	}
}

// TestBlindnessOnBothSides of each dtype's limit.
func TestBlindnessOnBothSides(t *testing.T) {
	for d, limit := range map[tensor.DType]float64{tensor.F32: 1e-3, tensor.BF16: 0x1p-3, tensor.F16: 0x1p-3, tensor.Q8_0: 2, tensor.Q4_K: 2} {
		require.False(t, (&distances{sees: limit}).saysNothing(d), d)
		require.True(t, (&distances{sees: math.Nextafter(limit, 9)}).saysNothing(d), d)
	}
}

// TestPinnedOnBothSides of nine choices in ten.
func TestPinnedOnBothSides(t *testing.T) {
	for pinned, want := range map[int][]string{
		90: nil,
		89: {"rounding could change 11 of 100 choices of experts: what decides them was not checked"},
	} {
		tr := tracerOf(tensor.F32, Options{})
		tr.routing = report.Routing{Choices: 100, Pinned: pinned}
		require.Equal(t, want, outcome{tr.run, tr.result}.weak(), fmt.Sprint(pinned))
	}
}
