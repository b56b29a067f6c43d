package bounds

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// TestRoundedWeightsHaveTheVarianceOfTheirUnits: products, norms, biases and rows of an
// embedding whose weights were drawn in float32 and rounded to BF16 or F16. In standard
// deviations the errors have an RMS of 1, and none is beyond the limit.
func TestRoundedWeightsHaveTheVarianceOfTheirUnits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const width, rows, tokens = 64, 48, 32
	for _, d := range []tensor.DType{tensor.BF16, tensor.F16} {
		draw := func(name string, shape ...int) (wide, narrow model.Weight) {
			n := 1
			for _, s := range shape {
				n *= s
			}
			wide = model.Weight{Name: name, Tensor: tensor.Tensor{DType: tensor.F32, Shape: shape}}
			narrow = model.Weight{Name: name, Tensor: tensor.Tensor{DType: d, Shape: shape}}
			for range n {
				v := float32(r.NormFloat64() * 0.05)
				wide.Data = binary.LittleEndian.AppendUint32(wide.Data, math.Float32bits(v))
				short := math.Float32bits(tensor.Rounded(v, d)) >> 16
				if d == tensor.F16 {
					o := tensor.Ordinal(v, d)
					short = uint32(max(o, -o)) | uint32(o>>48&0x8000)
				}
				narrow.Data = binary.LittleEndian.AppendUint16(narrow.Data, uint16(short))
			}
			return wide, narrow
		}
		w, wRounded := draw("w", rows, width)
		b, bRounded := draw("b", rows)
		n, nRounded := draw("n", width)
		e, eRounded := draw("e", tokens, width)
		x := &model.Activation{DType: tensor.F32, Shape: []int{tokens, width}}
		for range tokens * width {
			x.Values = append(x.Values, float32(r.NormFloat64()))
		}
		ids := make([]int, tokens)
		for i := range ids {
			ids[i] = i
		}
		exactly := NewAnalysis(model.Options{DType: tensor.F32}, nil)
		rounded := NewAnalysis(model.Options{DType: tensor.F32}, Roundings{"w": AllRounded("cast"), "b": AllRounded("cast"), "n": AllRounded("cast"), "e": AllRounded("cast")})
		for name, both := range map[string][2]*Value{
			"Linear":        {exactly.Linear(Exact(x), &model.Linear{Weight: w}), rounded.Linear(Exact(x), &model.Linear{Weight: wRounded})},
			"Linear + bias": {exactly.Linear(Exact(x), &model.Linear{Weight: w, Bias: b}), rounded.Linear(Exact(x), &model.Linear{Weight: wRounded, Bias: bRounded})},
			"RMSNorm":       {exactly.RMSNorm(Exact(x), &n, 1e-6), rounded.RMSNorm(Exact(x), &nRounded, 1e-6)},
			"AddBias":       {exactly.AddBias(Exact(zeros(tokens, rows)), &b), rounded.AddBias(Exact(zeros(tokens, rows)), &bRounded)},
			"Embed":         {exactly.Embed(&e, ids), rounded.Embed(&eRounded, ids)},
		} {
			dist := Measure(both[1], both[0].Values, allRows(both[0].Values, both[1]), 1)
			require.True(t, dist.Finite)
			require.Less(t, dist.Largest, 5.0, "%s %s", d, name)
			require.InDelta(t, 1, dist.Rms, 0.3, "%s %s", d, name)
		}
		exactly.Close()
		rounded.Close()
	}
}

// TestBlocksHaveTheVarianceOfTheirSteps: products and rows of an embedding whose weights were
// drawn in float32 and quantised. In standard deviations the errors have an RMS of about
// 1, or somewhat less, and none is beyond the limit.
func TestBlocksHaveTheVarianceOfTheirSteps(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const width, rows, tokens = 256, 24, 16
	values, data := make([]float32, rows*width), []byte(nil)
	for i := range values {
		values[i] = float32(r.NormFloat64() * 0.05)
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(values[i]))
	}
	x := &model.Activation{DType: tensor.F32, Shape: []int{tokens, width}}
	for range tokens * width {
		x.Values = append(x.Values, float32(r.NormFloat64()))
	}
	wide := model.Weight{Name: "w", Tensor: tensor.Tensor{DType: tensor.F32, Shape: []int{rows, width}, Data: data}}
	for _, d := range []tensor.DType{tensor.Q4_0, tensor.Q5_0, tensor.Q5_1, tensor.Q8_0, tensor.Q2_K, tensor.Q3_K, tensor.Q4_K, tensor.Q5_K, tensor.Q6_K} {
		narrow := model.Weight{Name: "w", Tensor: tensor.Tensor{DType: d, Shape: wide.Shape, Data: make([]byte, d.Bytes(rows*width))}}
		q, err := tensor.NewQuantiser(d)
		require.NoError(t, err)
		q.Convert(narrow.Data, values, &tensor.Loss{})
		exactly := NewAnalysis(model.Options{DType: tensor.F32}, nil)
		rounded := NewAnalysis(model.Options{DType: tensor.F32}, Roundings{"w": AllRounded("quantise")})
		ids := []int{3, 0, 23, 3}
		for name, both := range map[string][2]*Value{
			"Linear": {exactly.Linear(Exact(x), &model.Linear{Weight: wide}), rounded.Linear(Exact(x), &model.Linear{Weight: narrow})},
			"Embed":  {exactly.Embed(&wide, ids), rounded.Embed(&narrow, ids)},
		} {
			dist := Measure(both[1], both[0].Values, allRows(both[0].Values, both[1]), 1)
			require.True(t, dist.Finite)
			require.Less(t, dist.Largest, 5.0, "%s %s", d, name)
			require.Greater(t, dist.Rms, 0.6, "%s %s", d, name) // the ends of the ranges of types K are wide
			require.Less(t, dist.Rms, 1.1, "%s %s", d, name)
		}
		exactly.Close()
		rounded.Close()
	}
}

func zeros(shape ...int) *model.Activation {
	return &model.Activation{DType: tensor.F32, Shape: shape, Values: make([]float32, shape[0]*shape[1])}
}

// TestLimitsDoNotGrowWithSize: one element out of its limit fails among ten and among a
// million.
func TestLimitsDoNotGrowWithSize(t *testing.T) {
	for _, rows := range []int{1, 1 << 10, 1 << 16} {
		x := &Value{Activation: zeros(rows, 16), sigma: zeros(rows, 16)}
		for i := range x.Values {
			x.Values[i], x.sigma.Values[i] = 1, 1
		}
		want := append([]float32{}, x.Values...)
		want[len(want)/2] += 20 * Unit
		d := Measure(x, want, allRows(want, x), 1)
		require.InDelta(t, 20, d.Largest, 1.01)
		require.Equal(t, 1, d.Beyond)
	}
}

// TestRowsOfARoundedWeight have the variances that they have in the whole weight: decoded ones by its half steps, FP8
// by its blocks' scales.
func TestRowsOfARoundedWeight(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const rows, width, from, to = 6, 8, 2, 5
	decoded := weight(r, rows, width)
	codes := model.Weight{Name: "w", Tensor: tensor.Tensor{DType: tensor.F8E4M3, Shape: []int{rows, width}}, Block: [2]int{4, 4}}
	for i := range rows * width {
		codes.Data = append(codes.Data, byte(0x30+i%8))
	}
	codes.Scales = []float32{1, 2, 4, 8}
	steps := make([]float32, rows*width)
	for i := range steps {
		steps[i] = float32(i+1) * 1e-4
	}
	for name, w := range map[string]model.Weight{"decoded": decoded, "FP8": codes} {
		a := NewAnalysis(model.Options{DType: tensor.F32}, Roundings{"w": AllRounded("quantise")})
		defer a.Close()
		if name == "decoded" {
			a.Decoded = func(string) []float32 { return steps }
		}
		x := Exact(&model.Activation{DType: tensor.F32, Shape: []int{4, width}, Values: numbers(r, 4*width)})
		whole := a.Linear(x, &model.Linear{Weight: w})
		part := a.Linear(x, &model.Linear{Weight: w.Rows(from, to)})
		for i := range part.Values {
			at := i/(to-from)*rows + from + i%(to-from)
			require.Equal(t, whole.Values[at], part.Values[i], name)
			require.InEpsilon(t, whole.Variance(at), part.Variance(i), 1e-6, name)
		}
	}
}
