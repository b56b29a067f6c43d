package verify_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model/tensor"
	"dsmoe/verify"
	"dsmoe/verify/report"
)

// TestPartsOfOtherWeights: that a pack is of other weights is said of all parts together, and of none where a part has
// the pack's weights.
func TestPartsOfOtherWeights(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-f32")
	other := altered{Source: c, tensors: map[string]tensor.Tensor{}}
	for info := range c.Tensors() {
		w := get(t, c, info.Name)
		slices.Reverse(w.Data)
		for at := 0; at < len(w.Data); at += 2 { // BF16
			w.Data[at], w.Data[at+1] = w.Data[at+1], w.Data[at]
		}
		other.tensors[info.Name] = w
	}
	part := func(i int) verify.Options { return verify.Options{Part: &report.Part{Index: i, Of: 2}} }
	first, second := run(t, c.Config, other, p, part(1)), run(t, c.Config, other, p, part(2))
	whole := run(t, c.Config, other, p, verify.Options{})
	require.NotEmpty(t, whole.OtherWeights)
	for _, reports := range [][]*report.Report{{first, second}, {second, first}} {
		r, _, err := verify.Merge(reports)
		require.NoError(t, err)
		require.Equal(t, whole.OtherWeights, r.OtherWeights)
	}
	r, _, err := verify.Merge([]*report.Report{first, run(t, c.Config, c, p, part(2))})
	require.NoError(t, err)
	require.NotEmpty(t, first.OtherWeights)
	require.Empty(t, r.OtherWeights)
}
