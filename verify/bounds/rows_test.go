package bounds

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model/tensor"
	"dsmoe/verify/pack"
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
	r := SelectRows(want, 2, pack.Padding{false, true, false, false, false, false, false})
	require.Equal(t, []int{0, 2, 3, 4, 5, 6}, r.Compared)
	require.Equal(t, 1, r.Padding)
	require.Equal(t, 4, r.Distinct)
	require.Equal(t, []float64{1.0 / 3, 1, 1.0 / 3, 1.0 / 3, 1, 1}, r.Weights)
	require.Equal(t, []float32{1, 2, 0, 0, 1, 2, 1 - alikeRows, 2 + alikeRows, 1, 2 + 4*alikeRows, 0, near}, r.Gather(want, 2))
	require.Equal(t, want, SelectRows(want, 2, nil).Gather(want, 2))
	require.Zero(t, SelectRows(want, 2, pack.Padding{true, true, true, true, true, true, true}).Distinct)
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

// TestDistancesOfSelectedRows: padding is not looked at, be it far off or a NaN, and rows that
// are alike count once.
func TestDistancesOfSelectedRows(t *testing.T) {
	const width = 2
	x := uncertainly(width, 1, 2, 1, 2, 1, 2, 3, 4, 5, 6)
	want := slices.Clone(x.Values)
	want[8], want[9] = float32(math.NaN()), 1e9 // padding
	want[1] += 12 * Unit                        // 10 σ beyond the half unit, 2 u, of the golden's own rounding
	rows := SelectRows(want, width, pack.Padding{false, false, false, false, true})
	require.Equal(t, 2, rows.Distinct)
	d := Measure(x, want, rows, 1)
	require.True(t, d.Finite)
	require.Equal(t, 10.0, d.Largest)
	z2 := Sq(d.Largest)
	require.InEpsilon(t, math.Sqrt(z2/3/4), d.Rms, 1e-9, "a third of one row of two, four elements")
	require.InEpsilon(t, math.Sqrt(z2/3/2), d.ColumnRMS, 1e-9)
	require.InEpsilon(t, math.Sqrt(z2/2), d.RowRMS, 1e-9, "a row's is its own")
	require.Equal(t, 1, d.Beyond)
	require.Equal(t, []bool{true, false, false, false, false}, d.Rows)
	want[0] = float32(math.NaN())
	require.False(t, Measure(x, want, SelectRows(want, width, pack.Padding{false, false, false, false, true}), 1).Finite)

	m := rows.Metrics(x.Values, x.Values, width, tensor.F32)
	require.Equal(t, 1.0, m.BitEqual)
	off := slices.Clone(x.Values)
	off[7], off[8], off[9] = 4.5, float32(math.Inf(1)), -7
	m = rows.Metrics(off, x.Values, width, tensor.F32)
	require.True(t, m.Finite)
	require.Equal(t, 0.5, m.MaxAbs)
	require.Equal(t, []int{7, 3}, []int{m.Worst, m.WorstRow})
	m = SelectRows(off, width, pack.Padding{true, false, false, true, false}).Metrics(off, x.Values, width, tensor.F32)
	require.Equal(t, 8, m.Worst, "of the whole tensor, not of what is compared")
}

// TestBlindnessOnBothSides of each dtype's limit.
func TestBlindnessOnBothSides(t *testing.T) {
	for _, c := range []struct {
		golden, rounded tensor.DType
		limit           float64
	}{
		{tensor.F32, tensor.F32, 1e-3}, {tensor.BF16, tensor.BF16, 0x1p-3}, {tensor.F16, tensor.F16, 0x1p-3},
		{tensor.F32, tensor.Q8_0, 0.221}, {tensor.BF16, tensor.Q8_0, 0.345}, {tensor.F32, tensor.Q6_K, 0.901},
		{tensor.F32, tensor.F8E4M3, 1.101}, {tensor.F32, tensor.Q5_0, 1.701}, {tensor.F32, tensor.Q4_K, 2.001},
		{tensor.F32, tensor.Q2_K, 2.001}, {tensor.F32, tensor.BF16, 0.126},
	} {
		require.False(t, (&Distances{Sees: c.limit * (1 - 1e-12)}).SaysNothing(c.golden, c.rounded), c)
		require.True(t, (&Distances{Sees: c.limit * (1 + 1e-12)}).SaysNothing(c.golden, c.rounded), c)
	}
}

// TestBlindnessIsOfTheType: 40 times the RMS error that half steps say of normally distributed numbers, at most 2.
func TestBlindnessIsOfTheType(t *testing.T) {
	r := rand.New(rand.NewPCG(12, 13))
	x := make([]float32, 1<<16)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	for _, d := range []tensor.DType{tensor.Q8_0, tensor.Q6_K, tensor.Q5_0, tensor.Q5_1, tensor.Q5_K, tensor.Q4_0, tensor.Q4_K,
		tensor.Q3_K, tensor.Q2_K, tensor.F8E4M3} {
		data := make([]byte, d.Bytes(int64(len(x))))
		if d == tensor.F8E4M3 {
			for i, v := range x {
				data[i] = tensor.FP8.Nearest(v * float32(math.Exp2(5+float64(i%100)/100))) // scales of all places in a binade
			}
		} else {
			q, err := tensor.NewQuantiser(d)
			require.NoError(t, err)
			require.NoError(t, q.Convert(data, x, &tensor.Loss{}))
		}
		y := tensor.Tensor{DType: d, Shape: []int{len(x)}, Data: data}
		values, err := y.Float32s(nil)
		require.NoError(t, err)
		var errors, squares float64
		for i, h := range y.HalfSteps(nil) {
			errors, squares = errors+Sq(float64(h))/3, squares+Sq(float64(values[i]))
		}
		require.InEpsilon(t, min(2, 40*math.Sqrt(errors/squares)), Blindness(d), 0.07, d)
	}
}

// TestLargest magnitude, at every place of rows of all lengths; a NaN exceeds all.
func TestLargest(t *testing.T) {
	nan := float32(math.NaN())
	for n := range 11 {
		row := make([]float32, n)
		require.Zero(t, largest(row))
		require.True(t, AllFinite(row))
		for i := range row {
			row[i] = -float32(i + 1)
			require.Equal(t, float32(i+1), largest(row))
		}
		for i := range row {
			for _, v := range []float32{nan, float32(math.Inf(-1))} {
				wrong := slices.Clone(row)
				wrong[i] = v
				require.Equal(t, v != v, largest(wrong) != largest(wrong))
				require.False(t, AllFinite(wrong))
			}
		}
	}
}
