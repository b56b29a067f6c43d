package bounds

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// TestRoundingOfBlocks: codes of exact numbers are certain but at ties, where either one may be; of uncertain numbers
// those are certain that no error reaches a tie of, and steps may be uncertain, too.
func TestRoundingOfBlocks(t *testing.T) {
	q8, known := RoundingOf("q8_0")
	require.True(t, known)
	e := &engine{Analysis: NewAnalysis(model.Options{DType: tensor.F32}, nil)}
	defer e.Close()
	x := Exact(&model.Activation{Shape: []int{1, 40}, Values: make([]float32, 40), DType: tensor.F32})
	x.Values[0], x.Values[1], x.Values[2], x.Values[3] = 12.7, 0.149, -6.35, 0.05 // codes 127, 1.49, -63.5, 0.5
	x.Values[32], x.Values[33] = 1, 0.27                                          // a block of 8: codes 127, 34.29
	y := e.rounded(x, q8)
	step := float64(tensor.Rounded(0.1, tensor.F16))
	for i, code := range map[int]float64{0: 127, 1: 1, 2: -63.5, 3: 0.5, 4: 0} {
		require.InDelta(t, code*step, y.Values[i], 1e-6, i)
		if code == math.Trunc(code) {
			require.Zero(t, y.Variance(i))
		} else { // off by half a step, all ties of a row the same way
			require.InDelta(t, step*step/2, y.Variance(i)*Unit*Unit, 1e-6)
		}
	}
	require.InDelta(t, 34*float64(tensor.Rounded(1.0/127, tensor.F16)), y.Values[33], 1e-6)

	blocks, _ := RoundingOf("q8_k")
	require.InDelta(t, 0.3, e.rounded(x, blocks).Values[33], 1e-6) // in one block with the others

	sure := WithErrors(x.Activation, func(int) float64 { return 1e-6 })
	require.Zero(t, e.rounded(sure, q8).Variance(1))
	unsure := WithErrors(x.Activation, func(int) float64 { return 0.05 })
	y = e.rounded(unsure, q8)
	require.Equal(t, x.Values[1], y.Values[1])
	require.InDelta(t, 0.05*0.05+0.1*0.1/12, y.Variance(1)*Unit*Unit, 1e-3)

	none, known := RoundingOf("f32")
	require.True(t, known)
	require.Same(t, x, e.rounded(x, none))
	_, known = RoundingOf("q9")
	require.False(t, known)
	zero := Exact(&model.Activation{Shape: []int{1, 2}, Values: make([]float32, 2), DType: tensor.F32})
	require.Equal(t, []float32{0, 0}, e.rounded(zero, q8).Values)
	fp8, _ := RoundingOf("fp8-1x128") // 12.7 is 448 steps
	require.InDelta(t, 12.7/448*5.5, e.rounded(x, fp8).Values[1], 1e-6)
}

// TestSumsOfBlocks: a product with a weight in Q5_1 is off by its minima times what F16 takes from the sums of blocks,
// as are those with the decoded weight, of a head, too; where a sum may be rounded either way, more uncertain.
func TestSumsOfBlocks(t *testing.T) {
	const width = 64
	numbers := func(i int) float32 { return float32(math.Sin(0.7 + 1.9*float64(i))) }
	x := Exact(&model.Activation{Shape: []int{1, width}, Values: make([]float32, width), DType: tensor.F32})
	plain := make([]float32, 3*width)
	for i := range plain {
		plain[i] = numbers(i + 100)
		if i < width {
			x.Values[i] = numbers(i)*numbers(i) + 0.1
		}
	}
	q, err := tensor.NewQuantiser(tensor.Q5_1)
	require.NoError(t, err)
	stored := model.Weight{Name: "w", Tensor: tensor.Tensor{DType: tensor.Q5_1, Shape: []int{3, width}}}
	stored.Data = make([]byte, tensor.Q5_1.Bytes(3*width))
	q.Convert(stored.Data, plain, &tensor.Loss{})
	values, err := stored.Float32s(nil)
	require.NoError(t, err)
	decoded := model.Weight{Name: "w", Tensor: tensor.Tensor{DType: tensor.F32, Shape: stored.Shape}}
	for _, v := range values {
		decoded.Data = binary.LittleEndian.AppendUint32(decoded.Data, math.Float32bits(v))
	}
	product := func(to string, x *Value, w model.Weight) *Value {
		a := NewAnalysis(model.Options{DType: tensor.F32}, nil)
		r, _ := RoundingOf(to)
		return NewEngine(a, &Engine{Inputs: func(*model.Weight) (k, v *Rounding) { return r, r }}).Linear(x, &model.Linear{Weight: w})
	}
	q8, _ := RoundingOf("q8_1")
	e := &engine{Analysis: NewAnalysis(model.Options{DType: tensor.F32}, nil), Engine: &Engine{}, up: &model.Linear{}}
	defer e.Close()
	rounded := e.rounded(x, q8)
	without, with, same := product("q8_0", x, stored), product("q8_1", x, stored), product("q8_1", x, decoded)
	unsure := WithErrors(x.Activation, func(int) float64 { return 1e-6 })
	more := product("q8_1", unsure, stored)
	head := Exact(&model.Activation{Shape: []int{1, 1, 1, width}, Values: x.Values, DType: tensor.F32})
	absorbed := e.perHead(head, q8, 3, func(int) []float32 { return values })
	for r := range 3 {
		off := 0.0
		for b := range 2 {
			step, codes := slices.Max(x.Values[b*32:b*32+32])/127, 0.0
			for _, v := range rounded.Values[b*32 : b*32+32] {
				codes += math.Round(float64(v / step))
			}
			sum := float64(tensor.Rounded(step*float32(codes), tensor.F16)) - float64(tensor.Rounded(step, tensor.F16))*codes
			off += sum * float64(slices.Min(values[r*width+b*32:r*width+b*32+32]))
		}
		require.Greater(t, math.Abs(off), 1e-4)
		require.InDelta(t, off, float64(with.Values[r]-without.Values[r]), 2e-6)
		require.InDelta(t, with.Values[r], same.Values[r], 2e-6)
		require.InDelta(t, with.Values[r], absorbed.Values[r], 2e-6)
		require.Greater(t, with.Variance(r), without.Variance(r))
		require.Greater(t, more.Variance(r), with.Variance(r))
	}
}

// TestAbsorbedAttention: with the weights of keys and values multiplied into queries and contexts, attention is the
// same but for rounding errors.
func TestAbsorbedAttention(t *testing.T) {
	const heads, seq, nope, rope, value, rank = 2, 5, 3, 2, 4, 6
	numbers := func(seed float64, shape ...int) *Value {
		x := made(tensor.F32, false, shape...)
		for i := range x.Values {
			x.Values[i] = float32(math.Sin(seed + 1.7*float64(i)))
		}
		return x
	}
	weights := numbers(1, heads*(nope+value), rank)
	up := &model.Linear{Weight: model.Weight{Name: "up", Tensor: tensor.Tensor{DType: tensor.F32, Shape: weights.Shape}}}
	for _, v := range weights.Values {
		up.Weight.Data = binary.LittleEndian.AppendUint32(up.Weight.Data, math.Float32bits(v))
	}
	latent, q, rotated := numbers(2, 1, seq, rank), numbers(3, 1, heads, seq, nope+rope), numbers(4, 1, 1, seq, rope)
	analysis := NewAnalysis(model.Options{DType: tensor.F32}, nil)
	defer analysis.Close()
	kv := analysis.Linear(latent, up) // [1, seq, heads·(nope+value)]
	k, vT := made(tensor.F32, false, 1, heads, seq, nope+rope), made(tensor.F32, false, 1, heads, value, seq)
	for h := range heads {
		for s := range seq {
			row := kv.Row(s)[h*(nope+value):]
			to := k.Values[(h*seq+s)*(nope+rope):]
			copy(to, row[:nope])
			copy(to[nope:nope+rope], rotated.Row(s))
			for c := range value {
				vT.Values[(h*value+c)*seq+s] = row[nope+c]
			}
		}
	}
	scoring := &model.Scoring{By: 0.4, Mask: &model.Mask{Lowest: -math.MaxFloat32, In: &model.Input{Batch: 1, Seq: seq,
		InputIDs: make([]int, seq)}}}
	attend := func(a Arithmetic) *Value {
		return a.Context(a.Softmax(a.Scores(q, k, 0, seq, scoring)), vT)
	}
	want := attend(analysis)
	absorbed := NewEngine(analysis, &Engine{Inputs: func(*model.Weight) (k, v *Rounding) { return nil, nil },
		Absorbs: func(*model.Weight) (keys, values int) { return nope, value }})
	absorbed.Linear(latent, up)
	got := attend(absorbed)
	require.Equal(t, want.Shape, got.Shape)
	for i, w := range want.Values {
		require.InDelta(t, w, got.Values[i], 1e-6)
		require.Positive(t, got.Variance(i))
	}
}

// TestSerialNorm: of exact numbers a serial sum of squares is reproduced, and of others its errors are those of one
// chain.
func TestSerialNorm(t *testing.T) {
	const width = 1 << 16
	weight := &model.Weight{Name: "w", Tensor: tensor.Tensor{DType: tensor.F32, Shape: []int{width}}}
	x := Exact(&model.Activation{Shape: []int{1, width}, Values: make([]float32, width), DType: tensor.F32})
	sum := float32(0)
	for i := range x.Values {
		x.Values[i] = float32(0.3 - 0.6*float64(i%2)) // all partial sums between two powers of two are rounded alike
		sum += float32(x.Values[i] * x.Values[i])
		weight.Data = binary.LittleEndian.AppendUint32(weight.Data, math.Float32bits(1))
	}
	norm := &model.LayerNorm{Weight: *weight, Bias: *weight}
	unsure := WithErrors(x.Activation, func(int) float64 { return 1e-10 })
	var first, layer [2]float64 // off by so many standard deviations; the variance of a LayerNorm over that in another order
	for i, serial := range []bool{false, true} {
		a := NewAnalysis(model.Options{DType: tensor.F32}, nil)
		e := NewEngine(a, &Engine{Serial: serial})
		y := e.RMSNorm(x, weight, 0)
		first[i] = math.Abs(float64(x.Values[1])/math.Sqrt(float64(sum)/width)-float64(y.Values[1])) / Unit / math.Sqrt(y.Variance(1))
		if y = e.RMSNorm(unsure, weight, 0); serial {
			require.InEpsilon(t, width/24, y.Variance(1)/Sq(float64(y.Values[1])), 0.05)
		}
		layer[i] = e.LayerNorm(unsure, norm, 0).Variance(1)
		a.Close()
	}
	require.Greater(t, first[0], 3.0)
	require.Less(t, first[1], 0.5)
	require.Greater(t, layer[1], layer[0]+100)
}

// TestSeenProducts: a product of equal numbers is computed once, and each run has its own; others are computed.
func TestSeenProducts(t *testing.T) {
	x := WithErrors(&model.Activation{Shape: []int{1, 2}, Values: []float32{1, 2}, DType: tensor.BF16}, func(int) float64 { return 1 })
	seen, computed := &Seen{}, 0
	double := func() *Value {
		computed++
		y := made(x.DType, true, x.Shape...)
		for i, v := range x.Values {
			y.Set(i, float64(2*v), 4*x.Variance(i))
		}
		return y
	}
	first := seen.product("w", x, double)
	first.Set(0, 9, 9)
	again := seen.product("w", x, double)
	require.Equal(t, []float32{2, 4}, again.Values)
	require.Equal(t, x.Variance(0)*4, again.Variance(0))
	require.Equal(t, 1, computed)
	seen.product("v", x, double)
	x.sigma.Values[1] *= 2
	seen.product("w", x, double)
	x.Values[1] = 3
	require.Equal(t, []float32{2, 6}, seen.product("w", x, double).Values)
	require.Equal(t, 4, computed)
}
