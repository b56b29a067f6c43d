package verify_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

const trainStages = "v1-base/golden-train-stages" // with the gradients of stages

// gradientsOf are the checks of gradients, by name.
func gradientsOf(r *report.Report) map[string]report.Check {
	of := map[string]report.Check{}
	for _, c := range r.Checks {
		if strings.HasSuffix(c.Tensor, ".grad") {
			of[c.Tensor] = c
		}
	}
	return of
}

// TestGradientsOfStagesPass: all are held to the error analysis, in local mode; in chained mode
// those of weights alone are compared.
func TestGradientsOfStagesPass(t *testing.T) {
	t.Parallel()
	c, p := open(t, trainStages)
	r := run(t, c.Config, c, p, verify.Options{})
	require.Equal(t, report.Pass, r.Verdict, r.Reasons)
	all := gradientsOf(r)
	require.Len(t, all, 120)
	for name, check := range all {
		require.NotNil(t, check.Z, name)
		require.Less(t, *check.Z, 4.0, name)
	}
	r = run(t, c.Config, c, p, verify.Options{Mode: report.Chained})
	require.Equal(t, report.Pass, r.Verdict, r.Reasons)
	for name, check := range gradientsOf(r) {
		require.Equal(t, strings.HasSuffix(name, ".weight.grad"), check.Verdict == report.Pass, name)
	}
}

// TestWrongGradientsFail, and where they are wrong, although no other is.
func TestWrongGradientsFail(t *testing.T) {
	t.Parallel()
	const layer = "model.layers.2."
	for name, test := range map[string]struct {
		tensor string
		edit   func(x []float32)
	}{
		"one weight":       {layer + "mlp.shared_experts.up_proj.weight.grad", func(x []float32) { x[100] *= 1 + 1e-4 }},
		"a sign":           {layer + "mlp.gate.weight.grad", func(x []float32) { x[70] *= -1 }},
		"transposed":       {layer + "mlp.shared_experts.down_proj.weight.grad", func(x []float32) { transpose(x, 64, 48) }},
		"no expert":        {layer + "mlp.experts.1.output.grad", func(x []float32) { clear(x) }},
		"norm":             {layer + "input_layernorm.weight.grad", func(x []float32) { x[3] *= 1 + 1e-4 }},
		"query":            {layer + "self_attn.q_proj.output.grad", func(x []float32) { x[len(x)-1] *= 1 + 1e-3 }},
		"key":              {layer + "self_attn.k_proj.output.grad", func(x []float32) { x[len(x)-1] *= 1 + 1e-3 }},
		"value":            {layer + "self_attn.v_proj.output.grad", func(x []float32) { x[len(x)-1] *= 1 + 1e-3 }},
		"weight of expert": {layer + "mlp.gate.topk_weight.grad", func(x []float32) { x[5] *= 1 + 1e-3 }},
		"logits":           {"lm_head.output.grad", func(x []float32) { x[7] *= 1 + 1e-4 }},
		"auxiliary loss":   {layer + "mlp.gate.aux_loss.grad", func(x []float32) { x[0] = 2 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireFails(t, changed(t, trainStages, test.tensor, test.edit), test.tensor, "")
		})
	}
}

// changed verifies a pack with other values in one of its tensors.
func changed(t *testing.T, golden, tensor string, edit func(x []float32)) *report.Report {
	t.Helper()
	c, p := open(t, golden)
	x := slices.Clone(must(p.Float32s(tensor)))
	edit(x)
	dir := rewritten(t, golden, func(dir string, m map[string]any) { rewrite(t, dir, m, tensor, x) })
	return run(t, c.Config, c, must(pack.Open(dir)), verify.Options{})
}

// transpose swaps rows and columns of x, which keeps its shape.
func transpose(x []float32, rows, cols int) {
	was := slices.Clone(x)
	for i := range x {
		x[i] = was[i%rows*cols+i/rows]
	}
}

// TestAuxLossAlphaShowsInTheGradientOfTheGate, not in its loss alone.
func TestAuxLossAlphaShowsInTheGradientOfTheGate(t *testing.T) {
	t.Parallel()
	c, _ := open(t, trainStages)
	dir := rewritten(t, trainStages, func(_ string, m map[string]any) {
		m["config_overrides"] = map[string]any{"aux_loss_alpha": 0.0501}
	})
	all := gradientsOf(run(t, c.Config, c, must(pack.Open(dir)), verify.Options{}))
	require.Equal(t, report.Fail, all["model.layers.1.mlp.gate.logits.grad"].Verdict)
	require.Equal(t, report.Pass, all["model.layers.1.mlp.gate.topk_weight.grad"].Verdict)
}

// TestAGradientIsMissingInOneLayer though others have it.
func TestAGradientIsMissingInOneLayer(t *testing.T) {
	t.Parallel()
	const missing = "model.layers.2.self_attn.q_proj.output.grad"
	c, _ := open(t, trainStages)
	dir := rewritten(t, trainStages, func(dir string, m map[string]any) {
		delete(m["tensors"].(map[string]any), missing)
		prune(t, dir, m)
	})
	r := run(t, c.Config, c, must(pack.Open(dir)), verify.Options{})
	require.Equal(t, report.Fail, gradientsOf(r)[missing].Verdict)
}

// TestGradientsNeedThoseOfAllLayers to be judged locally: else they are judged end to end, and
// those of stages not at all.
func TestGradientsNeedThoseOfAllLayers(t *testing.T) {
	t.Parallel()
	c, _ := open(t, trainStages)
	dir := rewritten(t, trainStages, func(dir string, m map[string]any) {
		delete(m["tensors"].(map[string]any), "model.layers.2.output.grad")
		prune(t, dir, m)
	})
	r := run(t, c.Config, c, must(pack.Open(dir)), verify.Options{})
	require.Equal(t, report.Inconclusive, r.Verdict)
	require.Contains(t, r.Reasons[0], "stage gradients were not compared")
}

// TestEightDeviationsOfAGradient: just below, and just above.
func TestEightDeviationsOfAGradient(t *testing.T) {
	t.Parallel()
	c, p := open(t, trainStages)
	right := gradientsOf(run(t, c.Config, c, p, verify.Options{}))
	for _, name := range []string{"mlp.shared_experts.down_proj", "mlp.shared_experts.up_proj", "mlp.gate"} {
		name = "model.layers.2." + name + ".weight.grad"
		check := right[name]
		at := 0
		for d, i := range check.Index {
			at = at*check.Shape[d] + i
		}
		got := must(strconv.ParseFloat(check.Got, 64))
		for z, verdict := range map[float64]report.Verdict{7.6: report.Pass, 8.8: report.Fail} {
			r := changed(t, trainStages, name, func(x []float32) { x[at] = float32(got + z**check.Sigma) })
			require.Equal(t, verdict, gradientsOf(r)[name].Verdict, "%s %g", name, z)
		}
	}
}

// TestMeasuredNoiseIsTheLimit of gradients that are judged end to end: 8 of it.
func TestMeasuredNoiseIsTheLimit(t *testing.T) {
	t.Parallel()
	const fixture = "v1-base/golden-train-batch"
	c, p := open(t, fixture)
	check := report.Check{RelRMS: new(float64)}
	for _, other := range gradientsOf(run(t, c.Config, c, p, verify.Options{})) {
		if *other.RelRMS > *check.RelRMS {
			check = other
		}
	}
	name := check.Tensor
	for factor, verdict := range map[float64]report.Verdict{1.01: report.Pass, 0.99: report.Fail} {
		for _, noise := range []map[string]any{
			{"rel_rms": *check.RelRMS * factor / 8, "max_abs": 1}, {"rel_rms": 1e-5, "max_abs": *check.MaxAbs * factor / 8},
		} {
			dir := rewritten(t, fixture, func(_ string, m map[string]any) { m["noise"] = map[string]any{name: noise} })
			r := run(t, c.Config, c, must(pack.Open(dir)), verify.Options{})
			require.Equal(t, verdict, gradientsOf(r)[name].Verdict)
		}
	}
	dir := rewritten(t, fixture, func(_ string, m map[string]any) {
		m["noise"] = map[string]any{name: map[string]any{"rel_rms": 2e-4, "max_abs": 1}}
	})
	r := run(t, c.Config, c, must(pack.Open(dir)), verify.Options{})
	require.Equal(t, report.Inconclusive, r.Verdict)
	require.Contains(t, r.Reasons[0], "1 gradient proves nothing")
}

// TestGradientsOfUnmeasuredNoise beyond their fixed limit are not called wrong, up to 100 times it, and
// never right.
func TestGradientsOfUnmeasuredNoise(t *testing.T) {
	t.Parallel()
	const fixture, name = "v1-base/golden-train-batch", "model.layers.3.mlp.gate.weight.grad"
	for factor, verdict := range map[float32]report.Verdict{1 + 5e-6: report.Pass, 1 + 5e-5: report.Inconclusive, 1 + 9e-4: report.Inconclusive, 1 + 1.1e-3: report.Fail} {
		r := changed(t, fixture, name, func(x []float32) {
			for i := range x {
				x[i] *= factor
			}
		})
		require.Equal(t, verdict, r.Verdict, factor)
		if verdict == report.Inconclusive {
			require.Contains(t, r.Reasons[0], "golden.py --train")
		}
	}
}
