package verify_test

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// paddedF32 is two layers of a long batch, most of it padding on the left, with few distinct ids.
const paddedF32 = "v1-base/golden-padded-f32"

// TestPaddedPack: right references differ in rows of padding by more than rounding explains,
// from one length of sequence on; none of them is compared.
func TestPaddedPack(t *testing.T) {
	t.Parallel()
	c, p := open(t, paddedF32)
	for _, mode := range []report.Mode{report.Local, report.Chained} {
		r := run(t, c.Config, c, p, verify.Options{Mode: mode})
		require.Equal(t, report.Pass, r.Verdict, "%v %v", r.FirstDivergence, r.Reasons)
		require.Equal(t, 143, r.Coverage.Padding)
		require.Contains(t, printed(t, r), "\n           143 rows of padding not compared\n")
		require.Contains(t, html(t, r), "143 rows of padding not compared")
		require.Contains(t, junit(t, r), "143 rows of padding not compared")
		require.Contains(t, string(must(json.Marshal(r))), `"padding":143`)
		require.Equal(t, 4*(3*96-143), r.Routing.Choices)
		require.Equal(t, r.Routing.Choices, r.Routing.Pinned)
		for _, check := range r.Checks {
			require.Equal(t, 143, check.Padding, check.Tensor)
			if mode == report.Local && check.Limits != nil {
				require.LessOrEqual(t, check.Distinct, 145, check.Tensor)
				require.InDelta(t, 1.12+3.5/math.Sqrt(float64(check.Distinct)), check.Limits.ColumnZ, 1e-12, check.Tensor)
			}
		}
	}
}

// poisoned sets a pack's numbers in rows of padding to NaN.
func poisoned(t *testing.T, golden string) *pack.Pack {
	t.Helper()
	original := must(pack.Open(fixture(golden)))
	in := must(original.Input())
	padding := func(shape []int, name string) (rows []bool) {
		switch kind := name[strings.LastIndex(name, ".")+1:]; {
		case name == "input_ids" || name == "attention_mask" || strings.Contains(name, "rotary"):
			return nil
		case strings.Contains(name, ".experts.") && !strings.HasSuffix(name, "mlp.experts.output"):
			var layer, expert int
			parts := strings.Split(name, ".")
			require.NoError(t, json.Unmarshal([]byte(parts[2]), &layer))
			require.NoError(t, json.Unmarshal([]byte(parts[5]), &expert))
			gate := strings.Join(parts[:4], ".") + ".gate.topk_idx"
			k := original.Manifest.Tensors[gate].Shape[1]
			for i, e := range must(original.Ints(gate)) {
				if e == expert {
					rows = append(rows, in.IsPadding(i/k))
				}
			}
			return rows
		case kind == "attn_weights":
			for i := range shape[0] * shape[1] * shape[2] {
				rows = append(rows, in.IsPadding(i/(shape[1]*shape[2])*shape[2]+i%shape[2]))
			}
			return rows
		}
		for i := range in.InputIDs {
			rows = append(rows, in.IsPadding(i))
		}
		return rows
	}
	nan := map[string][]byte{"F32": {0, 0, 0xc0, 0x7f}, "BF16": {0xc0, 0x7f}}
	dir := rewritten(t, golden, func(dir string, m map[string]any) {
		for file := range m["files"].(map[string]any) {
			refile(t, dir, m, file, func(tensors map[string]view) {
				for name, x := range tensors {
					shape := original.Manifest.Tensors[name].Shape
					padded := padding(shape, name)
					for row, is := range padded {
						if width := len(x.data) / len(padded); is && nan[x.dtype] != nil {
							copy(x.data[row*width:], bytes.Repeat(nan[x.dtype], width/len(nan[x.dtype])))
						}
					}
					tensors[name] = x
				}
			})
		}
	})
	return must(pack.Open(dir))
}

// TestPaddingIsNotLookedAt_every: with NaN in all rows of padding the verdict is the same, of a right
// model and of a wrong one, and so is its cause.
func TestPaddingIsNotLookedAt_every(t *testing.T) {
	t.Parallel()
	for i, golden := range []string{"v1-base/golden-f32", layersBF16, paddedF32} {
		for j, mode := range []report.Mode{report.Local, report.Chained} {
			if i != j && !configtest.Every(t) {
				continue
			}
			c, p := open(t, golden)
			broken := poisoned(t, golden)
			for _, wrong := range []bool{false, true} {
				src := altered{Source: c}
				if wrong {
					const name = "model.layers.1.self_attn.o_proj.weight"
					w := get(t, c, name)
					src = replace(c, name, scaled(t, w, 1.5, row(w, 3)...))
				}
				want, got := run(t, c.Config, src, p, verify.Options{Mode: mode}), run(t, c.Config, src, broken, verify.Options{Mode: mode})
				got.Golden.Manifest = want.Golden.Manifest
				require.True(t, bytes.Equal(must(json.Marshal(want)), must(json.Marshal(got))), "%s %s %v", golden, mode, wrong)
			}
		}
	}
}

// TestExpertsOfPadding: an expert that padding alone chose is not reached, and its weights are
// not exercised, wrong ones included.
func TestExpertsOfPadding(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-f32")
	idx, in := must(p.Ints("model.layers.2.mlp.gate.topk_idx")), must(p.Input())
	reached, padding := map[int]bool{}, map[int]bool{}
	for i, e := range idx {
		if in.IsPadding(i / 4) {
			padding[e] = true
		} else {
			reached[e] = true
		}
	}
	require.True(t, padding[13] && !reached[13])
	const name = "model.layers.2.mlp.experts.13.up_proj.weight"
	w := get(t, c, name)
	r := run(t, c.Config, replace(c, name, scaled(t, w, 3, row(w, 5)...)), p, verify.Options{})
	require.Equal(t, report.Pass, r.Verdict, r.FirstDivergence)
	require.Equal(t, []report.LayerExperts{{Layer: "model.layers.2", Experts: []int{4, 7, 13}}}, r.Coverage.Unreached)
	require.Equal(t, 45, r.Coverage.ExpertsReached)
	require.Equal(t, 177, r.Coverage.WeightsChecked)
	require.Zero(t, r.Routing.Layers[1].Load[13])
}

// TestAllPadding proves nothing.
func TestAllPadding(t *testing.T) {
	t.Parallel()
	for _, mode := range []report.Mode{report.Local, report.Chained} {
		dir := rewritten(t, "v1-base/golden-f32", func(dir string, m map[string]any) { rewrite(t, dir, m, "attention_mask", make([]int, 34)) })
		c, _ := open(t, "v1-base/golden-f32")
		r := run(t, c.Config, c, must(pack.Open(dir)), verify.Options{Mode: mode})
		require.Equal(t, report.Inconclusive, r.Verdict, r.FirstDivergence)
		require.Contains(t, r.Reasons, "all tokens are padding: no row of a stage was compared")
		require.Zero(t, r.Coverage.WeightsChecked)
		for _, check := range r.Checks {
			require.Equal(t, report.Skipped, check.Verdict, check.Tensor)
			require.Equal(t, "all its rows are padding", check.Reason)
		}
	}
}
