package diagnose

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/checkpoint"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/verify/bounds"
)

// TestReducedSumsAreDecided: one element in which the golden holds another value than the schedule's
// refutes it.
func TestReducedSumsAreDecided(t *testing.T) {
	t.Parallel()
	const n = 2 * leastDecided
	zeros := &model.Activation{Shape: []int{1, n}, Values: make([]float32, n), DType: tensor.BF16}
	ones := &model.Activation{Shape: zeros.Shape, Values: slices.Repeat([]float32{1}, n), DType: tensor.BF16}
	f := &Failure{Got: zeros, Want: slices.Clone(ones.Values), Rows: []int{0}, RowWeights: []float64{1}}
	require.True(t, f.decides(bounds.Exact(ones), 0))
	f.Want[n-1] = 2
	require.False(t, f.decides(bounds.Exact(ones), 0))
}

// TestLargeProductsAreNotCut: neither weights of more than 2^28 elements, nor products whose
// accumulators are rounded more than 2^24 times.
func TestLargeProductsAreNotCut(t *testing.T) {
	t.Parallel()
	const name = "model.layers.0.self_attn.q_proj.weight"
	src, err := checkpoint.Open(filepath.Join("..", "..", "fixtures", "v1-base", "checkpoint"))
	require.NoError(t, err)
	defer src.Close()
	set := weights.New(src.Config, src)
	for _, c := range []struct {
		s             bounds.Schedule
		rows, in, out int
		cut           bool
	}{
		{bounds.Schedule{Parts: 2}, 1, 1 << 14, 1 << 14, true}, {bounds.Schedule{Parts: 2}, 1, 1 << 14, 1<<14 + 1, false},
		{bounds.Schedule{Terms: 4}, 1 << 14, 64, 64, true}, {bounds.Schedule{Terms: 4}, 1<<14 + 1, 64, 64, false},
		{bounds.Schedule{Parts: 2}, 1, 32, 64, false},
	} {
		set.Find(name).Shape = []int{c.out, c.in}
		f := &Failure{Set: set, Weights: []string{name}, Rows: make([]int, c.rows)}
		require.Equal(t, c.cut, f.cutBy(c.s), c)
	}
}
