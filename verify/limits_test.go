package verify

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
)

// tracerOf returns a tracer for a pack of dtype d with options o.
func tracerOf(d tensor.DType, o Options) *tracer {
	m := &model.DeepseekForCausalLM{Config: &config.Config{ModelType: "deepseek_v3", Reference: config.Native}}
	return &tracer{pack: &Pack{DType: d}, m: m, o: &o}
}

// TestLimits: relative RMS, that of a row, and the largest difference over the RMS.
func TestLimits(t *testing.T) {
	for name, test := range map[string]struct {
		tracer *tracer
		stage  string
		want   [3]float64
	}{
		"local":                  {tracerOf(tensor.F32, Options{Mode: Local}), "model.layers.3.mlp.output", [3]float64{2e-6, 4e-6, 2e-5}},
		"local, head":            {tracerOf(tensor.F32, Options{Mode: Local}), "lm_head.output", [3]float64{2e-6, 4e-6, 2e-5}},
		"local, float32 sums":    {tracerOf(tensor.F32, Options{Mode: Local, Accumulate: model.Float32}), "lm_head.output", [3]float64{4e-6, 8e-6, 4e-5}},
		"chained, first layer":   {tracerOf(tensor.F32, Options{Mode: Chained}), "model.layers.0.output", [3]float64{4e-6, 16e-6, 4e-5}},
		"chained, fourth":        {tracerOf(tensor.F32, Options{Mode: Chained}), "model.layers.3.output", [3]float64{8e-6, 32e-6, 8e-5}},
		"chained, many layers":   {tracerOf(tensor.F32, Options{Mode: Chained}), "model.layers.60.output", [3]float64{2e-5, 8e-5, 2e-4}},
		"chained, head":          {tracerOf(tensor.F32, Options{Mode: Chained}), "lm_head.output", [3]float64{2e-5, 8e-5, 2e-4}},
		"chained, float32 sums":  {tracerOf(tensor.F32, Options{Mode: Chained, Accumulate: model.Float32}), "model.layers.0.output", [3]float64{4e-6, 16e-6, 4e-5}},
		"loss":                   {tracerOf(tensor.F32, Options{Mode: Local}), "loss", [3]float64{1e-5, 1e-4, 2e-4}},
		"auxiliary loss":         {tracerOf(tensor.F32, Options{Mode: Chained}), "model.layers.1.mlp.gate.aux_loss", [3]float64{1e-5, 1e-4, 2e-4}},
		"gradient":               {tracerOf(tensor.F32, Options{Mode: Local}), "lm_head.weight.grad", [3]float64{1e-5, 1e-4, 2e-4}},
		"router in float32":      {tracerOf(tensor.BF16, Options{Mode: Local}), "model.layers.1.mlp.gate.logits", [3]float64{2e-6, 4e-6, 2e-5}},
		"set for the stage":      {tracerOf(tensor.F32, Options{Mode: Local, Limits: map[string]float64{"output": 1, "mlp.output": 1e-4}}), "model.layers.3.mlp.output", [3]float64{1e-4, 2e-4, 1e-3}},
		"set for others":         {tracerOf(tensor.F32, Options{Mode: Local, Limits: map[string]float64{"mlp.output": 1e-4}}), "model.layers.3.output", [3]float64{2e-6, 4e-6, 2e-5}},
		"set in BF16, no shares": {tracerOf(tensor.BF16, Options{Mode: Local, Limits: map[string]float64{"output": 1e-2}}), "model.layers.3.output", [3]float64{1e-2, 4e-2, 0.2}},
	} {
		t.Run(name, func(t *testing.T) {
			d := test.tracer.pack.DType
			if test.stage == "model.layers.1.mlp.gate.logits" {
				d = tensor.F32
			}
			l := test.tracer.limits(test.stage, d)
			require.InDeltaSlice(t, test.want[:], []float64{l.RelRMS, l.RowRMS, l.MaxRMS}, 1e-12)
			require.Zero(t, l.BitEqual)
			require.Zero(t, l.OneULP)
		})
	}
}

// TestLimitsOfReducedPacks: how much of a stage must be equal to the bit, and its noise,
// which in F16 is a third.
func TestLimitsOfReducedPacks(t *testing.T) {
	for stage, want := range map[string][3]float64{ // relative RMS, equal, within a unit
		"model.embed_tokens.output":                          {1.5e-3, 0.999, 0.999},
		"model.layers.0.input_layernorm.output":              {1.5e-3, 0.999, 0.999},
		"model.layers.0.self_attn.kv_a_layernorm.output":     {1.5e-3, 0.999, 0.999},
		"model.norm.output":                                  {1.5e-3, 0.999, 0.999},
		"model.layers.0.self_attn.q_proj.output":             {1.5e-3, 0.999, 0.999},
		"model.layers.0.self_attn.o_proj.input":              {1.5e-3, 0.99, 0.995},
		"model.layers.0.self_attn.output":                    {1.5e-3, 0.99, 0.995},
		"model.layers.0.self_attn.kv_a_proj_with_mqa.output": {5e-3, 0.99, 0.995},
		"model.layers.1.mlp.gate.logits":                     {1.5e-3, 0.99, 0.995},
		"model.layers.1.mlp.gate.topk_weight":                {3e-3, 0.99, 0.995},
		"model.layers.1.mlp.experts.output":                  {5e-3, 0.99, 0.995},
		"model.layers.1.mlp.output":                          {5e-3, 0.99, 0.995},
		"lm_head.output":                                     {5e-3, 0.99, 0.995},
	} {
		l := tracerOf(tensor.BF16, Options{Mode: Local}).limits(stage, tensor.BF16)
		require.Equal(t, []float64{want[0], 4 * want[0], 0.1, want[1], want[2]}, []float64{l.RelRMS, l.RowRMS, l.MaxRMS, l.BitEqual, l.OneULP}, stage)
		l = tracerOf(tensor.F16, Options{Mode: Local}).limits(stage, tensor.F16)
		require.InDeltaSlice(t, []float64{want[0] / 3, 4 * want[0] / 3, 0.1 / 8, want[1], want[2]}, []float64{l.RelRMS, l.RowRMS, l.MaxRMS, l.BitEqual, l.OneULP}, 1e-12, stage)
	}
}

// TestMargin is the largest share of a limit that is used up; of the shares that must be
// equal, one element may differ in any case.
func TestMargin(t *testing.T) {
	l := Limits{RelRMS: 1e-3, RowRMS: 1e-2, MaxRMS: 0.1, BitEqual: 0.99, OneULP: 0.999}
	right := Metrics{BitEqual: 1, OneULP: 1}
	for name, test := range map[string]struct {
		change   func(m *Metrics)
		elements int
		want     float64
	}{
		"nothing":                 {func(*Metrics) {}, 1000, 0},
		"relative RMS":            {func(m *Metrics) { m.RelRMS = 5e-4 }, 1000, 0.5},
		"a row":                   {func(m *Metrics) { m.RelRMS, m.RowRMS = 5e-4, 2e-2 }, 1000, 2},
		"one difference":          {func(m *Metrics) { m.MaxRMS = 0.3 }, 1000, 3},
		"a share not equal":       {func(m *Metrics) { m.BitEqual = 0.98 }, 1000, 2},
		"a share beyond one unit": {func(m *Metrics) { m.OneULP = 0.996 }, 1000, 4},
		"one element of few":      {func(m *Metrics) { m.BitEqual, m.OneULP = 0.9, 0.9 }, 10, 1},
		"two elements of few":     {func(m *Metrics) { m.BitEqual, m.OneULP = 0.8, 0.9 }, 10, 2},
		"an infinite difference":  {func(m *Metrics) { m.RelRMS = math.Inf(1) }, 1000, math.Inf(1)},
	} {
		m := right
		test.change(&m)
		if got := l.margin(m, test.elements); !math.IsInf(test.want, 1) {
			require.InDelta(t, test.want, got, 1e-8, name)
		} else {
			require.Equal(t, test.want, got, name)
		}
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
		require.Empty(t, tracerOf(tensor.F32, Options{Mode: Local}).unjudged(stage), stage)
		require.Equal(t, judged, tracerOf(tensor.F32, Options{Mode: Chained}).unjudged(stage) == "", stage)
		require.Equal(t, "chained mode has no usable limit in BF16", tracerOf(tensor.BF16, Options{Mode: Chained}).unjudged(stage))
	}
}
