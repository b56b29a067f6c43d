package verify_test

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// Packs of experts that transformers does not compute one by one.
const (
	groupedBF16 = "minimax-m2/golden-grouped-bf16"
	batchedF16  = "v3-f16/golden-batched-f16"
)

// ranWith opens a pack whose manifest says something else of the reference.
func ranWith(t *testing.T, golden, member string, value any) *pack.Pack {
	t.Helper()
	return must(pack.Open(rewritten(t, golden, func(_ string, m map[string]any) {
		m["reference"].(map[string]any)[member] = value
	})))
}

// TestExpertsTogether: packs of grouped_mm and batched_mm pass, fail as packs of eager experts, which round elsewhere,
// and a wrong expert fails.
func TestExpertsTogether(t *testing.T) {
	t.Parallel()
	for golden, expert := range map[string]string{
		groupedBF16: "model.layers.1.block_sparse_moe.experts.1.w2.weight",
		batchedF16:  "model.layers.2.mlp.experts.1.down_proj.weight",
	} {
		c, p := open(t, golden)
		r := run(t, c.Config, c, p, verify.Options{})
		require.Equal(t, report.Pass, r.Verdict, "%v %v", r.FirstDivergence, r.Reasons)
		require.Contains(t, printed(t, r), "\n           experts "+p.Manifest.Reference.Experts+"\n")

		r = run(t, c.Config, c, ranWith(t, golden, "experts_implementation", "eager"), verify.Options{Undiagnosed: true})
		require.Regexp(t, `\.mlp\.experts\.output$`, *r.FirstDivergence)

		w := get(t, c, expert)
		r = run(t, c.Config, replace(c, expert, scaled(t, w, 1.1, row(w, 3)...)), p, verify.Options{Undiagnosed: true})
		require.Regexp(t, `\.mlp\.experts\.output$`, *r.FirstDivergence)
	}
}

// TestUnknownRounding: where the reference rounds in a way that is not known, a stage that such a rounding explains is
// not judged, nor are the weights behind it; other stages are, and so is a stage that is further off.
func TestUnknownRounding(t *testing.T) {
	t.Parallel()
	const (
		routed  = "model.layers.1.mlp.experts.output"
		context = "model.layers.0.self_attn.o_proj.input"
	)
	eager := func(member string, value any) *pack.Pack { // of numbers that are not those of eager experts
		return must(pack.Open(rewritten(t, groupedBF16, func(_ string, m map[string]any) {
			m["reference"].(map[string]any)["experts_implementation"] = "eager"
			m["reference"].(map[string]any)[member] = value
		})))
	}
	for ran, test := range map[string]struct {
		golden *pack.Pack
		first  string
		reason string
	}{
		"experts": {eager("experts_implementation", "deepgemm"), routed, "the reference ran with experts_implementation " +
			"deepgemm, whose rounding errors are not known: record the pack with eager, grouped_mm or batched_mm"},
		"attention": {attending(t, sdpaBF16, "flex_attention"), context, "the reference ran with attn_implementation " +
			"flex_attention, whose rounding errors are not known: record the pack with eager or sdpa"},
	} {
		t.Run(ran, func(t *testing.T) {
			t.Parallel()
			path := groupedBF16
			if ran == "attention" {
				path = sdpaBF16
			}
			c, _ := open(t, path)
			r := run(t, c.Config, c, test.golden, verify.Options{})
			require.Equal(t, report.Inconclusive, r.Verdict, r.FirstDivergence)
			require.Equal(t, test.reason, r.Reasons[0])
			require.Contains(t, r.Reasons[1], "off by more than known roundings explain, but by no more than unknown ones may")
			require.Equal(t, report.UnknownRounding, checkOf(r, test.first).Status)
			require.Contains(t, r.Coverage.GoldenUnchecked, test.first)
			if test.first == routed {
				require.Contains(t, r.Coverage.WeightsUnchecked, "model.layers.1.mlp.experts.1.down_proj.weight")
			}

			name := "model.layers.1.self_attn.o_proj.weight" // a product
			w := get(t, c, name)
			wrong := replace(c, name, scaled(t, w, 1.02, row(w, 3)...))
			r = run(t, c.Config, wrong, test.golden, verify.Options{Undiagnosed: true})
			require.Equal(t, report.Fail, r.Verdict)
			require.Equal(t, "model.layers.1.self_attn.o_proj.output", *r.FirstDivergence)
		})
	}

	c, known := open(t, groupedBF16)
	const probed = "model.layers.1.block_sparse_moe.experts.0.w2.weight" // no token chose it
	x := get(t, c, probed)
	near := replace(c, probed, scaled(t, x, 1.02, row(x, 3)...))
	require.Equal(t, report.Fail, run(t, c.Config, near, known, verify.Options{Undiagnosed: true}).Verdict)
	r := run(t, c.Config, near, eager("experts_implementation", "deepgemm"), verify.Options{})
	require.Equal(t, report.UnknownRounding, checkOf(r, "model.layers.1.mlp.experts.0.probe.output").Status)

	const name = "model.layers.1.block_sparse_moe.experts.1.w2.weight"
	w := get(t, c, name)
	missing := replace(c, name, scaled(t, w, 0, every(w)...))
	r = run(t, c.Config, missing, eager("compiled", true), verify.Options{Undiagnosed: true})
	require.Equal(t, report.Fail, r.Verdict, "an expert that is missing is no rounding")
	require.Equal(t, routed, *r.FirstDivergence)
}

// TestFusedIsRecognised: a norm of a compiled reference that rounds once is reproduced: it passes, and a wrong channel of its
// weight fails. One that rounds as no norm does is left open.
func TestFusedIsRecognised(t *testing.T) {
	t.Parallel()
	const stage, before = "model.norm.output", "model.layers.4.output"
	c, _ := open(t, "v3/golden-bf16")
	weight := must(get(t, c, "model.norm.weight").Float32s(nil))
	once := func(x, r, w float64) float64 { return x * r * w }
	weightFirst := func(x, r, w float64) float64 { return to16(x*w) * r }
	for _, test := range []struct {
		of      func(x, r, w float64) float64
		member  string
		value   any
		verdict report.Verdict
		reason  string
	}{
		{once, "compiled", true, report.Pass, ""},
		{once, "replaced", map[string]string{"DeepseekV3RMSNorm": "kernels.norm"}, report.Pass, ""},
		{weightFirst, "compiled", true, report.Inconclusive, "the reference ran code that torch.compile compiled, which may leave " +
			"roundings out: record the pack without torch.compile"},
		{weightFirst, "replaced", map[string]string{"DeepseekV3RMSNorm": "kernels.norm"}, report.Inconclusive, "the reference ran " +
			"DeepseekV3RMSNorm with the code of kernels.norm, whose rounding errors are not known: record the pack without that"},
	} {
		p := ranWith(t, "v3/golden-bf16", test.member, test.value)
		stream := must(p.Float32s(before))
		p.Replaced = map[string]tensor.Tensor{stage: in16(p, stage, func(yield func(float64)) {
			for row := range slices.Chunk(stream, len(weight)) {
				squares := 0.0
				for _, v := range row {
					squares += float64(v) * float64(v)
				}
				for i, v := range row {
					yield(test.of(float64(v), 1/math.Sqrt(squares/float64(len(row))+c.Config.RMSNormEps), float64(weight[i])))
				}
			}
		})}
		o := verify.Options{Undiagnosed: true, Stages: []string{stage}}
		r := run(t, c.Config, c, p, o)
		require.Equal(t, test.verdict, r.Verdict, "%v %v", r.FirstDivergence, r.Reasons)
		wrong := run(t, c.Config, replace(c, "model.norm.weight", scaled(t, get(t, c, "model.norm.weight"), 1.02, 5)), p, o)
		if test.verdict == report.Pass {
			require.Contains(t, printed(t, r), "recognised: final-add-norm: rounded, once;")
			require.Equal(t, stage, *wrong.FirstDivergence)
		} else {
			require.Contains(t, r.Reasons, test.reason)
			require.Equal(t, report.UnknownRounding, checkOf(wrong, stage).Status)
		}
	}
}

// every lists the elements of w.
func every(w tensor.Tensor) (elements []int) {
	for r := range w.Shape[0] {
		elements = append(elements, row(w, r)...)
	}
	return elements
}

// TestFusedInFloat32: in float32 nothing is left out, and a pack of compiled code or of kernels passes.
func TestFusedInFloat32(t *testing.T) {
	t.Parallel()
	c, _ := open(t, "v3/golden-f32")
	replaced := map[string]string{"DeepseekV3RMSNorm": "liger"}
	for member, value := range map[string]any{"compiled": true, "replaced": replaced} {
		r := run(t, c.Config, c, ranWith(t, "v3/golden-f32", member, value), verify.Options{})
		require.Equal(t, report.Pass, r.Verdict, "%s: %v %v", member, r.FirstDivergence, r.Reasons)
	}
	r := run(t, c.Config, c, ranWith(t, "v3/golden-f32", "experts_implementation", "mine"), verify.Options{})
	require.Equal(t, []string{"the reference ran with experts_implementation mine, whose rounding errors are not known: " +
		"record the pack with eager, grouped_mm or batched_mm"}, r.Reasons)
	require.Contains(t, printed(t, r), "\n           experts mine\n")
}

// TestKeptWeights: a gate that the manifest names among the weights kept in float32 is not rounded, another one is.
func TestKeptWeights(t *testing.T) {
	t.Parallel()
	const bias, gate = "mlp.gate.e_score_correction_bias", "mlp.gate.weight"
	for _, golden := range []string{"v3/golden-bf16", "glm4-moe/golden-bf16"} {
		c, _ := open(t, golden)
		kept := func(kinds ...string) *pack.Pack {
			return must(pack.Open(rewritten(t, golden, func(_ string, m map[string]any) { m["kept_float32"] = kinds })))
		}
		const name = "model.layers.2.mlp.gate.weight"
		w := get(t, c, name)
		wide := tensor.Tensor{DType: tensor.F32, Shape: w.Shape}
		for i := 0; i < len(w.Data); i += 2 { // a number in BF16 is the upper half of one in F32
			wide.Data = append(wide.Data, 0, 0, w.Data[i], w.Data[i+1])
		}
		near := replace(c, name, scaled(t, wide, 1+0x1p-11, row(w, 3)...))
		for _, test := range []struct {
			golden *pack.Pack
			want   report.Verdict
		}{{kept(bias), report.Pass}, {kept(bias, gate), report.Fail}} {
			r := run(t, c.Config, c, test.golden, verify.Options{})
			require.Equal(t, report.Pass, r.Verdict, "a gate stored in BF16 is the same: %v %v", r.FirstDivergence, r.Reasons)
			r = run(t, c.Config, near, test.golden, verify.Options{Undiagnosed: true})
			require.Equal(t, test.want, r.Verdict, "%v %v", r.FirstDivergence, r.Reasons)
			if test.want == report.Fail {
				require.Equal(t, "model.layers.2.mlp.gate.logits", *r.FirstDivergence)
			}
		}
		_, err := verify.Run(context.Background(), c.Config, c, kept(bias, "self_attn.o_proj.weight"), verify.Options{})
		require.ErrorContains(t, err, "kept_float32: the reference kept self_attn.o_proj.weight in float32, which is not "+
			"computed for model_type "+c.Config.ModelType)
	}
}

// TestPrecisionOfACPU: the report says where float32 products of a CPU are not of the highest precision.
func TestPrecisionOfACPU(t *testing.T) {
	t.Parallel()
	c, _ := open(t, "v3/golden-f32")
	for precision, said := range map[string]bool{"highest": false, "medium": true} {
		p := ranWith(t, "v3/golden-f32", "precision", map[string]string{"float32_matmul_precision": precision})
		require.Equal(t, precision, p.Manifest.Reference.MatmulPrecision())
		shown := printed(t, run(t, c.Config, c, p, verify.Options{Layers: text.Spans{{0, 0}}}))
		require.Equal(t, said, strings.Contains(shown, "\n           float32_matmul_precision "+precision+"\n"), shown)
		require.NotContains(t, shown, "tf32")
	}
}
