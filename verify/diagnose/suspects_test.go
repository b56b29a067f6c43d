package diagnose

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/pack"
)

// TestCulprits: of experts that account for the wrong tokens alike none is picked.
func TestCulprits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		chosen          [][]int // by token, of which the first two are wrong
		together, oneOf []int
	}{
		{[][]int{{0, 1}, {0, 2}, {2, 3}, {4, 5}}, []int{0}, nil},
		{[][]int{{0, 1}, {0, 1}, {2, 3}, {4, 5}}, nil, []int{0, 1}},
		{[][]int{{0, 2}, {1, 3}, {2, 3}, {4, 5}}, []int{0, 1}, nil},
		{[][]int{{0, 1}, {0, 2}, {0, 3}, {1, 2}}, nil, []int{0}},
	} {
		f := &Failure{Kind: pack.ExpertsOutput, Idx: slices.Concat(c.chosen...), Beyond: []bool{true, true, false, false},
			Model: &model.DeepseekForCausalLM{Config: &config.Config{MoE: config.MoE{NRoutedExperts: 6}}},
			Got:   &model.Activation{Shape: []int{4, 1}, Values: make([]float32, 4)}}
		together, oneOf := f.culprits()
		require.Equal(t, c.together, together, c.chosen)
		require.Equal(t, c.oneOf, oneOf, c.chosen)
	}
}

// TestExceedsRounding: a row that differs by more than a quarter of its size, in stages whose rows are apart.
func TestExceedsRounding(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind string
		by   float32
		want bool
	}{{pack.SharedOutput, .2, false}, {pack.SharedOutput, .3, true}, {pack.Logits, .3, true}, {pack.Attended, .3, false}} {
		f := &Failure{Kind: c.kind, Want: []float32{1, 1, 4, 4}, Unrounded: []float32{1, 1, 4 + 4*c.by, 4 - 4*c.by},
			Got: &model.Activation{Shape: []int{2, 2}, Values: make([]float32, 4), DType: tensor.BF16}}
		require.Equal(t, c.want, f.exceedsRounding(), c)
	}
}
