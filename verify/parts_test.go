package verify_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model/tensor"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// withOwnInput adds to a pack the tensor that layer l begins with, recorded beside the output of the layer before.
func withOwnInput(t *testing.T, p *pack.Pack, l int) {
	of := pack.InputStage(l)
	p.Manifest.LayerInputs = map[string]pack.LayerInput{number(float32(l)): {Kind: pack.Recorded, Is: of}}
	p.Manifest.Tensors[pack.OwnInput(l)] = p.Manifest.Tensors[of]
	p.Replaced = map[string]tensor.Tensor{pack.OwnInput(l): must(p.Tensor(of))}
}

// TestPartsCompareOwnInputs: a layer whose own input is compared is in the part of the layer before it, which gives
// that input. The pack has that layer's output, too.
func TestPartsCompareOwnInputs(t *testing.T) {
	t.Parallel()
	for _, golden := range []string{"v1-base/golden-f32", "v3/golden-f32"} {
		c, p := open(t, golden)
		withOwnInput(t, p, 2)
		const parts = 9 // more than there are layers
		found := 0
		for i := range parts {
			r := run(t, c.Config, c, p, verify.Options{Part: &report.Part{Index: i + 1, Of: parts}})
			compared := func(name string) bool {
				return slices.ContainsFunc(r.Checks, func(c report.Check) bool { return c.Tensor == name && c.Verdict == report.Pass })
			}
			if compared(pack.OwnInput(2)) {
				found++
				require.True(t, compared(pack.InputStage(2)), golden)
			}
			require.Equal(t, compared(pack.OwnInput(2)), compared("model.layers.2.output"), golden)
		}
		require.Equal(t, 1, found, golden)
	}
}

// TestMergedPredictionLayersAreCovered: prediction layers that one report covers are not outside the merge, and a right
// run has no doubts.
func TestMergedPredictionLayersAreCovered(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v3-mtp/golden-f32")
	part := func(i int) *report.Report {
		return run(t, c.Config, c, p, verify.Options{Part: &report.Part{Index: i, Of: 2}})
	}
	reports := []*report.Report{part(1), part(2)}
	require.NotEqual(t, reports[0].Coverage.OutsideForward, reports[1].Coverage.OutsideForward)
	for range 2 {
		merged, _, err := verify.Merge(reports)
		require.NoError(t, err)
		require.Equal(t, report.Pass, merged.Verdict)
		require.Zero(t, merged.Coverage.OutsideForward)
		slices.Reverse(reports)
	}
	require.Empty(t, run(t, c.Config, c, p, verify.Options{}).Doubts)
}
