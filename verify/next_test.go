package verify

import (
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

func TestGlobsOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ names, want []string }{
		{[]string{"model.norm.weight"}, []string{"model.norm.*"}},
		{[]string{"model.layers.2.self_attn.o_proj.weight", "model.layers.2.self_attn.o_proj.bias"}, []string{"model.layers.2.self_attn.o_proj.*"}},
		{[]string{"model.layers.2.self_attn.q_proj.weight", "model.layers.2.self_attn.o_proj.weight"}, []string{"model.layers.2.self_attn.*"}},
		{[]string{"model.layers.2.input_layernorm.weight", "model.layers.2.self_attn.o_proj.weight"}, []string{"model.layers.2.*"}},
		{[]string{"model.norm.weight", "lm_head.weight"}, []string{"model.norm.*", "lm_head.*"}},
		{[]string{"model.layers.1.input_layernorm.weight", "model.layers.2.input_layernorm.weight"}, []string{"model.layers.1.input_layernorm.*", "model.layers.2.input_layernorm.*"}},
	} {
		require.Equal(t, c.want, globsOf(c.names), c.names)
	}
}

// TestOtherWeights: that a pack is of other weights is said if nothing with weights passes, and a stage that no number
// of config.json decides is among what fails.
func TestOtherWeights(t *testing.T) {
	t.Parallel()
	failing := func(stage string, checked, failed int) *report.Report {
		return &report.Report{Verdict: report.Fail, Mode: report.Local, Checks: []report.Check{{Tensor: stage, Verdict: report.Fail}},
			Places: []report.Place{{Name: "0", Checked: 3, Failed: 3}, {Name: "1", Checked: checked, Failed: failed}}}
	}
	require.NotEmpty(t, otherWeights(failing(pack.Embedded, 5, 5), false))
	require.Equal(t, otherRun, otherWeights(failing(pack.Embedded, 5, 5), true))
	require.Empty(t, otherWeights(failing(pack.Embedded, 5, 4), false), "one weight passes")
	require.Empty(t, otherWeights(failing("model.layers.0.input_layernorm.output", 5, 5), false), "rms_norm_eps does so, too")
	for _, change := range []func(r *report.Report){
		func(r *report.Report) { r.Cause = &report.Cause{} },
		func(r *report.Report) { r.Mode = report.Chained },
		func(r *report.Report) { r.Stopped = true },
		func(r *report.Report) { r.Verdict = report.Pass },
	} {
		r := failing(pack.Embedded, 5, 5)
		change(r)
		require.Empty(t, otherWeights(r, false))
	}
}
