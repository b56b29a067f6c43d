package bounds

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

var reduced = []tensor.DType{tensor.F32, tensor.BF16, tensor.F16}

// TestRoundIsTheCast of every float32 that there is a kind of.
func TestRoundIsTheCast(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		x := math.Float32frombits(r.Uint32())
		if x != x {
			continue
		}
		for _, d := range reduced {
			require.Equal(t, float64(tensor.Rounded(x, d)), PrecisionOf(d).Round(float64(x)), "%s %x", d, x)
		}
	}
}

// TestRoundTakesOneStep: through float32 these would become ties, and go to even.
func TestRoundTakesOneStep(t *testing.T) {
	for d, half := range map[tensor.DType]float64{tensor.BF16: 0x1p-8, tensor.F16: 0x1p-11} {
		y := 1 + half + 0x1p-40
		require.Equal(t, 1+2*half, PrecisionOf(d).Round(y))
		require.Equal(t, 1.0, float64(tensor.Rounded(float32(y), d)))
	}
	require.Equal(t, math.Inf(-1), PrecisionOf(tensor.F16).Round(-65520))
	require.Equal(t, 65504.0, PrecisionOf(tensor.F16).Round(65519.9))
}

func TestULP(t *testing.T) {
	for _, test := range []struct {
		d    tensor.DType
		x, u float64
	}{
		{tensor.F32, 1, 0x1p-23}, {tensor.F32, 0x1.fffp0, 0x1p-23}, {tensor.F32, -2, 0x1p-22}, {tensor.F32, 0, 0x1p-149}, {tensor.F32, 0x1p-140, 0x1p-149},
		{tensor.BF16, 1, 0x1p-7}, {tensor.BF16, 0, 0x1p-133}, {tensor.F16, 1000, 0.5}, {tensor.F16, 0x1p-20, 0x1p-24},
	} {
		require.Equal(t, test.u, PrecisionOf(test.d).Ulp(test.x), "%s %g", test.d, test.x)
	}
}

// TestPoint: what cannot round otherwise becomes exact; what can carries a flip, of
// probability 1/16 at least, and its own error where that is large.
func TestPoint(t *testing.T) {
	p, ulp := PrecisionOf(tensor.BF16), 0x1p-7
	inUnits := func(s float64) float64 { return Sq(s / Unit) }
	for name, test := range map[string]struct {
		y, s, r, v float64 // v in units of ulp²
	}{
		"exact":                       {1.001, 0, 1, 0},
		"far from the boundary":       {1.001, ulp / 100, 1, 0},
		"near the boundary":           {1 + ulp/2 - ulp/10, ulp / 50, 1, 1.0 / 16},
		"at the boundary":             {1 + ulp/2 - ulp/1e6, ulp / 50, 1, math.Erfc(1e-6 * 50 / math.Sqrt2)},
		"wide":                        {1.001, ulp, 1, math.Erfc((ulp/2-0.001)/(ulp*math.Sqrt2)) + 1},
		"the narrow side of a binade": {1 - ulp/4 + ulp/100, ulp / 50, 1, 1.0 / 16},
	} {
		r, v := p.point(test.y, inUnits(test.s))
		require.Equal(t, test.r, r, name)
		require.InDelta(t, test.v, v*Sq(Unit)/Sq(ulp), 1e-4, name)
	}
	for _, y := range []float64{math.Inf(1), math.NaN()} {
		r, v := p.point(y, 1)
		require.Zero(t, v)
		require.True(t, r == y || r != r)
	}
}

// TestDistances: each element's is its own, rows and columns are told, equality is demanded
// of what is exact.
func TestDistances(t *testing.T) {
	const width, rows = 4, 8
	x := uncertainly(width, make([]float32, width*rows)...)
	for i := range x.Values {
		x.Values[i] = 0.75
	}
	each := SelectRows(x.Values, width, nil)
	require.Equal(t, 1, each.Distinct)
	for i := range each.Weights { // as if no row were equal to another
		each.Weights[i] = 1
	}
	each.Distinct = rows
	want := append([]float32{}, x.Values...)
	d := Measure(x, want, each, 1)
	require.True(t, d.Finite)
	require.Zero(t, d.Largest)
	require.Equal(t, "", d.Where(x.Rows()))
	require.InEpsilon(t, Lambda*Unit/0.75, d.Sees, 1e-9)

	want[6] += 21 * Unit // the golden's own rounding takes half a unit of 2u
	d = Measure(x, want, each, 1)
	require.InDelta(t, 21, d.Largest, 1.01)
	require.Equal(t, 6, d.Worst)
	require.Equal(t, 1, d.Beyond)
	require.Equal(t, "all in column 2", d.Where(x.Rows()))
	require.InEpsilon(t, d.Largest/math.Sqrt(width), d.RowRMS, 1e-9)
	require.InEpsilon(t, d.Largest/math.Sqrt(rows), d.ColumnRMS, 1e-9)
	require.InEpsilon(t, d.Largest/math.Sqrt(width*rows), d.Rms, 1e-9)
	require.InEpsilon(t, d.Largest/4, Measure(x, want, each, 4).Largest, 1e-9)
	want[7] = 1
	require.Equal(t, "all in row 1", Measure(x, want, each, 1).Where(x.Rows()))

	x.sigma.Values[9] = 0
	require.Equal(t, 0.0, Measure(x, x.Values, each, 1).Largest)
	want[9] = math.Nextafter32(want[9], 1)
	d = Measure(x, want, each, 1)
	require.True(t, math.IsInf(d.Largest, 1), "an exact result one unit off")
	require.Equal(t, 9, d.Worst)

	want[20] = float32(math.NaN())
	d = Measure(x, want, each, 1)
	require.False(t, d.Finite)
	require.Equal(t, 20, d.Worst)
	x.Values[20], want[20] = float32(math.Inf(1)), float32(math.Inf(1))
	require.True(t, Agree(math.Inf(1), math.Inf(1)))
	require.False(t, Agree(math.Inf(1), math.Inf(-1)))
	require.False(t, Agree(math.NaN(), math.NaN()))
}

// TestErrorsThatAreNoNumbers hide nothing: the stage says nothing.
func TestErrorsThatAreNoNumbers(t *testing.T) {
	for _, s := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
		x := uncertainly(2, 1, 2, 3, 4)
		x.sigma.Values[2] = s
		d := Measure(x, []float32{1, 2, 7, 4}, allRows([]float32{1, 2, 7, 4}, x), 1)
		require.True(t, d.Finite)
		require.True(t, d.SaysNothing(tensor.F32, tensor.F32))
	}
}

// allRows compares every row of want, which has x's shape.
func allRows(want []float32, x *Value) *Rows { return SelectRows(want, x.Width(), nil) }

// uncertainly returns a value [rows, width] with a standard deviation of one float32 unit of 1 each.
func uncertainly(width int, values ...float32) *Value {
	y := &model.Activation{Shape: []int{len(values) / width, width}, Values: values, DType: tensor.F32}
	return WithErrors(y, func(int) float64 { return Unit })
}

// TestTablesAreUncertainWhereFrequenciesAre: a late position moves no entry but those whose inv_freq the reference may
// have otherwise.
func TestTablesAreUncertainWhereFrequenciesAre(t *testing.T) {
	a := NewAnalysis(model.Options{DType: tensor.F32}, nil)
	defer a.Close()
	angles := []float32{2047, 1535}
	others := []float32{2047, math.Nextafter32(1535, 2000)}
	cos, sin := a.Tables(&model.Rotary{Angles: angles, Others: others, Factor: 1, Half: 2, DType: tensor.F32})
	for i, angle := range angles {
		s, c := math.Sincos(float64(angle))
		moved := (float64(others[i]) - float64(angle)) / Unit
		require.InEpsilon(t, c*c+s*s*moved*moved, cos.Variance(i), 1e-5)
		require.InEpsilon(t, s*s+c*c*moved*moved, sin.Variance(i), 1e-5)
	}
}

// TestNearIsTheQuickHalfOfRounding: of numbers at and beside the boundaries of rounding, near says of none that
// it stays, unless it does with Lambda standard deviations to either side; and of most that do.
func TestNearIsTheQuickHalfOfRounding(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for _, d := range []tensor.DType{tensor.BF16, tensor.F16} {
		p, found, stay := PrecisionOf(d), 0, 0
		for range 200000 {
			r := p.Round(math.Ldexp(1+random.Float64(), random.IntN(28)-14))
			if random.IntN(8) == 0 {
				r = math.Ldexp(1, random.IntN(28)-14)
			}
			y := math.Copysign(r+p.Ulp(r)*(random.Float64()-0.5), random.Float64()-0.5)
			s := p.Ulp(r) * math.Exp2(-20*random.Float64())
			y = float64(float32(y))
			stays := p.Round(y-Lambda*s) == p.Round(y) && p.Round(y+Lambda*s) == p.Round(y)
			got, near := p.near(float32(y), Sq(s/Unit))
			if near {
				require.True(t, stays, "%v ± %v", y, s)
				require.Equal(t, p.Round(y), float64(got))
				found++
			}
			if stays {
				stay++
			}
		}
		require.Greater(t, found, stay*3/4)
	}
	for _, y := range []float64{0, math.Inf(1), math.NaN(), 65519, 0x1.ffp127} {
		_, near := PrecisionOf(tensor.F16).near(float32(y), 0)
		require.False(t, near, y)
	}
}
