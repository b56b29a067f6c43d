package bounds

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
)

// runsOfOneSign returns n magnitudes in six runs of one sign: their sum goes far from 0 before it
// comes back.
func runsOfOneSign(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(math.Abs(r.NormFloat64()))
		if 6*i/n%2 == 1 {
			x[i] = -x[i]
		}
	}
	return x
}

// inFour is Σ x·w in float32, in four sums of every fourth term.
func inFour(x, w []float32, _ int) float32 {
	var sums [4]float32
	for k, v := range x {
		sums[k%4] += float32(v * w[k])
	}
	return float32(sums[0]+sums[1]) + float32(sums[2]+sums[3])
}

// inChains is Σ x·w in float32, in its natural order, in chains of so many terms.
func inChains(x, w []float32, chain int) (total float32) {
	for from := 0; from < len(x); from += chain {
		s := float32(0)
		for k := from; k < min(from+chain, len(x)); k++ {
			s += float32(x[k] * w[k])
		}
		total += s
	}
	return total
}

// storedWeight is a weight of F32 with these values.
func storedWeight(values []float32, shape ...int) model.Weight {
	var data []byte
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	return model.Weight{Name: "w", Tensor: tensor.Tensor{DType: tensor.F32, Shape: shape, Data: data}}
}

// TestCoherentSumsAreWithinTheBounds: of terms in runs of one sign, float32 sums in their natural
// order are right references, in chains, in one, or in four of few rows; the variance of terms in random order calls
// them wrong. A reference with one weight beyond the bound is wrong.
func TestCoherentSumsAreWithinTheBounds(t *testing.T) {
	t.Parallel()
	const out = 48
	for _, test := range []struct {
		rows, k, chain int
		d              tensor.DType
		sum            func(x, w []float32, chain int) float32
	}{{24, 2048, 384, tensor.F32, inChains}, {24, 4096, 512, tensor.F32, inChains}, {2, 16384, 0, tensor.F32, inFour}, {24, 4096, 4096, tensor.F16, inChains}} {
		t.Run(fmt.Sprint(test.rows, test.k, test.d), func(t *testing.T) {
			r := rand.New(rand.NewPCG(3, 4))
			var x, w []float32
			for range test.rows {
				x = append(x, runsOfOneSign(r, test.k)...)
			}
			for range out * test.k {
				w = append(w, tensor.Rounded(float32(math.Abs(r.NormFloat64())), tensor.F16))
			}
			reference := func(w []float32) (y []float32) {
				for i := range test.rows * out {
					y = append(y, test.sum(x[i/out*test.k:][:test.k], w[i%out*test.k:][:test.k], test.chain))
				}
				return y
			}
			golden := reference(w)
			l := &model.Linear{Weight: storedWeight(w, out, test.k)}
			a := NewAnalysis(model.Options{DType: test.d}, nil)
			defer a.Close()
			in := Exact(&model.Activation{DType: tensor.F32, Shape: []int{test.rows, test.k}, Values: x})
			y := a.Linear(in, l)
			d := Measure(y, golden, allRows(golden, y), 1)
			require.Less(t, d.Largest, 5.5)
			require.Less(t, d.Rms, 1.0)
			require.Greater(t, d.Rms, 0.2) // of few rows: one chain is allowed, too

			kappa := a.linear(in, out).kappa
			first := a.result(tensor.F32, test.rows, out) // what terms in random order allow
			for i, sum := range y.Values {
				squares := 0.0
				for k := range test.k {
					squares += Sq(float64(x[i/out*test.k+k]) * float64(w[i%out*test.k+k]))
				}
				first.Set(i, float64(sum), roughly(float64(sum), kappa*(squares+Sq(float64(sum)))))
			}
			d = Measure(first, golden, allRows(golden, first), 1)
			require.Greater(t, d.Rms, 1.5)

			const wrong = 7*4096/4 + 5
			row := wrong / test.k
			change := 20 * Unit * math.Sqrt(y.Variance(row)) / math.Abs(float64(x[wrong%test.k]))
			w[wrong] += float32(change)
			golden = reference(w)
			d = Measure(y, golden, allRows(golden, y), 1)
			require.Greater(t, d.Largest, float64(Lambda))
			require.Equal(t, row, d.Worst%out)
		})
	}
}

// TestSumsOfLinears: float32 sums of products as torch was found to compute them are right references. MKL's totals of
// chains begin with the bias, or it is added last; up to 11 outputs are four sums of every fourth term; oneDNN has
// chains of 1024 terms, in BF16 too.
func TestSumsOfLinears(t *testing.T) {
	t.Parallel()
	beginning := func(x, w []float32, start float32) float32 {
		for from := 0; from < len(x); from += 192 {
			to := min(from+192, len(x))
			start += inChains(x[from:to], w[from:to], 192)
		}
		return start
	}
	last := func(x, w []float32, bias float32) float32 { return beginning(x, w, 0) + bias }
	fourth := func(x, w []float32, bias float32) float32 { return inFour(x, w, 0) + bias }
	long := func(x, w []float32, bias float32) float32 { return inChains(x, w, 1024) + bias }
	for _, test := range []struct {
		name    string
		k, out  int
		bias    float64
		oneDNN  bool
		ordered bool
		sum     func(x, w []float32, bias float32) float32
	}{
		{"bias first", 5120, 24, 30, false, false, beginning},
		{"bias first, of 192 terms", 192, 24, 30, false, false, beginning},
		{"bias last", 5120, 24, 30, false, false, last},
		{"few outputs", 28672, 4, 0, false, false, fourth},
		{"few outputs and a bias", 7168, 11, 30, false, false, fourth},
		{"oneDNN", 4096, 24, 0, true, true, long},
		{"oneDNN and a bias", 2048, 24, 30, true, true, long},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			const rows = 16
			r := rand.New(rand.NewPCG(13, 14))
			var x []float32
			for range rows {
				for i := range test.k {
					v := r.NormFloat64()
					if test.ordered { // of one sign, then the other
						v = math.Copysign(1+0.1*v, float64(test.k/2-i))
					}
					x = append(x, float32(v))
				}
			}
			w, biases := make([]float32, test.out*test.k), make([]float32, test.out)
			for i := range w {
				v := r.NormFloat64()
				if test.ordered {
					v = 1 + 0.1*v
				}
				w[i] = tensor.Rounded(float32(v/math.Sqrt(float64(test.k))), tensor.BF16)
			}
			for i := range biases {
				biases[i] = float32(test.bias * r.NormFloat64())
			}
			l := &model.Linear{Weight: storedWeight(w, test.out, test.k)}
			if test.bias > 0 {
				l.Bias = storedWeight(biases, test.out)
			}
			var golden []float32
			for i := range rows * test.out {
				golden = append(golden, test.sum(x[i/test.out*test.k:][:test.k], w[i%test.out*test.k:][:test.k], biases[i%test.out]))
			}
			a := NewAnalysis(model.Options{DType: tensor.F32}, nil)
			defer a.Close()
			a.SetReference(Reference{Threads: 1, OneDNN: test.oneDNN})
			y := a.Linear(Exact(&model.Activation{DType: tensor.F32, Shape: []int{rows, test.k}, Values: x}), l)
			d := Measure(y, golden, allRows(golden, y), 1)
			require.Less(t, d.Largest, 5.5)
			require.Less(t, d.Rms, 1.05)
			require.Greater(t, d.Rms, 0.1, "the bound is no looser than that")
		})
	}
}

// TestNormsBesideMassiveSquares: a sum of squares in 16 lanes, as of a compiled norm, is a right reference beside a
// massive activation, and of BF16 numbers, whose squares lose with one sign.
func TestNormsBesideMassiveSquares(t *testing.T) {
	t.Parallel()
	const rows, k = 12, 7168
	ones := make([]float32, k)
	for i := range ones {
		ones[i] = 1
	}
	for _, test := range []struct {
		massive float32
		d       tensor.DType // of the numbers
		least   float64      // RMS of z with 1.5², at least
	}{{300, tensor.F32, 2}, {3000, tensor.F32, 3}, {300, tensor.BF16, 2}, {0, tensor.BF16, 2}} {
		r := rand.New(rand.NewPCG(15, 16))
		x := make([]float32, rows*k)
		for i := range x {
			x[i] = tensor.Rounded(float32(r.NormFloat64()), test.d)
		}
		var golden []float32
		for t := range rows {
			row := x[t*k : (t+1)*k]
			if test.massive != 0 {
				row[3+t] = test.massive
			}
			var sums [16]float32
			for i, v := range row {
				sums[i%16] += float32(v * v)
			}
			total := float32(0)
			for _, s := range sums {
				total += s
			}
			inverse := 1 / float32(math.Sqrt(float64(float32(total/k)+1e-6)))
			for _, v := range row {
				golden = append(golden, float32(v*inverse))
			}
		}
		a := NewAnalysis(model.Options{DType: tensor.F32}, nil)
		defer a.Close()
		w := storedWeight(ones, k)
		y := a.RMSNorm(Exact(&model.Activation{DType: tensor.F32, Shape: []int{rows, k}, Values: x}), &w, 1e-6)
		d := Measure(y, golden, allRows(golden, y), 1)
		require.Less(t, d.Largest, 5.0, "%v", test)
		require.Less(t, d.RowRMS, 2.5, "%v", test)
		require.Less(t, d.Rms, 1.1, "%v", test)
		flat := WithErrors(y.Activation, func(i int) float64 { return Unit * math.Abs(float64(y.Values[i])) * math.Sqrt(2.25+2.0/3) })
		require.Greater(t, Measure(flat, golden, allRows(golden, y), 1).Rms, test.least, "%v", test)
	}
}

// TestSumsThatDriftAndReturn: of 128 terms of nearly one size, whose sum is small in the end, one partial sum of 4 says
// the deviation of float32 sums; one of 16 would say an eighth too little.
func TestSumsThatDriftAndReturn(t *testing.T) {
	t.Parallel()
	const rows, k, out = 64, 128, 64
	r := rand.New(rand.NewPCG(7, 8))
	x, w := make([]float32, rows*k), make([]float32, out*k)
	for i := range x {
		if x[i] = float32(1 + 0.1*r.NormFloat64()); i%k >= k/2 {
			x[i] = -x[i]
		}
	}
	for i := range w {
		w[i] = float32(0.02 + 0.001*r.NormFloat64())
	}
	a := NewAnalysis(model.Options{DType: tensor.F32}, nil)
	defer a.Close()
	y := a.Linear(Exact(&model.Activation{DType: tensor.F32, Shape: []int{rows, k}, Values: x}),
		&model.Linear{Weight: storedWeight(w, out, k)})
	var golden []float32
	for i := range rows * out {
		golden = append(golden, inChains(x[i/out*k:][:k], w[i%out*k:][:k], 192))
	}
	d := Measure(y, golden, allRows(golden, y), 1)
	require.InDelta(t, 1, d.Rms, 0.05)
}

// TestCoherentScoresAndContexts: float32 sums in their natural order are right references of
// scores, of contexts, whose terms are in the order of the keys, and of sums over experts.
func TestCoherentScoresAndContexts(t *testing.T) {
	t.Parallel()
	const heads, n, keys, dim = 2, 24, 480, 192
	r := rand.New(rand.NewPCG(5, 6))
	var q, k, v []float32
	for range heads * n {
		q = append(q, runsOfOneSign(r, dim)...)
	}
	for range heads * keys * dim {
		k = append(k, float32(math.Abs(r.NormFloat64())))
	}
	for range heads * dim {
		v = append(v, runsOfOneSign(r, keys)...)
	}
	given := func(values []float32, shape ...int) *Value {
		return Exact(&model.Activation{DType: tensor.F32, Shape: shape, Values: values})
	}
	a := NewAnalysis(model.Options{DType: tensor.F32}, nil)
	defer a.Close()
	of := func(x, w []float32, rows, k int) (y []float32) {
		for h := range heads {
			for i := range n * rows {
				y = append(y, inChains(x[(h*n+i/rows)*k:][:k], w[(h*rows+i%rows)*k:][:k], 512))
			}
		}
		return y
	}
	scores := a.Scores(given(q, 1, heads, n, dim), given(k, 1, heads, keys, dim), 0, n, &model.Scoring{By: 1})
	want := of(q, k, keys, dim)
	d := Measure(scores, want, allRows(want, scores), 1)
	require.Less(t, d.Rms, 1.0)
	require.Greater(t, d.Rms, 0.3)

	probs := make([]float32, heads*n*keys)
	for i := range probs {
		probs[i] = float32(1+0.1*r.Float64()) / keys
	}
	context := a.Context(given(probs, 1, heads, n, keys), given(v, 1, heads, dim, keys))
	want = of(probs, v, dim, keys)
	d = Measure(context, want, allRows(want, context), 1)
	require.Less(t, d.Rms, 1.0)
	require.Greater(t, d.Rms, 0.3)

	const chosen, width = 12, 64
	parts, weights, golden := []model.Part[*Value](nil), make([]float32, chosen), make([]float32, width)
	for e, s := range runsOfOneSign(r, chosen) {
		weights[e] = s
		out := make([]float32, width)
		for c := range out {
			out[c] = 1 + float32(r.Float64())
			golden[c] += float32(out[c] * s)
		}
		parts = append(parts, model.Part[*Value]{Expert: e, Slots: []int{e}, Out: given(out, 1, width)})
	}
	sum := a.Combine(given(weights, 1, chosen), parts, config.ByChoice)
	d = Measure(sum, golden, allRows(golden, sum), 1)
	require.Less(t, d.Rms, 1.0)
	require.Greater(t, d.Rms, 0.2)
}

// TestQueriesMoveAllKeys: one element of each query is off by a unit, and values go with the keys' elements: contexts
// move by about their deviation, however many keys there are.
func TestQueriesMoveAllKeys(t *testing.T) {
	t.Parallel()
	const dim, off = 16, 0x1p-8
	for _, keys := range []int{64, 4096} {
		r := rand.New(rand.NewPCG(17, 18))
		a := NewAnalysis(model.Options{DType: tensor.BF16}, nil)
		defer a.Close()
		random := func(n int) []float32 {
			x := make([]float32, n)
			for i := range x {
				x[i] = tensor.Rounded(float32(r.NormFloat64()), tensor.BF16)
			}
			return x
		}
		given := func(values []float32, shape ...int) *model.Activation {
			return &model.Activation{DType: tensor.BF16, Shape: shape, Values: values}
		}
		q, k, v := random(4*dim), random(keys*dim), make([]float32, dim*keys)
		for i := range v {
			v[i] = tensor.Rounded(k[i%keys*dim]+0.3*float32(r.NormFloat64()), tensor.BF16)
		}
		context := func(q *Value) *Value {
			return a.Context(a.Softmax(a.Scores(q, Exact(given(k, 1, 1, keys, dim)), 0, 4, &model.Scoring{By: 0.25})),
				Exact(given(v, 1, 1, dim, keys)))
		}
		y := context(WithErrors(given(q, 1, 1, 4, dim), func(i int) float64 {
			if i%dim == 0 {
				return off
			}
			return 0
		}))
		moved := append([]float32(nil), q...)
		for i := 0; i < len(q); i += dim {
			moved[i] += off
		}
		other := context(Exact(given(moved, 1, 1, 4, dim)))
		largest, rms := 0.0, 0.0
		for i, got := range other.Values {
			z := math.Abs(float64(got-y.Values[i])) / (Unit * math.Sqrt(y.Variance(i)))
			largest, rms = max(largest, z), rms+Sq(z)/float64(len(other.Values))
		}
		require.Less(t, largest, 1.6, "%d keys", keys)
		require.InDelta(t, 0.8, math.Sqrt(rms), 0.3, "%d keys", keys)
	}
}

// TestSumsOverExpertsHaveTheirPartialSums: of 64 experts whose outputs are of one sign, then of
// the other, the partial sums are far larger than the terms.
func TestSumsOverExpertsHaveTheirPartialSums(t *testing.T) {
	const k = 64
	a := NewAnalysis(model.Options{DType: tensor.F32}, nil)
	defer a.Close()
	weight := a.plain.Make(tensor.F32, 1, k)
	var parts []model.Part[*Value]
	sum, partial, squares, products := 0.0, 0.0, 0.0, 0.0
	for e := range k {
		out := a.plain.Make(tensor.F32, 1, 1)
		out.Values[0], weight.Values[e] = 1.25, 0.7
		if e >= k/2 {
			out.Values[0] = -1.25
		}
		parts = append(parts, model.Part[*Value]{Expert: e, Slots: []int{e}, Out: Exact(out)})
		term := float64(out.Values[0] * weight.Values[e])
		sum += term
		partial += Sq(power(sum))
		squares += Sq(term)
		products += Sq(term) / 3 // each rounded once
	}
	y := a.Combine(Exact(weight), parts, config.ByChoice)
	random, natural := (k+1.0)/6*(squares+Sq(sum)), (partial+Sq(power(sum)))/3
	require.Greater(t, natural, 3*random)
	require.InEpsilon(t, natural, y.Variance(0), 0.02)
	require.LessOrEqual(t, products, 0.02*natural)
}
