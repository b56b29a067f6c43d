package verify_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// sdpaBF16 is of transformers' sdpa attention, with padding.
const sdpaBF16 = "v3/golden-sdpa-bf16"

// attending returns a pack whose manifest names another implementation of attention.
func attending(t *testing.T, golden, implementation string) *pack.Pack {
	t.Helper()
	return must(pack.Open(rewritten(t, golden, func(_ string, m map[string]any) {
		m["reference"].(map[string]any)["attn_implementation"] = implementation
	})))
}

// TestFusedAttention: a right reference with sdpa passes, and would fail if its roundings were
// those of eager attention; a wrong one fails.
func TestFusedAttention(t *testing.T) {
	t.Parallel()
	const context = "model.layers.0.self_attn.o_proj.input"
	c, p := open(t, sdpaBF16)
	r := run(t, c.Config, c, p, verify.Options{})
	require.Equal(t, report.Pass, r.Verdict, "%v %v", r.FirstDivergence, r.Reasons)
	require.Equal(t, "sdpa", r.Golden.Reference.Attention)
	require.Contains(t, printed(t, r), "\n           attention sdpa\n")
	require.Contains(t, html(t, r), "attention sdpa")

	r = run(t, c.Config, c, attending(t, sdpaBF16, "eager"), verify.Options{Undiagnosed: true})
	require.Equal(t, context, *r.FirstDivergence, "sdpa leaves roundings out")

	changed := override(t, c.Config, "rope_parameters", `{"rope_theta": 20000, "rope_type": "default"}`)
	r = run(t, changed, c, p, verify.Options{Undiagnosed: true})
	require.Equal(t, report.Fail, r.Verdict)
	const name = "model.layers.1.self_attn.kv_b_proj.weight"
	w := get(t, c, name)
	r = run(t, c.Config, replace(c, name, scaled(t, w, 1.1, row(w, 3)...)), p, verify.Options{Undiagnosed: true})
	require.Equal(t, report.Fail, r.Verdict)
}

// TestSdpaThatMayRoundScores: of a trained model, whose scores are large, a pack of rounded scores is
// inconclusive as one of sdpa, and the report says what to do.
func TestSdpaThatMayRoundScores(t *testing.T) {
	t.Parallel()
	c, _ := open(t, "v3-trained/golden-bf16")
	r := run(t, c.Config, c, attending(t, "v3-trained/golden-bf16", "sdpa"), verify.Options{})
	require.Equal(t, report.Inconclusive, r.Verdict, r.FirstDivergence)
	require.Equal(t, []string{"4 stages may be off by so much for rounding alone that they prove nothing, the first is model.layers.0.self_attn.o_proj.input; " +
		"sdpa may round the scores of attention or not: record the pack with eager attention (--attn eager)"}, r.Reasons)
}

// TestOtherAttention is inconclusive, by name; what says nothing, or eager, is eager.
func TestOtherAttention(t *testing.T) {
	t.Parallel()
	c, _ := open(t, "v3/golden-f32")
	for name, want := range map[string]report.Verdict{"": report.Pass, "eager": report.Pass, "sdpa": report.Pass, "flash_attention_2": report.Inconclusive, "flex_attention": report.Inconclusive} {
		r := run(t, c.Config, c, attending(t, "v3/golden-f32", name), verify.Options{})
		require.Equal(t, want, r.Verdict, name)
		if want == report.Inconclusive {
			require.Equal(t, []string{"the reference ran with attn_implementation " + name + ", whose rounding errors are not known: record the pack with eager or sdpa"}, r.Reasons)
		}
	}
}
