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

// TestPatternIsCoarse: of a large tensor many elements share a cell, and the last cells may
// have fewer.
func TestPatternIsCoarse(t *testing.T) {
	a := &model.Activation{Shape: []int{3, 33, 130}, Values: make([]float32, 3*33*130), DType: tensor.F32}
	tr := passOf(tensor.F32, Options{})
	tr.job.in = &model.Input{Batch: 3, Seq: 33}
	all := bounds.SelectRows(a.Values, 130, nil)
	p := tr.evidence.pattern(a.Rows(), a.Width(), all, "σ", func(i int) float64 {
		switch row, column := i/130, i%130; {
		case row == 98 && column == 129:
			return 7
		case row == 0 && column == 2, row == 2 && column == 0:
			return float64(10 + row)
		case row == 50:
			return math.Inf(1)
		}
		return 0.5
	})
	require.Equal(t, [2]int{3, 3}, [2]int{p.RowStep, p.ColumnStep})
	require.Len(t, p.Cells, 33)
	require.Len(t, p.Cells[0], 44)
	require.Equal(t, 12.0, *p.Cells[0][0])
	require.Equal(t, 0.5, *p.Cells[0][1])
	require.Equal(t, 7.0, *p.Cells[32][43])
	require.Nil(t, p.Cells[16][20], "infinite")
	require.Equal(t, [2]int{16, 0}, p.Worst)
	require.Equal(t, 33, p.Seq)
	require.Nil(t, p.Padding)

	tr.evidence.checks = []report.Check{{Pattern: p}}
	require.Nil(t, tr.evidence.pattern(a.Rows(), a.Width(), all, "σ", nil), "one is enough")
}

// TestPatternsSayWhatTheLimitsSay: exact values that differ, and those that are not finite,
// are infinitely far.
func TestPatternsSayWhatTheLimitsSay(t *testing.T) {
	tr := passOf(tensor.F32, Options{})
	tr.job.in = &model.Input{Batch: 1, Seq: 2}
	// The reals that round to the golden end half a unit in the last place, 2 u, before it.
	nan := float32(math.NaN())
	scores := &model.Activation{Shape: []int{1, 4}, Values: []float32{1, 2, 3, nan}, DType: tensor.F32}
	x := bounds.WithErrors(scores, func(i int) float64 { return []float64{0, 0, bounds.Unit, bounds.Unit}[i] })
	want := []float32{1, 2.5, 3 + 4*0x1p-22, 4}
	p := tr.evidence.pattern(x.Rows(), x.Width(), bounds.SelectRows(want, x.Width(), nil), report.Sigmas, deviations(x, want, 1))
	require.Equal(t, 0.0, *p.Cells[0][0])
	require.Nil(t, p.Cells[0][1])
	require.Equal(t, 14.0, *p.Cells[0][2])
	require.Nil(t, p.Cells[0][3])

	want = []float32{4, 4, 4, 4}
	y := &model.Activation{Shape: []int{2, 2}, Values: []float32{3, nan, nan, 9}, DType: tensor.F32}
	p = tr.evidence.pattern(2, 2, bounds.SelectRows(want, 2, pack.Padding{false, true}), ofGolden, shares(y, want, 4))
	require.Equal(t, 0.25, *p.Cells[0][0])
	require.Nil(t, p.Cells[0][1])
	require.Equal(t, []float64{0, 0}, []float64{*p.Cells[1][0], *p.Cells[1][1]}, "padding")
	require.Equal(t, []int{1}, p.Padding)
	require.Equal(t, [2]int{0, 1}, p.Worst)
	require.Zero(t, p.Seq, "one sequence")
}
