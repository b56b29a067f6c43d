package verify_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// printed is a report as text.
func printed(t *testing.T, r *report.Report) string {
	t.Helper()
	var text strings.Builder
	require.NoError(t, r.WriteText(&text))
	return text.String()
}

// TestOneChoice: of one choice of experts the text speaks in the singular.
func TestOneChoice(t *testing.T) {
	r := &report.Report{Routing: report.Routing{Choices: 1, ExactTies: 1, Pinned: 1}}
	require.Contains(t, printed(t, r),
		"routing    1 choice of experts: 0 differ; excused: 1 exact tie, 0 within the noise; 1 could not be changed by rounding\n")
}

// TestTextOfAFailure holds a report in full.
func TestTextOfAFailure(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-f32")
	require.Equal(t, `verdict    FAIL

DIVERGES   model.layers.0.input_layernorm.output  F32 [2 17 64]
           off by 0.18 % of its RMS, at most 0.0078 at [0 3 47]
           z 2.24e+04, limit 8; RMS of z 1.71e+04, limit 1.21; RMS of z in a row 2.24e+04, limit 3; RMS of z in a column 1.71e+04, limit 1.81
           in all 29 rows
           at [1 11 28]: golden 0.87704295, recomputed 0.87493396 ± 7.5e-07 (8 σ)
           1856 of 1856 elements are beyond 8 σ
also       model.layers.{0..3}.post_attention_layernorm.output
           model.layers.{1..3}.input_layernorm.output
           model.norm.output
cause      norm-eps: the reference ran with rms_norm_eps 1e-06, here it is 1e-05

           checked  failed  nearest to its limit  of limit  z        RMS      sees     open
embedding  1/1              embed_tokens          0%        0        0        0.0e+00  -
layer 0    10/10    2 FAIL  input_layernorm       1.4e+04×  2.2e+04  1.7e+04  8.6e-07  -
layer 1    15/15    2 FAIL  input_layernorm       5.1e+01×  1e+02    61       8.6e-07  -
layer 2    15/15    2 FAIL  input_layernorm       642.9%    18       7.7      8.6e-07  -
layer 3    15/15    2 FAIL  input_layernorm       290.6%    7.9      3.5      8.6e-07  -
head       2/2      1 FAIL  norm                  199.3%    6.8      2.4      8.6e-07  -

coverage   58 of 58 golden tensors, 177 of 186 weights, 45 of 48 routed experts
           5 rows of padding not compared
           26 of 256 rows of the embedding
           model.layers.2: no token reached experts 4, 7, 13
routing    348 choices of experts: 0 differ; 348 could not be changed by rounding

reference  DeepseekForCausalLM (remote code modeling_deepseek.py), transformers 4.39.3, torch 2.3.1+cu121 on cpu
golden     2 × 17 tokens in float32, 58 tensors, files match their hashes
mode       local: every stage is fed the golden's own input; float64 sums
config     aux_loss_alpha not exercised: the pack was not recorded in training mode
limits     8 σ of rounding errors for each element, 6 for a neuron; float32: a row's RMS ≤ 3; of at least 8 distinct rows RMS ≤ 1.12 + 3.5/√elements, a column's ≤ 1.12 + 3.5/√rows
`, printed(t, run(t, override(t, c.Config, "rms_norm_eps", "1e-5"), c, p, verify.Options{})))
}

// TestTextSays what is particular to a run, in lines of its own.
func TestTextSays(t *testing.T) {
	t.Parallel()
	const q = "model.layers.2.self_attn.q_proj.weight"
	for name, test := range map[string]struct {
		pack    string
		options verify.Options
		broken  bool // q_proj of layer 2 in the other RoPE layout
		want    []string
	}{
		"chained": {"v1-base/golden-f32", verify.Options{Mode: report.Chained}, true, []string{
			"mode       chained: end to end, with the golden's choice of experts; float64 sums",
			"limits     float32 pack, end to end: 4e-6·√layers, at most 2e-5: rel RMS ≤ 2e-05, a row's ≤ 8e-05, max/RMS ≤ 0.0002",
			"layer 1    2/15             output                12.22%    6.9e-07  3.6e-06  4.634%",
			"layer 2    2/15     2 FAIL  mlp.gate.topk_idx     -         -        -        -",
			"DIVERGES   model.layers.2.mlp.gate.topk_idx  I64 [34 4]",
			"           4 choices of another expert, where rounding does not explain it",
			"           at [1 2]: golden expert 5, recomputed experts [1 2 3 4]",
			"cause      run with --mode local to find the stage at fault",
			"coverage   10 of 58 golden tensors, 177 of 186 weights, 45 of 48 routed experts",
			"routing    348 choices of experts: 13 differ; 348 could not be changed by rounding",
			"verdict    FAIL",
		}},
		"a report without a verdict": {"v1-base/golden-bf16", verify.Options{Mode: report.Chained}, false, []string{
			"layer 3    0/15     mlp.experts           -         1.1e-02  9.6e-02  67.51%",
			"coverage   0 of 58 golden tensors, 0 of 186 weights, 45 of 48 routed experts",
			"verdict    INCONCLUSIVE",
			"           end to end, BF16 rounding grows without a usable limit: this is a report, use --mode local for a verdict",
		}},
		"a reduced pack": {"v1-base/golden-bf16", verify.Options{}, true, []string{
			"limits     8 σ of rounding errors for each element, 6 for a neuron",
			"           at [0 3 51]: golden 3.78125, recomputed 0.09691671 ± 1.2e-06 (8 σ), which rounds to 0.09667969",
			"           z 2.47e+07, limit 8",
			"           1621 of 1856 elements are beyond 8 σ",
		}},
		"no cause": {"v1-base/golden-f32", verify.Options{Limits: map[string]float64{"model.layers.2.mlp.experts.output": 0.01}}, false, []string{
			"limits     --limit model.layers.2.mlp.experts.output=0.01: 8 σ, each times that",
			"verdict    FAIL (user-supplied limits)",
			"cause      none of the known mistakes explains it",
		}},
		"training": {"v1-base/golden-train-seq", verify.Options{}, false, []string{
			"           forward in training mode, loss and gradients",
			"           the reference ran with aux_loss_alpha 0.05, seq_aux true",
			"mode       local: stages are fed the golden's own input; over what it lacks, errors are carried on: mlp.experts.output; float64 sums",
			"config     aux_loss_alpha 0.001, the reference ran with 0.05",
			"limits     loss, auxiliary losses and gradients: rel RMS ≤ 1e-05, a row's ≤ 0.0001, max/RMS ≤ 0.0002",
			"gradients  186/186  layers.1.mlp.experts.8.gate_proj.weight.grad  8.582%    -    -     -        -",
		}},
		"ties": {"v1-router-ties/golden-f32", verify.Options{Accumulate: model.Float32}, false, []string{
			"mode       local: every stage is fed the golden's own input; float32 sums",
			"coverage   43 of 43 golden tensors, 128 of 128 weights, 32 of 32 routed experts",
			"routing    640 choices of experts: 0 differ; excused: 2 exact ties, 0 within the noise; 638 could not be changed by rounding",
		}},
		"a dense model": {"v1-dense/golden-f32", verify.Options{}, false, []string{
			"coverage   23 of 23 golden tensors, 21 of 21 weights",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, p := open(t, test.pack)
			src := altered{Source: c}
			if test.broken {
				src = replace(c, q, interleave(get(t, c, q), 16))
			}
			text := printed(t, run(t, c.Config, src, p, test.options))
			for _, line := range test.want {
				require.Contains(t, "\n"+text, "\n"+line+"\n")
			}
		})
	}
}

// exercised is what a verdict says of a report's coverage.
func exercised(r *report.Report) string {
	weights := fmt.Sprintf("%d of %d weights exercised", r.Coverage.WeightsChecked, r.Coverage.Weights)
	if r.Coverage.Experts == 0 {
		return weights
	}
	return fmt.Sprintf("%d of %d experts, %s", r.Coverage.ExpertsReached, r.Coverage.Experts, weights)
}

// TestTextIsPlain: a pack cannot forge lines of the report, wherever it has its say.
func TestTextIsPlain(t *testing.T) {
	t.Parallel()
	const forged = "x\x1b[2K\nverdict    PASS"
	dir := rewritten(t, "v1-base/golden-f32", func(dir string, m map[string]any) {
		m["reference"].(map[string]any)["model"] = forged
		m["config_overrides"] = map[string]any{forged: 1}
		refile(t, dir, m, "embed.safetensors", func(tensors map[string]view) { tensors[forged] = tensors["model.embed_tokens.output"] })
		tensors := m["tensors"].(map[string]any)
		tensors[forged] = tensors["model.embed_tokens.output"]
	})
	c, _ := open(t, "v1-base/golden-f32")
	r := run(t, override(t, c.Config, forged, "2"), c, must(pack.Open(dir)), verify.Options{})
	require.Equal(t, forged, *r.FirstDivergence)
	text := printed(t, r)
	require.NotContains(t, text, "\x1b")
	require.Equal(t, 1, strings.Count("\n"+text, "\nverdict"))
	require.Contains(t, text, `x\x1b[2K\nverdict    PASS`)
}

// TestNothingToCheck: a pack of inputs alone has no checks, an empty list in JSON.
func TestNothingToCheck(t *testing.T) {
	t.Parallel()
	dir := rewritten(t, "v1-dense/golden-f32", func(dir string, m map[string]any) {
		maps.DeleteFunc(m["tensors"].(map[string]any), func(name string, _ any) bool { return name != "input_ids" })
		prune(t, dir, m)
	})
	c, _ := open(t, "v1-dense/golden-f32")
	r := run(t, c.Config, c, must(pack.Open(dir)), verify.Options{})
	require.Equal(t, report.Inconclusive, r.Verdict)
	data, err := json.Marshal(r)
	require.NoError(t, err)
	require.Contains(t, string(data), `"checks":[]`)
	require.Contains(t, printed(t, r), "coverage   0 of 0 golden tensors, 0 of 21 weights\n")
}

// TestReportNamesTheDevice: what a manifest says of the GPU and of torch's settings there is in the
// text, in the page and in JSON; a manifest without it leaves no line.
func TestReportNamesTheDevice(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-dense/golden-f32")
	r := run(t, c.Config, c, p, verify.Options{})
	require.NotContains(t, printed(t, r), "tf32")
	dir := rewritten(t, "v1-dense/golden-f32", func(_ string, m map[string]any) {
		reference := m["reference"].(map[string]any)
		reference["device"], reference["gpu"] = "cuda", "NVIDIA H200"
		reference["precision"] = map[string]any{"matmul_tf32": true, "reduced_bf16_sums": true, "float32_matmul_precision": "high"}
	})
	r = run(t, c.Config, c, must(pack.Open(dir)), verify.Options{})
	const settings = "NVIDIA H200: matmul_tf32 true, cudnn_tf32 false, reduced_bf16_sums true, reduced_fp16_sums false, float32_matmul_precision high"
	require.Contains(t, printed(t, r), " on cuda\n           "+settings+"\n")
	has(t, html(t, r), settings)
	require.Contains(t, string(must(json.Marshal(r))), `"precision":{"matmul_tf32":true,`)
}
