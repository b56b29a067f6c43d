package model_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/model"
	"dsmoe/model/tensor"
)

// TestKeep: a gate that keeps some experts of each group chooses as the gate of these experts alone, ties and scores of 0
// included, for each method.
func TestKeep(t *testing.T) {
	const experts, groups, tokens = 12, 3, 64
	random := rand.New(rand.NewPCG(1, 2))
	of := func(experts int, family string) string {
		return fmt.Sprintf(`{%s,"n_routed_experts":%d,"num_experts_per_tok":3,"n_group":%d,"topk_group":2,
			"num_attention_heads":4,"num_key_value_heads":4}`, family, experts, groups)
	}
	for _, family := range []string{`"model_type":"deepseek_v2"`,
		`"model_type":"deepseek_v2","topk_method":"group_limited_greedy"`, `"model_type":"deepseek_v3"`} {
		kept := []int{1, 2, 4, 7, 8, 11}
		logits, few := activation(tokens, experts), activation(tokens, len(kept))
		for i := range logits.Values {
			logits.Values[i] = []float32{0, 1, -1e4, random.Float32()}[random.IntN(4)]
		}
		bias := make([]float32, experts)
		for i := range bias {
			bias[i] = 4 * random.Float32()
		}
		var fewBias []float32
		for i, e := range kept {
			fewBias = append(fewBias, bias[e])
			for row := range tokens {
				few.Row(row)[i] = logits.Row(row)[e]
			}
		}
		large, small := gateOf(bias), gateOf(fewBias)
		large.Keep(kept, experts)
		got := model.Choose(configtest.Parse(t, of(experts, family)), large, logits).Idx
		want := model.Choose(configtest.Parse(t, of(len(kept), family)), small, few).Idx
		for i := range got {
			got[i] = slices.Index(kept, got[i])
		}
		require.Equal(t, want, got, family)
	}
}

// TestStandIns: an expert that is left out gives its place to the next one that is kept, cyclically, and that the row does
// not have, from the row's first place on.
func TestStandIns(t *testing.T) {
	g := &model.MoEGate{}
	g.Keep([]int{1, 4, 7}, 9)
	for _, c := range []struct{ row, want []int }{
		{[]int{5, 8}, []int{7, 1}},
		{[]int{8, 5}, []int{1, 7}},
		{[]int{2, 3}, []int{4, 7}},
		{[]int{0, 8, 5}, []int{1, 4, 7}},
		{[]int{2, 4}, []int{7, 4}},
		{[]int{7, 4, 1}, []int{7, 4, 1}},
	} {
		row := slices.Clone(c.row)
		g.StandIns(row)
		require.Equal(t, c.want, row, "%v", c.row)
	}
}

func activation(rows, width int) *model.Activation {
	return &model.Activation{Shape: []int{rows, width}, Values: make([]float32, rows*width), DType: tensor.F32}
}

// gateOf is a gate with that bias.
func gateOf(bias []float32) *model.MoEGate {
	w := tensor.Tensor{DType: tensor.F32, Shape: []int{len(bias)}}
	for _, b := range bias {
		w.Data = binary.LittleEndian.AppendUint32(w.Data, math.Float32bits(b))
	}
	return &model.MoEGate{EScoreCorrectionBias: model.Weight{Name: "bias", Tensor: w}}
}
