package bounds

import (
	"math"
	"math/rand/v2"
	"slices"
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
			if want, got := float64(tensor.Rounded(x, d)), PrecisionOf(d).Round(float64(x)); want != got {
				require.Equal(t, want, got, "%s %x", d, x)
			}
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
	require.Equal(t, "", d.Where())
	require.InEpsilon(t, Lambda*Unit/0.75, d.Sees, 1e-9)

	want[6] += 21 * Unit // the golden's own rounding takes half a unit of 2u
	d = Measure(x, want, each, 1)
	require.InDelta(t, 21, d.Largest, 1.01)
	require.Equal(t, 6, d.Worst)
	require.Equal(t, 1, d.Beyond)
	require.Equal(t, "all in column 2", d.Where())
	require.InEpsilon(t, d.Largest/math.Sqrt(width), d.RowRMS, 1e-9)
	require.InEpsilon(t, d.Largest/math.Sqrt(rows), d.ColumnRMS, 1e-9)
	require.InEpsilon(t, d.Largest/math.Sqrt(width*rows), d.Rms, 1e-9)
	require.InEpsilon(t, d.Largest/4, Measure(x, want, each, 4).Largest, 1e-9)
	want[7] = 1
	d = Measure(x, want, each, 1)
	require.Empty(t, d.Where(), "half of the columns")
	require.Equal(t, []int{1}, d.FailingRows(0))

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

// TestErrorsThatAreNoNumbers excuse nothing: what differs is wrong.
func TestErrorsThatAreNoNumbers(t *testing.T) {
	for _, s := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
		x := uncertainly(2, 1, 2, 3, 4)
		x.sigma.Values[2] = s
		d := Measure(x, []float32{1, 2, 7, 4}, allRows([]float32{1, 2, 7, 4}, x), 1)
		require.True(t, d.Finite)
		require.True(t, math.IsInf(d.Largest, 1))
		require.Equal(t, 2, d.Worst)
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

// TestNearest: a usual number is next to what nearest returns, stays that within its room, and may become another
// beyond it. Most numbers are usual; ties, numbers that round to a power of two, and those that are not normal are not.
func TestNearest(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for _, d := range []tensor.DType{tensor.BF16, tensor.F16} {
		p, usual, n := PrecisionOf(d), 0, 20000
		for range n {
			r := p.Round(math.Ldexp(1+random.Float64(), random.IntN(28)-14))
			if random.IntN(8) == 0 {
				r = math.Ldexp(1, random.IntN(28)-14)
			}
			y := float32(math.Copysign(r+p.Ulp(r)*(random.Float64()-0.5), random.Float64()-0.5))
			got, room, ok := p.nearest(y)
			if !ok {
				continue
			}
			usual++
			y64 := float64(y)
			right := p.Round(y64) == float64(got)
			s := Unit * math.Abs(room)
			for _, f := range []float64{0, 0.5, 1 - unsure} {
				right = right && p.Round(y64-f*Lambda*s) == float64(got) && p.Round(y64+f*Lambda*s) == float64(got)
			}
			for _, f := range []float64{1 + unsure, 2, 1000, math.Inf(1)} {
				right = right && p.Round(y64-f*Lambda*s) != p.Round(y64+f*Lambda*s)
			}
			require.True(t, right, "%v ± %v: %v", y, s, got)
		}
		require.Greater(t, usual, n*3/4)
		for _, y := range unusual(p) {
			_, _, ok := p.nearest(y)
			require.False(t, ok, y)
		}
	}
	_, _, ok := f32.nearest(math.Pi)
	require.False(t, ok, "nothing is to be rounded")
}

// unusual are numbers that nearest leaves to the definition, of either sign.
func unusual(p *precision) (all []float32) {
	ulp := p.Ulp(1)
	for _, y := range []float64{0, 0x1p-149, math.Ldexp(1, p.least) * 0.75, 1, 1 + ulp/4, 1 - ulp/8, 1 + ulp/2, 1 + 1.5*ulp, 2 - ulp/2,
		p.largest, math.MaxFloat32, math.Inf(1), math.NaN()} {
		all = append(all, float32(y), float32(-y))
	}
	return all
}

// awkward are numbers and their deviations, in units of u, near what decides whether a quick way is taken, or far off.
func awkward(p *precision) (values, deviations []float32) {
	random, numbers := rand.New(rand.NewPCG(7, 8)), unusual(p)
	for range 300 {
		y := math.Ldexp(random.NormFloat64(), random.IntN(28)-14)
		numbers = append(numbers, float32(y), float32(p.Round(y)))
	}
	for _, y := range numbers {
		_, room, ok := p.nearest(y)
		if !ok {
			room = p.Ulp(float64(y)) / (4 * Lambda * Unit) // of a power of two
		}
		for _, f := range []float64{0, 1e-20, 0.5, 0.97, 0.98, 0.9999, 1, 1.0001, 1.02, 1.03, 2, 100, 1e20, math.Inf(1), math.NaN()} {
			values, deviations = append(values, y), append(deviations, float32(f*math.Abs(room)))
		}
	}
	return values, deviations
}

// TestQuickRounding: point and round give what the definition of point says.
func TestQuickRounding(t *testing.T) {
	for _, d := range []tensor.DType{tensor.BF16, tensor.F16} {
		p := PrecisionOf(d)
		values, deviations := awkward(p)
		x := &Value{Activation: &model.Activation{Shape: []int{1, len(values)}, Values: slices.Clone(values), DType: d},
			sigma: &model.Activation{Shape: []int{1, len(values)}, Values: slices.Clone(deviations)}}
		NewAnalysis(model.Options{DType: d}, nil).round(x)
		for i, y := range values {
			y, v := float64(y), Sq(float64(deviations[i]))
			wantR, wantV := p.Round(y), 0.0
			s := Unit * math.Sqrt(v)
			if finite := tensor.IsFinite(wantR) && v != 0; finite && (y != 0 || !(v <= denormal)) &&
				(p.Round(y-Lambda*s) != wantR || p.Round(y+Lambda*s) != wantR) {
				ulp := p.Ulp(wantR)
				b := max(0, ulp/2-math.Abs(y-wantR))
				if wantV = Sq(ulp/Unit) * max(leastFlip, math.Erfc(b/(s*math.Sqrt2))); s > ulp/4 {
					wantV += v
				}
			}
			r, v := p.point(y, v)
			same(t, wantR, r, "%v ± %v", y, s)
			same(t, wantV, v, "%v ± %v", y, s)
			same(t, wantR, float64(x.Values[i]), "%v ± %v", y, s)
			same(t, float64(deviation(wantV)), float64(x.sigma.Values[i]), "%v ± %v", y, s)
		}
	}
}

// same requires the same float32, of a zero with its sign; all NaN are the same.
func same(t *testing.T, want, got float64, words ...any) {
	if math.Float32bits(float32(want)) != math.Float32bits(float32(got)) {
		t.Helper()
		require.Equal(t, want, got, words...)
		require.Fail(t, "another sign", words...)
	}
}

// TestQuickDistances: distances and metrics of BF16 and F16 are what their definitions say, of each element alone and
// of all in two rows.
func TestQuickDistances(t *testing.T) {
	const factor = 3
	for _, d := range []tensor.DType{tensor.BF16, tensor.F16} {
		p := PrecisionOf(d)
		var values, deviations, want []float32
		var zs []float64
		ambiguous, equal, largest := 0, 0, 0.0
		ys, sigmas := awkward(p)
		for i, y := range ys {
			r := p.Round(float64(y))
			for _, g := range []float64{r, r + p.Ulp(r), r - p.Ulp(r), -r, 0, math.Inf(1)} {
				golden := []float32{float32(g)}
				g = float64(golden[0])
				m, metrics := measured([]float32{y}, sigmas[i:i+1], golden, 1, d, factor), Compare([]float32{y}, golden, 1, d)
				require.True(t, Agree(g, r) == m.d.Finite && tensor.IsFinite(g-r) == metrics.Finite, "%v ± %v, %v", y, sigmas[i], g)
				if !metrics.Finite {
					continue
				}
				s, flips := m.sigma(sigmas[i]), 0
				if s > 0 && p.Round(float64(y)-Lambda*s) != p.Round(float64(y)+Lambda*s) {
					flips = 1
				}
				z := p.Z(g, float64(y), s)
				if z != m.d.Largest || Sq(s) != m.sigmas || Sq(g) != m.goldens || flips != m.ambiguous || math.Abs(g-r) != metrics.MaxAbs {
					require.Equal(t, []float64{z, Sq(s), Sq(g)}, []float64{m.d.Largest, m.sigmas, m.goldens}, "%v ± %v, %v", y, s, g)
					require.Equal(t, flips, m.ambiguous, "%v ± %v, %v", y, s, g)
					require.Equal(t, math.Abs(g-r), metrics.MaxAbs, "%v, %v", y, g)
				}
				values, deviations, want, zs = append(values, y), append(deviations, sigmas[i]), append(want, golden[0]), append(zs, z)
				ambiguous += flips
				largest = max(largest, math.Abs(g-r))
				if g == r {
					equal++
				}
			}
		}
		n := len(values) / 2
		m := measured(values, deviations, want, n, d, factor)
		got := make([]float64, n)
		for _, c := range m.nonzero {
			got[c] = m.z[c]
		}
		require.Equal(t, zs[n:], got)
		require.Equal(t, ambiguous, m.ambiguous)
		metrics := Compare(values, want, n, d)
		require.Equal(t, []float64{largest, float64(equal) / float64(2*n)}, []float64{metrics.MaxAbs, metrics.BitEqual})
	}
}

// measured is a meter of values, rows of width elements, to which all were added.
func measured(values, deviations, want []float32, width int, d tensor.DType, factor float64) *meter {
	x := &Value{Activation: &model.Activation{Shape: []int{len(values) / width, width}, Values: values, DType: d},
		sigma: &model.Activation{Values: deviations}}
	m := NewMeter(allRows(want, x), width, d, factor)
	m.Add(0, x, want)
	return m
}
