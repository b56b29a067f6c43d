package verify_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/model/tensor"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// TestChoicesAlone_every: choices of experts that engines returned pass by themselves, in BF16 with those that rounding explains;
// choices of other tokens, layers or experts fail in their rows, and so does a checkpoint with other weights.
func TestChoicesAlone_every(t *testing.T) {
	t.Parallel()
	c, _ := open(t, "v3-trained/golden-f32")
	for _, trace := range []string{"engines/sglang-v3-trained-bf16", "engines/megatron-v3-trained-bf16", "v3-trained/golden-f32"} {
		if strings.HasPrefix(trace, "engines/") && !configtest.Every(t) {
			continue
		}
		of, err := pack.Open(fixture(trace))
		require.NoError(t, err)
		in, err := of.Input()
		require.NoError(t, err)
		var right [][][]int // [tokens, layers, k]
		for row := range in.InputIDs {
			if in.IsPadding(row) {
				continue
			}
			var layers [][]int
			for _, layer := range []int{1, 2, 3} {
				ids, err := of.Ints(pack.StageOf(layer, pack.TopKIdx))
				require.NoError(t, err)
				layers = append(layers, ids[4*row:4*row+4])
			}
			right = append(right, layers)
		}
		judge := func(choices [][][]int) *report.Report {
			data, err := json.Marshal(choices)
			require.NoError(t, err)
			path := filepath.Join(t.TempDir(), "choices.json")
			require.NoError(t, os.WriteFile(path, data, 0o666))
			p, err := pack.Choices(path, in, of.DType)
			require.NoError(t, err)
			return run(t, c.Config, c, p, verify.Options{})
		}
		r := judge(right)
		require.Equal(t, report.Pass, r.Verdict, "%s: %v %v", trace, r.FirstDivergence, r.Reasons)
		require.Equal(t, len(right), r.Scope.Chosen)
		require.Equal(t, []int{1, 2, 3}, r.Scope.Layers)
		require.Zero(t, r.Coverage.WeightsChecked)
		var page strings.Builder
		require.NoError(t, r.WriteHTML(&page, report.About{}))
		require.Contains(t, page.String(), " choices of experts were compared, and none differs by more than rounding explains")
		require.NotContains(t, page.String(), "How far the stages are", "choices have no distance")
		require.NotContains(t, page.String(), "manifest.json")
		if of.DType == tensor.F32 {
			require.Equal(t, r.Routing.Choices, r.Routing.Pinned)
		}
		shifted := append(right[1:len(right):len(right)], right[0])
		others, odd := slices.Clone(right), slices.Clone(right)
		for row, layers := range right {
			others[row] = [][]int{layers[1], layers[2], layers[0]}
		}
		e := 0 // an expert far from being chosen in layer 2
		for slices.Contains(right[7][1], e) || slices.Contains(right[8][1], e) {
			e++
		}
		odd[7] = [][]int{right[7][0], {e, right[7][1][1], right[7][1][2], right[7][1][3]}, right[7][2]}
		for _, wrong := range []struct {
			layer   string
			choices [][][]int
		}{{"1", shifted}, {"1", others}, {"2", odd}} {
			r := judge(wrong.choices)
			require.Equal(t, report.Fail, r.Verdict, trace)
			require.Equal(t, "model.layers."+wrong.layer+"."+pack.TopKIdx, *r.FirstDivergence)
		}
		require.Contains(t, judge(odd).Checks[1].Rows, "in row 7")
	}
}
