package verify_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/convert/checkpoint"
	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// packs are all packs of tiny models.
var packs = []string{
	"v1-base/golden-f32", "v1-base/golden-bf16", "v1-gqa-norm-freq2/golden-f32", "v1-top1-noshared/golden-f32",
	"v1-rope-linear-tied-bias/golden-f32", "v1-rope-dynamic/golden-f32", "v1-dense/golden-f32",
	"v1-freq3-first2/golden-f32", "v1-router-ties/golden-f32", "v1-router-ties/golden-bf16",
	"v1-base/golden-train-seq", "v1-base/golden-train-batch",
	"v2-lite/golden-f32", "v2-lite/golden-bf16", "v2-group-yarn/golden-f32",
	"v3/golden-f32", "v3/golden-bf16", "v3-yarn/golden-f32", "v3-fp8/golden-f32", "v3-mtp/golden-f32", "v3-mtp-two/golden-bf16",
	"v1-massive/golden-f32", "v1-massive/golden-bf16", "v1-f16/golden-f16", "v3-f16/golden-f16",
	"v1-trained/golden-f32", "v3-trained/golden-f32", "v3-trained/golden-bf16",
	"glm4-moe-lite/golden-f32", "kimi-k2/golden-f32", "vl2/golden-f32", "ocr/golden-f32",
	"axk1/golden-f32", coherentHeads, "glm4-moe-lite-trained/golden-f32",
	"v32/golden-f32", "v32/golden-bf16", "v32-yarn/golden-f32", "v32-fp8/golden-f32", "glm5/golden-f32", "glm5/golden-bf16",
	"v4/golden-f32", "v4/golden-bf16", "v4-128/golden-f32", "v4-fp4/golden-f32",
	"glm4-moe/golden-f32", "glm4-moe/golden-bf16", "glm4-moe/golden-padded-f32",
	"dots1/golden-f32", "dots1/golden-bf16", "dots1/golden-padded-f32", "dots1-window/golden-f32", "dots1-window/golden-bf16",
	"solar-open/golden-f32", "solar-open/golden-bf16", "solar-open/golden-padded-f32",
	"hy-v3/golden-f32", "hy-v3/golden-bf16", "hy-v3/golden-padded-f32", "hy-v3-bias/golden-f32", "hy-v3-bias/golden-bf16",
	"minimax-m2/golden-f32", "minimax-m2/golden-bf16", "minimax-m2/golden-padded-f32",
	"exaone-moe/golden-f32", "exaone-moe/golden-bf16", "exaone-moe/golden-padded-f32",
	"ernie45-moe/golden-f32", "ernie45-moe/golden-bf16", "ernie45-moe/golden-padded-f32",
	"ernie45-moe-clamp/golden-f32", "ernie45-moe-clamp/golden-bf16",
	"sarvam-moe/golden-f32", "sarvam-moe/golden-bf16", "sarvam-mla/golden-f32", "sarvam-mla/golden-bf16",
	"ling-2/golden-f32", "ling-2/golden-bf16",
}

// coherentHeads is a pack whose sums drift as far as is known.
const coherentHeads = "glm4-moe-lite-coherent/golden-f32"

// trained are float32 packs of models that were trained.
var trained = []string{"v1-trained/golden-f32", "v3-trained/golden-f32"}

func fixture(name string) string { return filepath.Join("..", "fixtures", filepath.FromSlash(name)) }

func open(t *testing.T, golden string) (*checkpoint.Checkpoint, *pack.Pack) {
	t.Helper()
	c, err := checkpoint.Opener{}.OpenPart(fixture(filepath.Dir(golden)+"/checkpoint"), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	p, err := pack.Open(fixture(golden))
	require.NoError(t, err)
	return c, p
}

func run(t *testing.T, c *config.Config, src weights.Source, p *pack.Pack, o verify.Options) *report.Report {
	t.Helper()
	r, err := verify.Run(context.Background(), c, src, p, o)
	require.NoError(t, err)
	return r
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestPacksPassStageByStage_every verifies every pack in local mode: everything is checked and within its
// limits, with either accumulator.
func TestPacksPassStageByStage_every(t *testing.T) {
	t.Parallel()
	for i, golden := range packs {
		for j, acc := range []model.Accumulator{model.Float64, model.Float32} {
			if !configtest.Every(t) && i%2 != j {
				continue
			}
			t.Run(golden, func(t *testing.T) {
				t.Parallel()
				c, p := open(t, golden)
				r := run(t, c.Config, c, p, verify.Options{Accumulate: acc})
				require.Equal(t, report.Pass, r.Verdict, "%v %v", r.FirstDivergence, r.Reasons)
				require.Nil(t, r.FirstDivergence)
				require.Nil(t, r.Cause)
				require.Equal(t, r.Coverage.GoldenTensors, r.Coverage.GoldenChecked)
				require.Empty(t, r.Coverage.WeightsUnchecked)
				require.Zero(t, r.Routing.Mismatches)
				require.Equal(t, r.Routing.Choices, r.Routing.Pinned+r.Routing.ExactTies, "only ties are not pinned")
				require.Len(t, r.Checks, len(p.Manifest.Tensors)-inputs(p))
				requireModelOrder(t, r, c.Config.NumHiddenLayers)
				requireExactSums(t, r)
				requireFiles(t, r)
			})
		}
	}
}

func inputs(p *pack.Pack) int {
	if p.Has("attention_mask") {
		return 2
	}
	return 1
}

// requireExactSums: the embedding and the residual sums are reproduced to the bit, with no
// error to allow for.
func requireExactSums(t *testing.T, r *report.Report) {
	t.Helper()
	for _, c := range r.Checks {
		sum := strings.HasPrefix(c.Tensor, "model.layers.") && strings.Count(c.Tensor, ".") == 3 && len(c.Shape) == 3
		if c.Tensor == "model.embed_tokens.output" || sum { // sums of streams are more than one operation
			require.Equal(t, []float64{0, 0, 1}, []float64{*c.Z, *c.Sees, *c.BitEqual}, c.Tensor)
		}
	}
}

func requireModelOrder(t *testing.T, r *report.Report, decoder int) {
	t.Helper()
	require.Equal(t, "model.embed_tokens.output", r.Checks[0].Tensor)
	layers := slices.DeleteFunc(slices.Clone(r.Checks[1:]), func(c report.Check) bool { return c.Stage().IsTable() })
	require.Contains(t, []string{"model.layers.0.input_layernorm.output", "model.layers.0.attn_hc.pre"}, layers[0].Tensor)
	forward := slices.DeleteFunc(slices.Clone(r.Checks), func(c report.Check) bool {
		return strings.HasSuffix(c.Tensor, ".grad") || c.Tensor == "loss"
	})
	last := slices.IndexFunc(forward, func(c report.Check) bool { return c.Tensor == "lm_head.output" })
	for _, c := range forward[last+1:] {
		require.GreaterOrEqual(t, c.Layer(), decoder, "prediction layers follow the head")
	}
	if predicts := len(forward) - last - 1; predicts > 0 {
		require.Equal(t, fmt.Sprintf("model.layers.%d.enorm.output", decoder), forward[last+1].Tensor)
		require.Regexp(t, `\.shared_head\.head\.output$`, forward[len(forward)-1].Tensor)
	}
	for i, c := range forward {
		require.Equal(t, r.Checks[i].Tensor, c.Tensor, "the loss and the gradients come last")
	}
}

// TestTrainingPacksCoverLossAndGradients counts what the packs are there for.
func TestTrainingPacksCoverLossAndGradients(t *testing.T) {
	t.Parallel()
	for golden, gradients := range map[string]int{"v1-base/golden-train-seq": 186, "v1-base/golden-train-batch": 52} {
		c, p := open(t, golden)
		got := map[string]int{}
		for _, check := range run(t, c.Config, c, p, verify.Options{}).Checks {
			kind := check.Tensor[strings.LastIndex(check.Tensor, ".")+1:]
			got[kind]++
			if kind == "grad" || kind == "aux_loss" {
				require.LessOrEqual(t, *check.RelRMS, 1e-5, check.Tensor)
				require.Equal(t, report.Pass, check.Verdict)
			}
		}
		require.Equal(t, gradients, got["grad"])
		require.Equal(t, 3, got["aux_loss"])
		require.Equal(t, 1, got["loss"])
	}
}

// TestTrainingPacksMustHoldWhatTrainingGives: the loss, each auxiliary loss, gradients.
func TestTrainingPacksMustHoldWhatTrainingGives(t *testing.T) {
	t.Parallel()
	for _, part := range []string{"loss", "mlp.gate.aux_loss", ".grad"} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			dir := rewritten(t, "v1-base/golden-train-batch", func(dir string, m map[string]any) {
				maps.DeleteFunc(m["tensors"].(map[string]any), func(name string, _ any) bool {
					return name == part || part != "loss" && strings.HasSuffix(name, part)
				})
				prune(t, dir, m)
			})
			c, _ := open(t, "v1-base/golden-train-batch")
			r := run(t, c.Config, c, must(pack.Open(dir)), verify.Options{})
			require.Equal(t, report.Inconclusive, r.Verdict, r.FirstDivergence)
			require.Equal(t, []string{"a training pack without loss, auxiliary losses or gradients: that part was not checked"}, r.Reasons)
		})
	}
}

// TestProgress counts to the number of golden tensors, with an attention mask among the
// inputs or without.
func TestProgress(t *testing.T) {
	t.Parallel()
	for _, golden := range []string{"v1-base/golden-f32", "v1-dense/golden-f32"} {
		c, p := open(t, golden)
		calls := 0
		r := run(t, c.Config, c, p, verify.Options{Progress: func(done, total int) {
			calls++
			require.Equal(t, calls, done)
			require.Equal(t, len(p.Manifest.Tensors)-inputs(p), total)
		}})
		require.Equal(t, r.Coverage.GoldenTensors, calls)
	}
}

// TestRunStopsWithItsContext and gives no report.
func TestRunStopsWithItsContext(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-f32")
	ctx, cancel := context.WithCancel(context.Background())
	_, err := verify.Run(ctx, c.Config, c, p, verify.Options{Progress: func(done, _ int) {
		if done == 20 {
			cancel()
		}
	}})
	require.ErrorIs(t, err, context.Canceled)
}

// TestPacksPassEndToEnd_every verifies every pack in chained mode; BF16 is a report only.
func TestPacksPassEndToEnd_every(t *testing.T) {
	t.Parallel()
	for i, golden := range packs {
		if i%2 > 0 && golden != coherentHeads && !configtest.Every(t) {
			continue
		}
		t.Run(golden, func(t *testing.T) {
			t.Parallel()
			c, p := open(t, golden)
			r := run(t, c.Config, c, p, verify.Options{Mode: report.Chained})
			require.Nil(t, r.FirstDivergence)
			if golden == coherentHeads {
				require.Equal(t, report.Inconclusive, r.Verdict)
				require.Equal(t, []string{"2 stages beyond the fixed limit of chained mode, by no more than rounding may do, the first " +
					"is model.layers.0.output: local mode decides"}, r.Reasons)
			} else if p.DType == tensor.F32 {
				require.Equal(t, report.Pass, r.Verdict, r.Reasons)
				require.Empty(t, r.Coverage.WeightsUnchecked)
			} else {
				require.Equal(t, report.Inconclusive, r.Verdict)
				require.Contains(t, r.Reasons[0], "this is a report")
				require.Zero(t, r.Coverage.GoldenChecked)
			}
		})
	}
}

// TestCoherentHeadsAreNoExcuse: the sums of the pack drift, and one weight of another value fails all the same.
func TestCoherentHeadsAreNoExcuse(t *testing.T) {
	t.Parallel()
	const proj = "model.layers.0.self_attn.o_proj"
	c, p := open(t, coherentHeads)
	r := run(t, c.Config, replace(c, proj+".weight", nudged(get(t, c, proj+".weight"), 3, 1)), p, verify.Options{})
	requireFails(t, r, proj+".output", "")
}

// TestSameReportOnAnyNumberOfThreads compares the JSON to the byte.
func TestSameReportOnAnyNumberOfThreads(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-f32")
	var first []byte
	for _, threads := range []int{1, 2, 3, 7} {
		for _, mode := range []report.Mode{report.Local, report.Chained} {
			got, err := json.Marshal(run(t, c.Config, c, p, verify.Options{Mode: mode, Parallelism: threads}))
			require.NoError(t, err)
			if mode == report.Local && first == nil {
				first = got
			} else if mode == report.Local {
				require.Equal(t, string(first), string(got))
			}
		}
	}
}

// TestFusedCheckpointPasses: the same weights, fused, against the same packs.
func TestFusedCheckpointPasses(t *testing.T) {
	t.Parallel()
	c, err := checkpoint.Open(fixture("v3/checkpoint-fused"))
	require.NoError(t, err)
	defer c.Close()
	for _, golden := range []string{"v3/golden-f32", "v3/golden-bf16"} {
		_, p := open(t, golden)
		require.Equal(t, report.Pass, run(t, c.Config, c, p, verify.Options{}).Verdict)
	}
}

// TestReferenceOverride: the rules of the other reference fail, and the report names
// the ones in force.
func TestReferenceOverride(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v2-lite/golden-f32")
	cfg := override(t, c.Config, "norm_topk_prob", "true")
	r := run(t, cfg, c, p, verify.Options{})
	require.Equal(t, report.Pass, r.Verdict, "transformers' own V2 ignores norm_topk_prob")
	require.Equal(t, report.Rules{Reference: config.Native, TopKScale: 1, MoELayerFreq: 1, IgnoresMoELayerFreq: true}, r.Rules)
	var text strings.Builder
	require.NoError(t, r.WriteText(&text))
	require.Contains(t, text.String(), "native reference: top-k weights not normalised, times 1; moe_layer_freq ignored")

	r = run(t, cfg, c, p, verify.Options{Reference: config.Remote})
	requireFails(t, r, "model.layers.1.mlp.gate.topk_weight", "norm-topk")
	require.Equal(t, report.Rules{Reference: config.Remote, NormaliseTopK: true, TopKScale: 1, MoELayerFreq: 1}, r.Rules)
}

// TestRemoteSumsInTheOrderOfChoices: the published code's order of the routed sum agrees
// within the limits where nothing else differs.
func TestRemoteSumsInTheOrderOfChoices(t *testing.T) {
	t.Parallel()
	for _, golden := range []string{"v2-lite/golden-f32", "v3/golden-f32"} {
		c, p := open(t, golden)
		require.Equal(t, report.Pass, run(t, c.Config, c, p, verify.Options{Reference: config.Remote}).Verdict, golden)
	}
}

// TestPredictionLayersAreReported, and not run.
func TestPredictionLayersAreReported(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v3/golden-f32")
	extra := mtp{c, map[string]tensor.Info{}}
	for s := range table.FamilyOf(c.Config).MTPSlots(c.Config) {
		extra.infos[s.Name] = s.Info(tensor.BF16)
	}
	r := run(t, c.Config, extra, p, verify.Options{})
	require.Equal(t, report.Pass, r.Verdict)
	require.Equal(t, 68, r.Coverage.OutsideForward)
	data, err := json.Marshal(r.Coverage)
	require.NoError(t, err)
	require.Contains(t, string(data), `"outside_forward":68`)
	require.Contains(t, printed(t, r), "\n           68 weights of multi-token prediction layers are not part of the forward pass, and not verified\n")
}

// TestChainedModeFails when only the end is looked at, too.
func TestChainedModeFails(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-f32")
	src := swap(t, c, moe1+"experts.3.up_proj.weight", moe1+"experts.9.up_proj.weight")
	r := run(t, c.Config, src, p, verify.Options{Mode: report.Chained})
	require.Equal(t, report.Fail, r.Verdict)
	require.Equal(t, "model.layers.1.output", *r.FirstDivergence)
}

// TestTensorsThatDoNotFitAreAnError with every mismatch in it.
func TestTensorsThatDoNotFitAreAnError(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-f32")
	cfg := override(t, c.Config, "first_k_dense_replace", "2")
	_, err := verify.Run(context.Background(), cfg, c, p, verify.Options{})
	var mismatch *weights.MismatchError
	require.ErrorAs(t, err, &mismatch)
	require.Len(t, mismatch.Missing, 3)
	require.Len(t, mismatch.Unexpected, 16*3+1+3)
}

// TestLimitOverride scales the standard deviations of the stages that a key names, and
// marks the verdict.
func TestLimitOverride(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-f32")
	own := run(t, c.Config, c, p, verify.Options{})
	r := run(t, c.Config, c, p, verify.Options{Limits: map[string]float64{"mlp.experts.output": 1e-3, "output": 2, "experts.output": 7}})
	require.Equal(t, moe1+"experts.output", *r.FirstDivergence)
	for i, check := range r.Checks {
		was, factor := own.Checks[i], 0.0
		switch {
		case strings.HasSuffix(check.Tensor, ".mlp.experts.output"):
			factor = 1e-3
		case strings.HasSuffix(check.Tensor, "output"):
			factor = 2
		}
		if was.Z == nil || was.Limits.Z == 0 {
			continue
		}
		require.Equal(t, factor, check.Limits.Factor, check.Tensor)
		if factor > 0 {
			require.InDelta(t, *was.Z/factor, *check.Z, 1e-9**check.Z, check.Tensor)
			require.InDelta(t, *was.Sees*factor, *check.Sees, 1e-9, check.Tensor)
		} else {
			require.Equal(t, was, check)
		}
	}
	r = run(t, c.Config, c, p, verify.Options{Limits: map[string]float64{"mlp.output": 2}})
	require.Equal(t, report.Pass, r.Verdict)
	require.True(t, r.UserLimits)
	require.Contains(t, printed(t, r), "verdict    PASS (user-supplied limits) ("+exercised(r)+")\n")
	require.False(t, own.UserLimits)
}

// TestUncheckedWeightsAreInconclusive: with layer 3 cut off the pack, nothing checks it.
func TestUncheckedWeightsAreInconclusive(t *testing.T) {
	t.Parallel()
	dir := rewritten(t, "v1-base/golden-f32", func(dir string, m map[string]any) {
		for k := range m["tensors"].(map[string]any) {
			if k == "lm_head.output" || k == "model.norm.output" {
				delete(m["tensors"].(map[string]any), k)
			}
		}
		prune(t, dir, m)
	})
	c, _ := open(t, "v1-base/golden-f32")
	r := run(t, c.Config, c, must(pack.Open(dir)), verify.Options{})
	require.Equal(t, report.Inconclusive, r.Verdict)
	require.Equal(t, []string{"model.norm.weight", "lm_head.weight"}, r.Coverage.WeightsUnchecked)
}

// TestAttentionMustBeExercised: one token sees nobody, and proves nothing of RoPE.
func TestAttentionMustBeExercised(t *testing.T) {
	t.Parallel()
	for name, masked := range map[string]bool{"one id": false, "all masked": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, p := open(t, "v1-base/golden-f32")
			dir := rewritten(t, "v1-base/golden-f32", func(dir string, m map[string]any) {
				ids := must(p.Ints("input_ids"))
				for i := range ids {
					ids[i] = 7
				}
				if !masked {
					rewrite(t, dir, m, "input_ids", ids)
				} else {
					rewrite(t, dir, m, "attention_mask", make([]int, len(ids)))
				}
			})
			r := run(t, c.Config, c, must(pack.Open(dir)), verify.Options{})
			require.Contains(t, strings.Join(r.Reasons, "; "), "attention and RoPE were not exercised")
		})
	}
}

// TestOptionsAreChecked: limits out of range or for no stage, a mode that is none, a
// mask that is no mask.
func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-f32")
	for want, o := range map[string]verify.Options{
		"limit output=-1: not a number above 0":       {Limits: map[string]float64{"output": -1}},
		"limit output=+Inf: not a number above 0":     {Limits: map[string]float64{"output": math.Inf(1)}},
		"limit output=NaN: not a number above 0":      {Limits: map[string]float64{"output": math.NaN()}},
		"limit mlp.expert.output: no stage":           {Limits: map[string]float64{"mlp.expert.output": 2}},
		"limit lp.output: no stage":                   {Limits: map[string]float64{"lp.output": 2}},
		`mode "sideways": not local`:                  {Mode: "sideways"},
		"model_type deepseek has no native reference": {Reference: config.Native},
	} {
		_, err := verify.Run(context.Background(), c.Config, c, p, o)
		require.ErrorContains(t, err, want)
	}
	dir := rewritten(t, "v1-base/golden-f32", func(dir string, m map[string]any) {
		mask := must(p.Ints("attention_mask"))
		mask[20] = 2
		rewrite(t, dir, m, "attention_mask", mask)
	})
	_, err := verify.Run(context.Background(), c.Config, c, must(pack.Open(dir)), verify.Options{})
	require.ErrorContains(t, err, "attention_mask[1, 3]: 2 is not 0 or 1")
}
