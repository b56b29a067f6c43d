package model_test

import (
	"context"
	"math"
	"path"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/checkpoint"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/pack"
)

// goldens is a trace that compares each stage with a golden pack's, and puts the golden in its place.
type goldens struct {
	t    *testing.T
	pack *pack.Pack
	seen map[string]bool
}

// Stage compares BF16 stages bit by bit, and F32 stages by their root mean square.
func (r *goldens) Stage(name string, x *model.Activation) error {
	if !r.pack.Has(name) {
		return nil
	}
	info, err := r.pack.Tensor(name)
	require.NoError(r.t, err)
	require.Equal(r.t, info.Shape, x.Shape, name)
	require.Equal(r.t, info.DType, x.DType, name)
	want, err := r.pack.Float32s(name)
	require.NoError(r.t, err)
	if info.DType != tensor.F32 {
		require.Equal(r.t, want, x.Values, name)
	}
	var far, size float64
	for i, v := range want {
		far += math.Pow(float64(x.Values[i]-v), 2)
		size += float64(v) * float64(v)
	}
	require.LessOrEqual(r.t, far, math.Pow(1e-6, 2)*size, name)
	copy(x.Values, want)
	r.seen[name] = true
	return nil
}

// TopK compares choices as sets. Where they differ, the scores are the same.
func (r *goldens) TopK(name string, choice *model.Choice[*model.Activation]) error {
	want, err := r.pack.Ints(name)
	require.NoError(r.t, err)
	require.Len(r.t, want, len(choice.Idx), name)
	rows := choice.Scores.Rows()
	k := len(want) / rows
	for row := range rows {
		require.Equal(r.t, scoresOf(choice.Scores.Row(row), want[row*k:(row+1)*k]),
			scoresOf(choice.Scores.Row(row), choice.Idx[row*k:(row+1)*k]), "%s, row %d", name, row)
	}
	copy(choice.Idx, want)
	r.seen[name] = true
	return nil
}

// scoresOf returns the scores of a choice, sorted; -1 chooses nothing.
func scoresOf(scores []float32, choice []int) (chosen []float32) {
	for _, i := range choice {
		if i >= 0 {
			chosen = append(chosen, scores[i])
		}
	}
	slices.Sort(chosen)
	return chosen
}

// TestStagesOfDeepseekV4 computes every stage of the packs from the golden's inputs.
func TestStagesOfDeepseekV4(t *testing.T) {
	for _, name := range []string{"v4/golden-f32", "v4-128/golden-f32", "v4-fp4/golden-f32", "v4/golden-bf16"} {
		t.Run(name, func(t *testing.T) {
			src, err := checkpoint.Open("../fixtures/" + path.Dir(name) + "/checkpoint")
			require.NoError(t, err)
			defer src.Close()
			p, err := pack.Open("../fixtures/" + name)
			require.NoError(t, err)
			in, err := p.Input()
			require.NoError(t, err)
			m, err := model.Load(src.Config, src)
			require.NoError(t, err)
			o := model.Options{DType: p.DType, RotaryDType: tensor.F32}
			plain := model.NewPlain(o)
			defer plain.Close(nil)
			r := &goldens{t, p, map[string]bool{}}
			net := &model.Network[*model.Activation]{Model: m, Input: in, Options: o, Arithmetic: plain, Trace: r}
			_, err = net.Forward(context.Background())
			require.NoError(t, err)
			for info := range p.Tensors() {
				require.True(t, r.seen[info.Name] || pack.Parse(info.Name).IsInput(), info.Name)
			}
		})
	}
}
