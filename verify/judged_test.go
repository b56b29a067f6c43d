package verify

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// TestPaddedRows: which row of which stage is which token.
func TestPaddedRows(t *testing.T) {
	in := &model.Input{Batch: 2, Seq: 3, InputIDs: make([]int, 6), AttentionMask: []int{1, 1, 1, 0, 1, 1}}
	tr := passOf(tensor.F32, Options{})
	tr.job.in, tr.job.rows, tr.job.model.Config.MoE.NumExpertsPerTok = in, in, 2
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
		"model.layers.0.self_attn.indexer.q":                 {[]int{2, 3, 2, 4}, []int{6, 7}},
		"model.layers.0.self_attn.q_norm.output":             {[]int{2, 3, 4, 5}, []int{12, 13, 14, 15}},
		"model.layers.1.self_attn.k_norm.output":             {[]int{2, 2, 3, 5}, []int{6, 7, 8}},
		"model.layers.0.ffn_hc.input":                        {[]int{2, 3, 2, 2, 5}, []int{12, 13, 14, 15}},
		"model.layers.0.mlp.experts.3.probe.output":          {[]int{2, 5}, nil},
		"model.layers.0.self_attn.indexer.k":                 {[]int{2, 3, 4}, []int{3}},
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
		require.Equal(t, test.want, bounds.Marked(tr.paddedRows(name, a)), name)
	}
	transposed, err := config.Parse(strings.NewReader(`{"model_type":"hy_v3"}`))
	require.NoError(t, err)
	tr.job.model.Config = transposed
	for shape, want := range map[[4]int][]int{{2, 3, 3, 5}: {9, 12, 15}, {2, 2, 3, 5}: {6, 9}} {
		a := &model.Activation{Shape: shape[:], Values: make([]float32, shape[0]*shape[1]*shape[2]*shape[3])}
		require.Equal(t, want, bounds.Marked(tr.paddedRows("model.layers.1.self_attn.k_norm.output", a)), shape)
	}
	in.AttentionMask = nil
	require.Nil(t, tr.paddedRows("lm_head.output", &model.Activation{Shape: []int{2, 3, 9}, Values: make([]float32, 54)}))
}

// TestLinesOnBothSides of each limit: RMS of a tensor, a row and a column, and the number of
// distinct rows from which on the first and the last are judged.
func TestLinesOnBothSides(t *testing.T) {
	for name, test := range map[string]struct {
		set             func(d *bounds.Distances, rms float64)
		limit           float64
		width, distinct int
		rounded         bool
		independent     int // errors of a row; width if 0
	}{
		"tensor":                         {func(d *bounds.Distances, rms float64) { d.Rms = rms }, 1.12 + 3.5/math.Sqrt(512), 64, 8, false, 0},
		"tensor of rounded weights":      {func(d *bounds.Distances, rms float64) { d.Rms = rms }, math.Sqrt(3) + 0.5, 64, 8, true, 0},
		"row":                            {func(d *bounds.Distances, rms float64) { d.RowRMS = rms }, 3, 16, 1, false, 0},
		"row of rounded weights":         {func(d *bounds.Distances, rms float64) { d.RowRMS = rms }, 3, 16, 1, true, 0},
		"row of 4 errors":                {func(d *bounds.Distances, rms float64) { d.RowRMS = rms }, 4, 16, 1, false, 4},
		"row of one error":               {func(d *bounds.Distances, rms float64) { d.RowRMS = rms }, 8, 64, 1, true, 1},
		"tensor of few errors":           {func(d *bounds.Distances, rms float64) { d.Rms = rms }, 1.12 + 3.5/math.Sqrt(16), 64, 8, false, 2},
		"column of 8 rows":               {func(d *bounds.Distances, rms float64) { d.ColumnRMS = rms }, 1.12 + 3.5/math.Sqrt(8), 64, 8, false, 0},
		"column of 16 rows":              {func(d *bounds.Distances, rms float64) { d.ColumnRMS = rms }, 1.12 + 3.5/math.Sqrt(16), 64, 16, false, 0},
		"no limit of 7 rows":             {func(d *bounds.Distances, rms float64) { d.Rms, d.ColumnRMS = rms, rms }, math.Inf(1), 64, 7, false, 0},
		"no limit of a narrow row":       {func(d *bounds.Distances, rms float64) { d.RowRMS = rms }, math.Inf(1), 15, 16, false, 0},
		"no column of rounded weights":   {func(d *bounds.Distances, rms float64) { d.ColumnRMS = rms }, math.Inf(1), 64, 16, true, 0},
		"no limit of 7 rows, if rounded": {func(d *bounds.Distances, rms float64) { d.Rms = rms }, math.Inf(1), 64, 7, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			margin := func(rms float64) float64 {
				var d bounds.Distances
				test.set(&d, rms)
				independent := cmp.Or(test.independent, test.width)
				return judgeLines(&report.Check{}, &d, &report.Limits{}, test.width, independent, test.distinct, test.rounded, false)
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

// TestPinnedOnBothSides of nine choices in ten.
func TestPinnedOnBothSides(t *testing.T) {
	for pinned, want := range map[int][]string{
		90: nil,
		89: {"rounding could change 11 of 100 choices of experts: what decides them was not checked"},
	} {
		r := &report.Report{Routing: report.Routing{Choices: 100, Pinned: pinned}}
		require.Equal(t, want, weakEvidence(r, nil), fmt.Sprint(pinned))
	}
	one := &report.Report{Routing: report.Routing{Choices: 1}}
	require.Equal(t, []string{"rounding could change 1 of 1 choice of experts: what decides them was not checked"}, weakEvidence(one, nil))
}
