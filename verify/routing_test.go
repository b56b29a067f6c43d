package verify_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// TestTiesAreExcusedAndCounted: the pack has two identical router rows.
func TestTiesAreExcusedAndCounted(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-router-ties/golden-f32")
	r := run(t, c.Config, c, p, verify.Options{})
	require.Positive(t, r.Routing.ExactTies)
	require.Zero(t, r.Routing.NearTies)
}

// TestTieExcusesTheExpertThatTies, and no other: a router that chooses a tied expert in
// place of the best one is wrong, though the one it did choose ties with the last.
func TestTieExcusesTheExpertThatTies(t *testing.T) {
	t.Parallel()
	const gate = "model.layers.1.mlp.gate."
	c, p := open(t, "v1-router-ties/golden-f32")
	idx := must(p.Ints(gate + "topk_idx"))
	k := p.Manifest.Tensors[gate+"topk_idx"].Shape[1]
	twins := []int{-1, -1}
	w := get(t, c, gate+"weight")
	for a := range w.Shape[0] {
		for b := range a {
			if string(w.Row(a).Data) == string(w.Row(b).Data) {
				twins = []int{b, a}
			}
		}
	}
	row := -1 // where exactly one of the twins is chosen
	for r := range len(idx) / k {
		chosen := idx[r*k : (r+1)*k]
		if slices.Contains(chosen, twins[0]) != slices.Contains(chosen, twins[1]) {
			row = r
		}
	}
	require.GreaterOrEqual(t, row, 0)
	dir := rewritten(t, "v1-router-ties/golden-f32", func(dir string, m map[string]any) {
		chosen := slices.Clone(idx)
		for i := row * k; i < (row+1)*k; i++ { // the other twin for somebody else
			if chosen[i] != twins[0] && chosen[i] != twins[1] {
				other := twins[0]
				if slices.Contains(chosen[row*k:(row+1)*k], other) {
					other = twins[1]
				}
				chosen[i] = other
				break
			}
		}
		rewrite(t, dir, m, gate+"topk_idx", chosen)
	})
	r := run(t, c.Config, c, must(pack.Open(dir)), verify.Options{})
	require.Equal(t, report.Fail, r.Verdict)
	require.Equal(t, gate+"topk_idx", *r.FirstDivergence)
	require.Equal(t, 1, r.Routing.Mismatches)
}

// TestTiesBetweenGroups: with a router of zeros all groups tie, and the reference may
// choose any; which of ours the golden's stand for is found by their worth.
func TestTiesBetweenGroups(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v3/golden-f32")
	const gate = "model.layers.2.mlp.gate."
	zero := altered{Source: c, tensors: map[string]tensor.Tensor{}}
	for _, name := range []string{gate + "weight", gate + "e_score_correction_bias"} {
		w := get(t, c, name)
		clear(w.Data)
		zero.tensors[name] = w
	}
	tokens := p.Manifest.Tensors[gate+"topk_idx"].Shape[0]
	golden := func(experts ...int) *pack.Pack {
		return must(pack.Open(rewritten(t, "v3/golden-f32", func(dir string, m map[string]any) {
			rewrite(t, dir, m, gate+"topk_idx", slices.Repeat(experts, tokens))
			rewrite(t, dir, m, gate+"logits", make([]float32, 16*tokens))
		})))
	}
	verdict := func(src weights.Source, p *pack.Pack) report.Verdict {
		for _, check := range run(t, c.Config, src, p, verify.Options{}).Checks {
			if check.Tensor == gate+"topk_idx" {
				return check.Verdict
			}
		}
		return "not checked"
	}
	require.Equal(t, report.Pass, verdict(zero, golden(8, 9, 13, 15)))
	require.Equal(t, report.Fail, verdict(zero, golden(0, 4, 8, 12)), "four groups, where two may be chosen")
	require.Equal(t, report.Fail, verdict(c, golden(8, 9, 13, 15)), "the bias tells the groups apart")
}

// TestRoutingOfLayersAddsUp to that of the run, and each choice is somebody's load.
func TestRoutingOfLayersAddsUp(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-router-ties/golden-f32")
	r := run(t, c.Config, c, p, verify.Options{})
	choices, pinned, ties, load, same := 0, 0, 0, 0, 0
	for _, l := range r.Routing.Layers {
		choices, pinned, ties, same = choices+l.Choices, pinned+l.Pinned, ties+l.ExactTies, same+l.Same
		for _, n := range l.Load {
			load += n
		}
	}
	require.Equal(t, []int{r.Routing.Choices, r.Routing.Pinned, r.Routing.ExactTies}, []int{choices, pinned, ties})
	require.Equal(t, choices, load)
	require.Equal(t, choices-ties, same)
}
