package verify_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/model/tensor"
	"dsmoe/verify"
	"dsmoe/verify/report"
)

// quantised is a checkpoint whose matrices of rows of whole blocks are in a block type, the
// router aside, as GGUF has them.
func quantised(t *testing.T, src altered, d tensor.DType) altered {
	q, err := tensor.NewQuantiser(d)
	require.NoError(t, err)
	elements, _ := d.Block()
	out := altered{Source: src, tensors: map[string]tensor.Tensor{}}
	for info := range src.Tensors() {
		w, err := src.Tensor(info.Name)
		require.NoError(t, err)
		if len(w.Shape) != 2 || w.Shape[1]%elements != 0 || strings.HasSuffix(info.Name, ".mlp.gate.weight") {
			continue
		}
		values, err := w.Float32s(nil)
		require.NoError(t, err)
		w = tensor.Tensor{DType: d, Shape: w.Shape, Data: make([]byte, d.Bytes(int64(len(values))))}
		q.Convert(w.Data, values, &tensor.Loss{})
		out.tensors[info.Name] = w
	}
	return out
}

// TestQuantisedPacks_every: what quantising did to the weights is the explanation, whoever did it;
// a weight of which a row is wrong beside that is none.
func TestQuantisedPacks_every(t *testing.T) {
	for i, golden := range []string{"v1-base/golden-f32", "v1-massive/golden-bf16"} {
		c, p := open(t, golden)
		for j, d := range []tensor.DType{tensor.Q8_0, tensor.Q4_0, tensor.Q5_1} {
			if i != j%2 && !configtest.Every(t) {
				continue
			}
			src := quantised(t, altered{Source: c}, d)
			require.NotEmpty(t, src.tensors)
			r := run(t, c.Config, src, p, verify.Options{Undiagnosed: true})
			require.NotNil(t, r.Rounding, "%s %s", golden, d)
			require.Equal(t, []string{"quantise " + d.String()}, r.Rounding.Operations)
			require.Equal(t, len(src.tensors), r.Rounding.Weights)
			require.NotEmpty(t, r.Rounding.Stages)
			require.Equal(t, report.Pass, r.Verdict, "%s %s: %v %v", golden, d, r.FirstDivergence, r.Reasons)

			const name = "model.layers.0.self_attn.v_proj.weight"
			w := src.tensors[name]
			w.Data = append([]byte{}, w.Data...)
			row := len(w.Data) / w.Shape[0]
			copy(w.Data[row:2*row], w.Data[2*row:3*row])
			src.tensors[name] = w
			r = run(t, c.Config, src, p, verify.Options{Undiagnosed: true})
			require.Equal(t, report.Fail, r.Verdict, "%s %s", golden, d)

			delete(src.tensors, name) // not quantised, and as it was
			const up = "model.layers.0.mlp.up_proj.weight"
			src.tensors[up] = tensor.Tensor{DType: d, Shape: src.tensors[up].Shape, Data: make([]byte, len(src.tensors[up].Data))}
			r = run(t, c.Config, src, p, verify.Options{Undiagnosed: true})
			require.Equal(t, report.Fail, r.Verdict, "%s %s: zeros", golden, d)
			require.Equal(t, "model.layers.0.mlp.output", *r.FirstDivergence)
		}
	}
}

// TestRankedErrors: of quantised weights the report says which layer and which expert are
// furthest off: here expert 10, the only one in a coarser type.
func TestRankedErrors(t *testing.T) {
	c, p := open(t, "v1-base/golden-layers-f32")
	src := quantised(t, altered{Source: c}, tensor.Q8_0)
	for name, w := range quantised(t, altered{Source: c}, tensor.Q4_0).tensors {
		if strings.HasPrefix(name, "model.layers.2.mlp.experts.10.") {
			src.tensors[name] = w
		}
	}
	r := run(t, c.Config, src, p, verify.Options{Undiagnosed: true})
	require.Equal(t, report.Pass, r.Verdict)
	require.Len(t, r.Rounding.Layers, 1) // all that the pack has
	require.Equal(t, 2, r.Rounding.Layers[0].Layer)
	require.Len(t, r.Rounding.Experts, 13)
	first, second := r.Rounding.Experts[0], r.Rounding.Experts[1]
	require.Equal(t, 10, first.Expert)
	require.Contains(t, first.Tensor, "model.layers.2.mlp.experts.10.")
	require.Greater(t, first.RelRMS, 4*second.RelRMS)

	var out strings.Builder
	require.NoError(t, r.WriteText(&out))
	require.Contains(t, out.String(), "\n           experts by error: layer 2 mlp.experts.10.")
	require.Contains(t, out.String(), ", 8 more below\n")
}

// coarse says that one weight is decoded from Q8_0, with wide steps.
type coarse string

func (c coarse) DecodedFrom(name string) string { return stepless(c).DecodedFrom(name) }

func (coarse) HalfSteps(string) ([]float32, error) { return slices.Repeat([]float32{0.1}, 64*64), nil }

// TestRepackedBlocks: a weight whose blocks hold the reference's own numbers, as those that FP4 was repacked to, has no
// error, though other weights have: its stage is held as tightly as without blocks.
func TestRepackedBlocks(t *testing.T) {
	const name, stage = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.q_proj.output"
	c, p := open(t, "v1-base/golden-f32")
	src := quantised(t, altered{Source: c}, tensor.Q8_0)
	delete(src.tensors, name) // as it was
	for _, fast := range []bool{false, true} {
		r := run(t, c.Config, src, p, verify.Options{Undiagnosed: true, FailFast: fast, Decoded: coarse(name)})
		require.Equal(t, report.Pass, r.Verdict, "%v %v", r.FirstDivergence, r.Reasons)
		require.Equal(t, len(src.tensors), r.Rounding.Weights)
		require.Less(t, *checkOf(r, stage).Sees, 1e-5)
	}
	for other := range src.tensors { // nothing was rounded, and a norm is wrong
		delete(src.tensors, other)
	}
	const norm = "model.layers.1.input_layernorm.weight"
	w, err := c.Tensor(norm)
	require.NoError(t, err)
	src.tensors[norm] = tensor.Tensor{DType: w.DType, Shape: w.Shape, Data: make([]byte, len(w.Data))}
	r := run(t, c.Config, src, p, verify.Options{Undiagnosed: true, Decoded: coarse(name)})
	require.Equal(t, report.Fail, r.Verdict)
	require.Nil(t, r.Rounding)
}

// stepless decodes one weight, of which it cannot say how.
type stepless string

func (u stepless) DecodedFrom(name string) string {
	if name == string(u) {
		return "Q8_0"
	}
	return ""
}

func (u stepless) HalfSteps(string) ([]float32, error) { return nil, errors.New("cannot be read") }

// TestUnreadHalfSteps: without what the rounding of a weight allows there is no verdict, though the
// run ends at the first stage that fails.
func TestUnreadHalfSteps(t *testing.T) {
	const name = "model.layers.0.self_attn.v_proj.weight"
	c, p := open(t, "v1-base/golden-f32")
	src := quantised(t, altered{Source: c}, tensor.Q8_0)
	src.tensors = map[string]tensor.Tensor{name: {DType: tensor.F32, Shape: src.tensors[name].Shape, Data: make([]byte, 4*src.tensors[name].Len())}}
	for _, fast := range []bool{false, true} {
		_, err := verify.Run(t.Context(), c.Config, src, p, verify.Options{Undiagnosed: true, FailFast: fast, Decoded: stepless(name)})
		require.ErrorContains(t, err, "cannot be read")
	}
}

// coarser returns a Q8_0 weight whose scales are so many times what its numbers need, each of them rounded to the
// nearest code.
func coarser(t *testing.T, w tensor.Tensor, times float32) tensor.Tensor {
	values, err := w.Float32s(nil)
	require.NoError(t, err)
	out := tensor.Tensor{DType: w.DType, Shape: w.Shape, Data: slices.Clone(w.Data)}
	for block := out.Data; len(block) > 0; block, values = block[34:], values[32:] {
		scale, err := tensor.Tensor{DType: tensor.F16, Shape: []int{1}, Data: block[:2]}.Float32s(nil)
		require.NoError(t, err)
		tensor.PutF16(block, times*scale[0])
		for i, v := range values[:32] {
			block[2+i] = byte(int8(math.Round(float64(v / (times * scale[0])))))
		}
	}
	return out
}

// TestWastedRangeIsNoExcuse: a Q8_0 weight with scales 43 or 8 times too large, whose codes are at most 3 or 16 of 127,
// is not within the rounding of Q8_0, though every number is the nearest one.
func TestWastedRangeIsNoExcuse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		golden, weight string
		times          float32
	}{
		{"v1-base/golden-f32", "model.layers.0.self_attn.o_proj.weight", 8},
		{"v1-base/golden-f32", "model.layers.1.mlp.experts.1.gate_proj.weight", 43},
		{"v1-massive/golden-bf16", "model.layers.0.self_attn.o_proj.weight", 43},
		{"v3/golden-f32", "model.layers.0.mlp.up_proj.weight", 43},
	} {
		checkpoint, p := open(t, c.golden)
		src := quantised(t, altered{Source: checkpoint}, tensor.Q8_0)
		src.tensors[c.weight] = coarser(t, src.tensors[c.weight], c.times)
		r := run(t, checkpoint.Config, src, p, verify.Options{Undiagnosed: true})
		require.Equal(t, report.Fail, r.Verdict, c)
		require.Contains(t, *r.FirstDivergence, c.weight[:len("model.layers.0.")], c)
	}
}

// TestExchangedRowsOfBlocks: two rows of gate_proj or up_proj in GGUF's blocks are named, though what quantising did to
// the weights is as large as what they change.
func TestExchangedRowsOfBlocks(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		golden, name string
		d            tensor.DType
	}{
		{"v1-base/golden-f32", "model.layers.0.mlp.up_proj.weight", tensor.Q8_0},
		{"v1-base/golden-f32", "model.layers.1.mlp.shared_experts.gate_proj.weight", tensor.Q4_0},
		{"v3/golden-f32", "model.layers.1.mlp.up_proj.weight", tensor.Q5_1},
	} {
		c, p := open(t, test.golden)
		src := quantised(t, altered{Source: c}, test.d)
		src.tensors[test.name] = rowsBy(src.tensors[test.name], func(i int) int {
			switch i {
			case 5:
				return 21
			case 21:
				return 5
			}
			return i
		})
		r := run(t, c.Config, src, p, verify.Options{})
		require.Equal(t, report.Fail, r.Verdict, "%v", test)
		require.NotNil(t, r.Cause, "%v", test)
		require.Equal(t, "rows-permuted: the rows of "+test.name+" are in another order than the reference's: rows from 5 and rows from 21 "+
			"are exchanged, 1 row each", r.Cause.String())
	}
}
