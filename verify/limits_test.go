package verify

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// passOf returns a pass for a pack of dtype d with options o, of a model of one layer.
func passOf(d tensor.DType, o Options) *pass {
	m := &model.DeepseekForCausalLM{Config: config.Defaults("deepseek_v3")}
	m.Model.Layers = make([]model.DeepseekDecoderLayer, 1)
	return newPass(&job{pack: &pack.Pack{DType: d}, in: &model.Input{Batch: 1}, rows: &model.Input{}, model: m, options: &o})
}

// TestMetricLimits: relative RMS, that of a row, and the largest difference over the RMS.
func TestMetricLimits(t *testing.T) {
	for name, test := range map[string]struct {
		options Options
		stage   string
		want    [3]float64
		factor  float64
	}{
		"chained, layer 0":  {Options{Mode: report.Chained}, "model.layers.0.output", [3]float64{4e-6, 16e-6, 4e-5}, 0},
		"chained, layer 3":  {Options{Mode: report.Chained}, "model.layers.3.output", [3]float64{8e-6, 32e-6, 8e-5}, 0},
		"chained, layer 30": {Options{Mode: report.Chained}, "model.layers.30.output", [3]float64{2e-5, 8e-5, 2e-4}, 0},
		"chained, head":     {Options{Mode: report.Chained}, "lm_head.output", [3]float64{2e-5, 8e-5, 2e-4}, 0},
		"loss":              {Options{Mode: report.Local}, "loss", [3]float64{1e-5, 1e-4, 2e-4}, 0},
		"auxiliary loss":    {Options{Mode: report.Chained}, "model.layers.1.mlp.gate.aux_loss", [3]float64{1e-5, 1e-4, 2e-4}, 0},
		"gradient":          {Options{Mode: report.Local}, "lm_head.weight.grad", [3]float64{1e-5, 1e-4, 2e-4}, 0},
		"set by the suffix": {Options{Limits: map[string]float64{"grad": 2}}, "lm_head.weight.grad", [3]float64{2e-5, 2e-4, 4e-4}, 2},
		"set by the name":   {Options{Mode: report.Chained, Limits: map[string]float64{"output": 3, "model.layers.0.output": 0.5}}, "model.layers.0.output", [3]float64{2e-6, 8e-6, 2e-5}, 0.5},
		"set for others":    {Options{Mode: report.Chained, Limits: map[string]float64{"ayers.0.output": 2}}, "model.layers.0.output", [3]float64{4e-6, 16e-6, 4e-5}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l := passOf(tensor.F32, test.options).metricLimits(test.stage)
			require.InDeltaSlice(t, test.want[:], []float64{l.RelRMS, l.RowRMS, l.MaxRMS}, 1e-12)
			require.Equal(t, test.factor, l.Factor)
		})
	}
}

// TestMatches: a limit names a whole stage, or what follows a dot.
func TestMatches(t *testing.T) {
	for name, want := range map[string]bool{
		"model.layers.1.mlp.output": true, "mlp.output": true, "output": true, "1.mlp.output": true,
		"lp.output": false, ".mlp.output": false, "mlp": false, "": false, "layers.1": false,
	} {
		require.Equal(t, want, matches("model.layers.1.mlp.output", name), name)
	}
}

// TestMargin is the largest share of a limit that is used up.
func TestMargin(t *testing.T) {
	l := report.Limits{RelRMS: 1e-3, RowRMS: 1e-2, MaxRMS: 0.1}
	for name, test := range map[string]struct {
		m    bounds.Metrics
		want float64
	}{
		"nothing":                {bounds.Metrics{}, 0},
		"relative RMS":           {bounds.Metrics{RelRMS: 5e-4}, 0.5},
		"a row":                  {bounds.Metrics{RelRMS: 5e-4, RowRMS: 2e-2}, 2},
		"one difference":         {bounds.Metrics{MaxRMS: 0.3}, 3},
		"an infinite difference": {bounds.Metrics{RelRMS: math.Inf(1)}, math.Inf(1)},
	} {
		if got := margin(l, test.m); got != test.want {
			require.InDelta(t, test.want, got, 1e-8, name)
		}
	}
}

// TestTenTimesTheLimitOfChainedModeIsUndecided: from there on a stage fails; a loss, and a stage beyond a limit of
// the user's, fail at once.
func TestTenTimesTheLimitOfChainedModeIsUndecided(t *testing.T) {
	for name, test := range map[string]struct {
		stage  string
		relRMS float64
		limits map[string]float64
		want   report.Verdict
	}{
		"within":        {"model.layers.0.output", 3.99e-6, nil, report.Pass},
		"beyond":        {"model.layers.0.output", 4.01e-6, nil, report.Skipped},
		"nearly ten":    {"model.layers.0.output", 3.99e-5, nil, report.Skipped},
		"more than ten": {"model.layers.0.output", 4.01e-5, nil, report.Fail},
		"user's limit":  {"model.layers.0.output", 4.01e-6, map[string]float64{"output": 1}, report.Fail},
		"loss":          {"loss", 1.01e-5, nil, report.Fail},
	} {
		c := &report.Check{Tensor: test.stage}
		tr := passOf(tensor.F32, Options{Mode: report.Chained, Limits: test.limits})
		tr.judgeEndToEnd(c, bounds.Metrics{RelRMS: test.relRMS, Finite: true})
		require.Equal(t, test.want, c.Verdict, name)
	}
}

// TestWhatChainedModeJudges: the layers' outputs and what comes after them, losses and
// gradients; nothing in a pack of few bits.
func TestWhatChainedModeJudges(t *testing.T) {
	for stage, judged := range map[string]bool{
		"model.layers.0.output": true, "model.norm.output": true, "lm_head.output": true, "model.embed_tokens.output": true,
		"model.layers.1.mlp.gate.aux_loss": true, "loss": true, "lm_head.weight.grad": true,
		"model.layers.0.mlp.output": false, "model.layers.0.self_attn.q_proj.output": false, "model.layers.1.mlp.gate.logits": false,
	} {
		require.Empty(t, passOf(tensor.F32, Options{Mode: report.Local}).job.unjudged(stage), stage)
		require.Equal(t, judged, passOf(tensor.F32, Options{Mode: report.Chained}).job.unjudged(stage) == "", stage)
		require.Equal(t, "chained mode has no usable limit in BF16", passOf(tensor.BF16, Options{Mode: report.Chained}).job.unjudged(stage))
	}
}
