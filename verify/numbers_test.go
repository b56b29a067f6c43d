package verify_test

import (
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/model/weights"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// TestNumbersOfTheConfigAreSolvedFor_every: from the failed stage alone, without the pack's config, and no other cause is
// said unless it gives the same numbers.
func TestNumbersOfTheConfigAreSolvedFor_every(t *testing.T) {
	t.Parallel()
	const (
		kimi  = `{"factor": %f, "beta_fast": 1.0, "beta_slow": 1.0, "mscale": %m, "mscale_all_dim": %a, "original_max_position_embeddings": 16, "type": "yarn"}`
		yarn  = `{"beta_fast": %b, "beta_slow": 1, "factor": %f, "mscale": 1.0, "mscale_all_dim": %a, "original_max_position_embeddings": %o, "rope_theta": 10000.0, "rope_type": "yarn"}`
		four  = `{"type": "yarn", "factor": %f, "original_max_position_embeddings": 16, "beta_fast": 32, "beta_slow": 1}`
		theta = "rope-theta: the reference ran with "
	)
	with := func(form string, values ...string) string { return strings.NewReplacer(values...).Replace(form) }
	for i, c := range []struct{ pack, key, value, cause string }{
		{"v1-base/golden-f32", "rms_norm_eps", "3.7e-6", "norm-eps: the reference ran with rms_norm_eps 1e-06, here it is 3.7e-06"},
		{"v1-base/golden-bf16", "rms_norm_eps", "2e-6", "norm-eps: the reference ran with rms_norm_eps 1e-06, here it is 2e-06"},
		{"v3/golden-stages-f32", "rms_norm_eps", "2e-6", "norm-eps: the reference ran with rms_norm_eps 1e-06, here it is 2e-06"},
		{"v32/golden-bf16", "rms_norm_eps", "1e-6", "norm-eps: the reference ran with rms_norm_eps 0.0001, here it is 1e-06"},
		{"v4/golden-f32", "rms_norm_eps", "2e-5", "norm-eps: the reference ran with rms_norm_eps 1e-05, here it is 2e-05"},
		{"v4/golden-bf16", "rms_norm_eps", "1e-6", "norm-eps: the reference ran with rms_norm_eps 1e-05, here it is 1e-06"},
		{"v1-base/golden-f32", "rope_theta", "10100.0", theta + "rope_theta 10000, here it is 10100"},
		{"v2-lite/golden-bf16", "rope_parameters", `{"rope_theta": 20000.0, "rope_type": "default"}`, theta + "rope_theta 10000, here it is 20000"},
		{"v1-base/golden-inner-bf16", "rope_theta", "9000.0", theta + "rope_theta 10000, here it is 9000"},
		{"kimi-k2/golden-f32", "rope_theta", "1000000.0", theta + "rope_theta 50000, here it is 1e+06"},
		{"glm5/golden-f32", "rope_parameters", `{"rope_theta": 8000000.0, "rope_type": "default"}`, theta + "rope_theta 1e+06, here it is 8e+06"},
		{"v4/golden-f32", "compress_rope_theta", "161600.0", theta + "compress_rope_theta 160000, here it is 161600"},
		{"v4/golden-bf16", "compress_rope_theta", "40000.0", theta + "compress_rope_theta 160000, here it is 40000"},
		{"v4/golden-short-f32", "compress_rope_theta", "10000.0", theta + "compress_rope_theta 160000, here it is 10000"},
		{"kimi-k2/golden-f32", "rope_scaling", with(kimi, "%f", "64.0", "%m", "1.0", "%a", "1.0"), "rope-scaling: the reference ran with rope_scaling.factor 32, here it is 64"},
		{"kimi-k2/golden-f32", "rope_scaling", with(kimi, "%f", "32.0", "%m", "0.5", "%a", "1.0"), "yarn-mscale: the reference ran with rope_scaling.mscale 1, here it is 0.5"},
		{"kimi-k2/golden-f32", "rope_scaling", with(kimi, "%f", "32.0", "%m", "1.0", "%a", "0.707"), "yarn-mscale: the reference ran with rope_scaling.mscale_all_dim 1, here it is 0.707"},
		{"v3-yarn/golden-f32", "rope_parameters", with(yarn, "%b", "32", "%f", "20.0", "%a", "1.0", "%o", "32"), "rope-scaling: the reference ran with rope_scaling.factor 40, here it is 20"},
		{"v3-yarn/golden-f32", "rope_parameters", with(yarn, "%b", "32", "%f", "40.0", "%a", "1.0", "%o", "128"), "rope-scaling: the reference ran with rope_scaling.original_max_position_embeddings 32, here it is 128 | " +
			"rope-scaling: the reference ran with rope_scaling.beta_slow 4, here it is 1"},
		{"v4/golden-f32", "rope_scaling", with(four, "%f", "32"), "rope-scaling: the reference ran with rope_scaling.factor 16, here it is 32"},
		{"v4/golden-bf16", "rope_scaling", with(four, "%f", "32"), "rope-scaling: the reference ran with rope_scaling.factor 16, here it is 32"},
		{"v1-rope-linear-tied-bias/golden-f32", "rope_scaling", `{"type": "linear", "factor": 3.0}`, "rope-scaling: the reference ran with rope_scaling.factor 4, here it is 3"},
		{"v1-rope-linear-tied-bias/golden-f32", "rope_scaling", "null", "rope-scaling: config.json has no rope_scaling, and the reference ran as with linear, factor 4"},
		{"v1-rope-dynamic/golden-f32", "rope_scaling", "null", "rope-scaling: config.json has no rope_scaling, and the reference ran as with dynamic, factor 2"},
		{"kimi-k2/golden-f32", "routed_scaling_factor", "1.0", "routed-scale: the reference ran with routed_scaling_factor 2.827, here it is 1"},
		{"v4/golden-bf16", "routed_scaling_factor", "2.75", "routed-scale: the reference ran with routed_scaling_factor 1.5, here it is 2.75"},
		{"glm4-moe-lite/golden-f32", "routed_scaling_factor", "2.5", "routed-scale: the reference ran with routed_scaling_factor 1.8, here it is 2.5"},
	} {
		if i%4 > 0 && !configtest.Every(t) {
			continue
		}
		t.Run(c.pack+" "+c.cause, func(t *testing.T) {
			t.Parallel()
			src, p := open(t, c.pack)
			p.Manifest.Config = nil
			r := run(t, override(t, src.Config, c.key, c.value), src, p, verify.Options{})
			require.Equal(t, report.Fail, r.Verdict)
			require.Equal(t, c.cause, strings.Join(inWords(r.Causes), " | "))
		})
	}
}

// inWords are causes as the report prints them.
func inWords(causes []report.Cause) (words []string) {
	for _, c := range causes {
		words = append(words, c.String())
	}
	return words
}

// TestTheConfigOfThePackIsTriedFirst: a value that no list has and nobody would write, and several that differ
// together.
func TestTheConfigOfThePackIsTriedFirst(t *testing.T) {
	t.Parallel()
	src, p := open(t, "v1-base/golden-f32")
	for _, c := range []struct {
		recorded, here map[string]string // beside the config that the pack was recorded from
		cause          string
	}{
		{map[string]string{"rms_norm_eps": "1e-6"}, map[string]string{"rms_norm_eps": "1.23456e-6"}, "norm-eps: the reference ran with rms_norm_eps 1e-06, here it is 1.23456e-06"},
		{nil, map[string]string{"norm_topk_prob": "true"}, "norm-topk: the reference ran with norm_topk_prob false, here it is true"},
		{nil, map[string]string{"rope_theta": "20000.0", "rope_scaling": `{"type": "linear", "factor": 2.0}`}, "config-values: the reference ran with rope_theta 10000, here it is 20000; rope_scaling null, here it is " +
			`{"type": "linear", "factor": 2}`},
	} {
		with := func(values map[string]string) []byte {
			changed := src.Config
			for key, value := range values {
				changed = must(changed.Override(map[string]jsontext.Value{key: jsontext.Value(value)}))
			}
			return changed.JSON()
		}
		p.Manifest.Config = with(c.recorded)
		fields := map[string]jsontext.Value{}
		for key, value := range c.here {
			fields[key] = jsontext.Value(value)
		}
		r := run(t, must(src.Config.Override(fields)), src, p, verify.Options{})
		require.NotNil(t, r.Cause, c.cause)
		require.Contains(t, inWords(r.Causes), c.cause)
	}
}

// TestNumbersThatExplainAPartAreNoCause: what would make the first stage right is a hint where later stages show that
// it is something else.
func TestNumbersThatExplainAPartAreNoCause(t *testing.T) {
	t.Parallel()
	times := func(golden, tensor string, by float32) *pack.Pack {
		p := must(pack.Open(fixture(golden)))
		x := append([]float32{}, must(p.Float32s(tensor))...)
		for i := range x {
			x[i] *= by
		}
		return must(pack.Open(rewritten(t, golden, func(dir string, m map[string]any) { rewrite(t, dir, m, tensor, x) })))
	}
	const embedding = "model.embed_tokens."
	for name, c := range map[string]struct {
		golden string
		pack   *pack.Pack
		alter  func(src weights.Source) weights.Source
		not    string
		hint   string
	}{
		"embeddings × √hidden_size": {"v1-base/golden-f32", times("v1-base/golden-f32", embedding+"output", 1./8), func(src weights.Source) weights.Source {
			w := get(t, src, embedding+"weight")
			every := make([]int, w.Len())
			for i := range every {
				every[i] = i
			}
			return replace(src, embedding+"weight", scaled(t, w, 1./8, every...))
		}, "norm-eps", ""},
		"scale in the sum, V3": {"v3/golden-f32", times("v3/golden-f32", "model.layers.2.mlp.gate.topk_weight", 1/2.5), nil, "routed-scale",
			"routed-scale: the reference ran with routed_scaling_factor 1, here it is 2.5 (explains 1 of 2 failing stages of the layer)"},
		"scale in the sum, V4": {"v4/golden-f32", times("v4/golden-f32", "model.layers.0.mlp.gate.topk_weight", 1/1.5), nil, "routed-scale",
			"routed-scale: the reference ran with routed_scaling_factor 1, here it is 1.5 (explains 1 of 2 failing stages of the layer)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkpoint, _ := open(t, c.golden)
			var src weights.Source = checkpoint
			if c.alter != nil {
				src = c.alter(src)
			}
			r := run(t, checkpoint.Config, src, c.pack, verify.Options{})
			require.Equal(t, report.Fail, r.Verdict)
			for _, cause := range r.Causes {
				require.NotEqual(t, c.not, cause.ID, cause.Text)
			}
			require.Contains(t, strings.Join(inWords(r.Hints), "\n"), c.hint)
		})
	}
}
