package model_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/checkpoint"
	"dsmoe/model"
	"dsmoe/model/tensor"
)

// fixture loads a checkpoint of the fixtures, whose tensors are read by the model's names.
func fixture(t *testing.T, name string) *model.DeepseekForCausalLM {
	t.Helper()
	src, err := checkpoint.Open("../fixtures/" + name)
	require.NoError(t, err)
	t.Cleanup(func() { src.Close() })
	m, err := model.Load(src.Config, src)
	require.NoError(t, err)
	return m
}

// tokens is a sequence of n different tokens.
func tokens(n int) *model.Input {
	in := &model.Input{Batch: 1, Seq: n}
	for i := range n {
		in.InputIDs = append(in.InputIDs, (7*i+3)%90)
	}
	return in
}

// TestLaterTokensChangeNothing: the logits of a sequence's first tokens are those of the sequence that ends
// there, also before the first entry, and behind the last block of queries.
func TestLaterTokensChangeNothing(t *testing.T) {
	m := fixture(t, "v4/checkpoint")
	all, err := m.Forward(context.Background(), tokens(70), model.Options{})
	require.NoError(t, err)
	for _, n := range []int{1, 3, 4, 5, 7, 8, 9, 11, 12, 63, 64, 65} {
		first, err := m.Forward(context.Background(), tokens(n), model.Options{})
		require.NoError(t, err)
		for i, want := range all.Values[:len(first.Values)] {
			require.InDelta(t, want, first.Values[i], 1e-5, "%d tokens, logit %d", n, i)
		}
	}
}

// TestWindowsAndEntries changes a token, and sees which later rows of each layer's attention change: those whose
// window holds the token, and those that see an entry made of it.
func TestWindowsAndEntries(t *testing.T) {
	m := fixture(t, "v4/checkpoint")
	c := m.Config
	for l, reach := range map[int]func(row, token int) bool{
		0: func(row, token int) bool { return row-token < c.Windows.SlidingWindow },
		2: func(row, token int) bool {
			return row-token < c.Windows.SlidingWindow || token/8 < (row+1)/8
		},
	} {
		attention := func(in *model.Input) []float32 {
			heard := &recorder{listener{idx: map[int][]int{}}, map[string]*model.Activation{}}
			plain := model.NewPlain(model.Options{})
			defer plain.Close(nil)
			net := &model.Network[*model.Activation]{Model: m, Input: in, Arithmetic: plain, Trace: heard}
			x := plain.Make(tensor.F32, 1, in.Seq, c.HyperConnections.HCMult, c.HiddenSize)
			for i := range x.Values {
				x.Values[i] = float32(math.Sin(float64(i + 31*in.InputIDs[i/c.HyperConnections.HCMult/c.HiddenSize])))
			}
			_, err := net.Layer(context.Background(), l, x)
			require.NoError(t, err)
			return heard.stages[fmt.Sprintf("model.layers.%d.self_attn.context", l)].Values
		}
		before := attention(tokens(40))
		for token := range 40 {
			in := tokens(40)
			in.InputIDs[token] = 89 - in.InputIDs[token]
			after, width := attention(in), len(before)/40
			for row := range 40 {
				same := slices.Equal(before[row*width:(row+1)*width], after[row*width:(row+1)*width])
				require.Equal(t, row < token || !reach(row, token), same, "layer %d: token %d, row %d", l, token, row)
			}
		}
	}
}

// TestTableChoosesExperts: a token that has an expert twice adds its output twice, each with its weight; a number
// that is no expert ends the pass.
func TestTableChoosesExperts(t *testing.T) {
	m := fixture(t, "v4/checkpoint")
	gate := &m.Model.Layers[0].MoE.Gate
	chosen := func(experts ...int) {
		data := slices.Clone(gate.TID2EID.Data)
		for i, e := range experts {
			binary.LittleEndian.PutUint64(data[(5*len(experts)+i)*8:], uint64(e))
		}
		gate.TID2EID.Data = data
	}
	in := &model.Input{Batch: 1, Seq: 2, InputIDs: []int{5, 5}}
	chosen(4, 1, 4)
	heard, _ := recorded(t, m, in, 0, model.Options{})
	const mlp = "model.layers.0.mlp."
	weight, sum := heard.stages[mlp+"gate.topk_weight"], heard.stages[mlp+"experts.output"]
	four, one := heard.stages[mlp+"experts.4.output"], heard.stages[mlp+"experts.1.output"]
	require.Equal(t, 4, four.Rows())
	require.Equal(t, []int{4, 1, 4, 4, 1, 4}, heard.idx[0])
	for token := range 2 {
		w := weight.Row(token)
		require.Equal(t, w[0], w[2])
		for i, got := range sum.Row(token) {
			want := float32(one.Row(token)[i] * w[1])
			want += float32(four.Row(2 * token)[i] * w[0])
			want += float32(four.Row(2*token + 1)[i] * w[2])
			require.Equal(t, want, got)
		}
	}

	for _, wrong := range []int{-1, 7} {
		chosen(4, wrong, 1)
		_, err := m.Forward(context.Background(), in, model.Options{})
		require.EqualError(t, err, fmt.Sprintf("%s: token 5: expert %d is not one of 7", gate.TID2EID.Name, wrong))
	}
}

// TestStreamsAreNotTrained: their operations have no gradients.
func TestStreamsAreNotTrained(t *testing.T) {
	m := fixture(t, "v4/checkpoint")
	_, err := m.Forward(context.Background(), tokens(3), model.Options{Training: true})
	require.ErrorContains(t, err, "model_type deepseek_v4: hyper-connections have no gradients")
	require.ErrorContains(t, model.Learns(m.Config, tokens(3)), "model_type deepseek_v4: ")
}

// TestRowsOfAScaledMatrix: rows of an FP8 matrix are the whole matrix's, though a block of scales goes across them.
func TestRowsOfAScaledMatrix(t *testing.T) {
	m := fixture(t, "v4-fp4/checkpoint")
	w := &m.Model.Layers[0].Windowed.OAProj.Weight
	require.Equal(t, tensor.F8E4M3, w.DType)
	require.Equal(t, []int{3 * 24, 2 * 32}, w.Shape)
	plain := model.NewPlain(model.Options{})
	defer plain.Close(nil)
	whole, rows := plain.Values(w), w.Rows(24, 48)
	require.Equal(t, whole[24*64:48*64], plain.Values(&rows))
	require.Equal(t, 24, rows.FirstRow)
}
