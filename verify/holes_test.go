package verify_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// Ways in which verifiers were seen to pass what they should not; MISTAKES.md lists all.

// TestEveryTokenCounts: a golden that is off at one token, early, in the middle or late, too
// large or too small; but not at padding, which tokens 17 to 21 are.
func TestEveryTokenCounts(t *testing.T) {
	t.Parallel()
	const stage = "lm_head.output"
	c, p := open(t, "v1-base/golden-f32")
	values := must(p.Float32s(stage))
	for _, at := range []int{0, 256*17 - 1, 256 * 17, 256*22 - 1, 256 * 22, len(values) - 1} {
		for _, by := range []float32{1.001, 0.999} {
			off := slices.Clone(values)
			off[at] *= by
			dir := rewritten(t, "v1-base/golden-f32", func(dir string, m map[string]any) { rewrite(t, dir, m, stage, off) })
			r := run(t, c.Config, c, must(pack.Open(dir)), verify.Options{Undiagnosed: true})
			if at/256 >= 17 && at/256 < 22 {
				require.Equal(t, report.Pass, r.Verdict, at)
				continue
			}
			require.Equal(t, stage, *r.FirstDivergence, at)
			require.Equal(t, 1, r.Checks[len(r.Checks)-1].Beyond)
		}
	}
}

// TestEachMeasureFailsAlone: one element far off, with a small RMS, and all elements a little
// off, none of them beyond its limit.
func TestEachMeasureFailsAlone(t *testing.T) {
	t.Parallel()
	const stage = "lm_head.output"
	c, p := open(t, "v1-base/golden-f32")
	values := must(p.Float32s(stage))
	right := run(t, c.Config, c, p, verify.Options{})
	sigma := *right.Checks[len(right.Checks)-1].Sigma
	with := func(edit func(x []float32)) report.Check {
		off := slices.Clone(values)
		edit(off)
		dir := rewritten(t, "v1-base/golden-f32", func(dir string, m map[string]any) { rewrite(t, dir, m, stage, off) })
		r := run(t, c.Config, c, must(pack.Open(dir)), verify.Options{Undiagnosed: true})
		require.Equal(t, stage, *r.FirstDivergence)
		return r.Checks[len(r.Checks)-1]
	}
	one := with(func(x []float32) { x[1234] += float32(20 * sigma) })
	require.Greater(t, *one.Z, 8.0)
	require.Less(t, *one.RMSZ, 1.0)
	all := with(func(x []float32) {
		for i := range x {
			x[i] += float32(1.5 * sigma * float64(1-2*(i%2)))
		}
	})
	require.Less(t, *all.Z, 8.0)
	require.Greater(t, *all.RMSZ, 1.0)
}

// TestPrunedOutputs: the outputs of modules that have others in them are not recorded.
func TestPrunedOutputs(t *testing.T) {
	t.Parallel()
	dir := rewritten(t, "v1-base/golden-f32", func(dir string, m map[string]any) {
		maps.DeleteFunc(m["tensors"].(map[string]any), func(name string, _ any) bool {
			layer := strings.HasPrefix(name, "model.layers.") && strings.Count(name, ".") == 3
			return layer || strings.HasSuffix(name, ".mlp.output") || strings.HasSuffix(name, "self_attn.output")
		})
		prune(t, dir, m)
	})
	c, _ := open(t, "v1-base/golden-f32")
	r := run(t, c.Config, c, must(pack.Open(dir)), verify.Options{})
	require.Equal(t, report.Inconclusive, r.Verdict)
	require.Contains(t, strings.Join(r.Reasons, "\n"), "the pack has none of these stages, and its manifest does not name them as absent: mlp.output, output, self_attn.output")
}

// TestRoutingThatChoosesNothing: with as many experts per token as there are, nothing is
// decided, and the report says so.
func TestRoutingThatChoosesNothing(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-f32")
	r := run(t, override(t, c.Config, "num_experts_per_tok", "16"), c, p, verify.Options{})
	require.Contains(t, printed(t, r), "config     num_experts_per_tok not exercised: every token goes to all 16 experts: nothing is chosen\n")
	require.Equal(t, "experts-per-token", r.Cause.ID)
	require.Equal(t, "the reference ran with num_experts_per_tok 4, here it is 16", r.Cause.Text)
}

// TestGoldensAreWhatStagesGoOnWith: a golden that was changed is an error of its own stage,
// and the input of the next ones.
func TestGoldensAreWhatStagesGoOnWith(t *testing.T) {
	t.Parallel()
	const norm = "model.layers.2.input_layernorm.output"
	c, p := open(t, "v1-base/golden-f32")
	values := must(p.Float32s(norm))
	for i := range values {
		values[i] *= 1.5
	}
	dir := rewritten(t, "v1-base/golden-f32", func(dir string, m map[string]any) { rewrite(t, dir, m, norm, values) })
	var failing []string
	for _, check := range run(t, c.Config, c, must(pack.Open(dir)), verify.Options{}).Checks {
		if check.Verdict == report.Fail {
			failing = append(failing, strings.TrimPrefix(check.Tensor, "model.layers.2."))
		}
	}
	require.Equal(t, []string{"input_layernorm.output", "self_attn.q_proj.output", "self_attn.k_proj.output", "self_attn.v_proj.output"}, failing)
}

// TestGapOfAChoice: how far the golden's expert was from being chosen.
func TestGapOfAChoice(t *testing.T) {
	t.Parallel()
	const idx = moe1 + "gate.topk_idx"
	c, p := open(t, "v1-base/golden-f32")
	chosen := must(p.Ints(idx))
	other := 0
	for slices.Contains(chosen[:4], other) {
		other++
	}
	chosen[0] = other
	dir := rewritten(t, "v1-base/golden-f32", func(dir string, m map[string]any) { rewrite(t, dir, m, idx, chosen) })
	r := run(t, c.Config, c, must(pack.Open(dir)), verify.Options{})
	require.Equal(t, idx, *r.FirstDivergence)
	check := r.Checks[slices.IndexFunc(r.Checks, func(c report.Check) bool { return c.Tensor == idx })]
	require.Equal(t, other, check.Gap.Golden)
	require.Equal(t, must(p.Ints(idx))[0], check.Gap.Ours)
	require.Greater(t, check.Gap.Score, 0.0)
	require.Greater(t, *check.Gap.Z, 8.0)
	require.Contains(t, printed(t, r), " in whose place it is: ")
}

// TestOverflowOfScores: what is not finite is said before groups are blamed.
func TestOverflowOfScores(t *testing.T) {
	t.Parallel()
	c, _ := open(t, "v3/golden-f32")
	dir := rewritten(t, "v3/golden-f32", func(dir string, m map[string]any) {
		m["partial"] = "without logits"
		maps.DeleteFunc(m["tensors"].(map[string]any), func(name string, _ any) bool { return strings.HasSuffix(name, "gate.logits") })
		prune(t, dir, m)
	})
	const gate = "model.layers.2.mlp.gate."
	w := get(t, c, gate+"e_score_correction_bias")
	for i := range w.Len() { // +Inf
		w.Data[2*i], w.Data[2*i+1] = 0x80, 0x7f
	}
	r := run(t, c.Config, replace(c, gate+"e_score_correction_bias", w), must(pack.Open(dir)), verify.Options{})
	require.Equal(t, gate+"topk_idx", *r.FirstDivergence)
	require.Equal(t, "overflow", r.Cause.ID)
}
