package verify_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// TestPackOfAnotherModel is refused before anything is computed.
func TestPackOfAnotherModel(t *testing.T) {
	t.Parallel()
	holding := func(golden, checkpoint string) *pack.Pack {
		return must(pack.Open(rewritten(t, golden, func(_ string, m map[string]any) { m["config"] = configOf(t, checkpoint) })))
	}
	golden := func(name string) *pack.Pack { return must(pack.Open(fixture(name))) }
	for name, test := range map[string]struct {
		checkpoint string
		pack       *pack.Pack
		cause      string
	}{
		"V1's for V3": {"v3", golden("v1-base/golden-f32"), "DeepseekForCausalLM recorded it, the class of model_type deepseek; the checkpoint's model_type is deepseek_v3"},
		"V3's for V2": {"v2-lite", golden("v3/golden-f32"), "DeepseekV3ForCausalLM recorded it, the class of model_type deepseek_v3; the checkpoint's model_type is deepseek_v2"},
		"an unknown class": {"v3", must(pack.Open(rewritten(t, "v2-lite/golden-f32", func(_ string, m map[string]any) {
			m["reference"].(map[string]any)["model"], m["config"] = "MyForCausalLM", configOf(t, "v2-lite")
		}))), "it was recorded from model_type deepseek_v2; the checkpoint's is deepseek_v3"},
		"fewer experts": {"v1-base", holding("v1-base/golden-f32", "v1-router-ties"), "it was recorded from weights of other shapes: num_hidden_layers differs (pack "},
		"another width": {"v1-base", golden("v1-16b-slice/golden-f32"), "is 2048 wide in the pack, and 64 here, as model.layers.0.input_layernorm.weight [64] makes it"},
		"other experts": {"v3-mtp", must(pack.Open(rewritten(t, "v3/golden-f32", func(_ string, m map[string]any) {
			delete(m, "config")
		}))), " wide in the pack, and "},
		"a broken config": {"v1-base", must(pack.Open(rewritten(t, "v1-base/golden-f32", func(_ string, m map[string]any) {
			m["config"] = map[string]any{"model_type": "deepseek", "hidden_size": -1}
		}))), "manifest.json: config: hidden_size: -1 is not in"},
	} {
		c, _ := open(t, test.checkpoint+"/golden-f32")
		_, err := verify.Run(context.Background(), c.Config, c, test.pack, verify.Options{})
		require.ErrorContains(t, err, test.cause, name)
	}
}

// configOf is a fixture's config.json.
func configOf(t *testing.T, name string) (c map[string]any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(fixture(name), "checkpoint", "config.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &c))
	return c
}

// TestPackOfAnotherConfig: where the pack holds its config, the keys that differ are listed
// whatever the verdict, and a failure begins with those that change what is computed.
func TestPackOfAnotherConfig(t *testing.T) {
	t.Parallel()
	c, _ := open(t, "v1-base/golden-f32")
	recorded := func(key string, value any) *pack.Pack {
		return must(pack.Open(rewritten(t, "v1-base/golden-f32", func(_ string, m map[string]any) {
			config := configOf(t, "v1-base")
			config[key] = value
			m["config"] = config
		})))
	}
	scaling := map[string]any{"type": "linear", "factor": 2.5}
	p := recorded("rope_scaling", scaling)
	r := run(t, override(t, c.Config, "rms_norm_eps", "1e-5"), c, p, verify.Options{})
	const origin = `the pack was recorded from another checkpoint or config: rms_norm_eps differs (pack 0.000001, here 0.00001), rope_scaling differs (pack {"type": "linear", "factor": 2.5}, here null)`
	require.Equal(t, origin, r.Config.Origin)
	has(t, printed(t, r), "\n\npack       "+origin+"\nDIVERGES ")
	has(t, printed(t, r), "\nconfig     rms_norm_eps 0.00001 as computed here, the pack's config has 0.000001\n")
	has(t, html(t, r), "<strong>FAIL</strong> the pack was recorded from another checkpoint or config: rms_norm_eps differs")
	has(t, junit(t, r), `<failure type="fail" message="the pack was recorded from another checkpoint or config: rms_norm_eps differs (pack 0.000001, here 0.00001), rope_scaling`)

	r = run(t, c.Config, c, recorded("torch_dtype", "float16"), verify.Options{})
	require.Equal(t, report.Pass, r.Verdict)
	require.Empty(t, r.Config.Origin)
	require.Equal(t, []pack.Difference{{Key: "torch_dtype", Checkpoint: `"bfloat16"`, Pack: `"float16"`}}, r.Config.Differ)
	has(t, printed(t, r), `config     torch_dtype "bfloat16", the pack's config has "float16"`)

	r = run(t, c.Config, c, recorded("torch_dtype", "bfloat16"), verify.Options{ConfigHash: "sha256:of another"})
	require.Empty(t, r.Config.Differ)
	require.False(t, r.Config.Unknown, "the values are known to be the same")
}

// TestPackWithoutItsConfig: that the keys cannot be compared is said, of a config.json with another
// hash.
func TestPackWithoutItsConfig(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-f32")
	for hash, unknown := range map[string]bool{"": false, p.Manifest.Checkpoint["config.json"]: false, "sha256:of another": true} {
		r := run(t, override(t, c.Config, "rms_norm_eps", "1e-5"), c, p, verify.Options{ConfigHash: hash, Undiagnosed: true})
		require.Equal(t, unknown, r.Config.Unknown)
		require.Equal(t, unknown, r.Config.Origin != "")
		if unknown {
			has(t, printed(t, r), "\nconfig     config.json is not the one that the pack was recorded from; which keys differ is not known")
			has(t, printed(t, r), "\npack       the pack was recorded from another config.json, by its hash, and does not hold that: which keys differ is not known\nDIVERGES ")
		}
	}
}

// TestPackWhoseConfigIsNotItsReferences: the goldens are those of the checkpoint's config.json, and the pack's config
// says otherwise. With the hash of that config.json, or with the shape of a choice, the pack contradicts itself;
// without them there is no verdict.
func TestPackWhoseConfigIsNotItsReferences(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-f32")
	for key, test := range map[string]struct {
		value  any
		words  string
		alone  string // the error without the hash; "" is an inconclusive run
		passes bool   // it changes nothing that a verdict is about
	}{
		"rms_norm_eps":        {1e-5, "rms_norm_eps differs (pack 0.00001, here 0.000001)", "", false},
		"rope_theta":          {5e4, "rope_theta differs (pack 50000, here 10000)", "", false},
		"norm_topk_prob":      {true, "norm_topk_prob differs (pack true, here false)", "", false},
		"num_experts_per_tok": {3, "", "manifest.json contradicts itself: config has num_experts_per_tok 3, model.layers.1.mlp.gate.topk_idx has the shape [34 4]", false},
		"aux_loss_alpha":      {0.5, "aux_loss_alpha differs (pack 0.5, here 0.001)", "", true},
		"torch_dtype":         {"float16", "", "", true},
	} {
		other := must(pack.Open(rewritten(t, "v1-base/golden-f32", func(_ string, m map[string]any) {
			config := configOf(t, "v1-base")
			config[key] = test.value
			m["config"] = config
		})))
		_, err := verify.Run(context.Background(), c.Config, c, other, verify.Options{ConfigHash: p.Manifest.Checkpoint["config.json"]})
		switch {
		case test.alone != "":
			require.ErrorContains(t, err, test.alone, key)
		case test.words != "":
			require.ErrorContains(t, err, "manifest.json contradicts itself: config is not the config.json that checkpoint has the hash of: "+test.words, key)
		default:
			require.NoError(t, err, key)
		}
		r, err := verify.Run(context.Background(), c.Config, c, other, verify.Options{ConfigHash: "sha256:of another"})
		switch {
		case test.alone != "":
			require.ErrorContains(t, err, test.alone, key)
		case test.passes:
			require.NoError(t, err, key)
			require.Equal(t, report.Pass, r.Verdict, key)
		default:
			require.NoError(t, err, key)
			require.Equal(t, report.Inconclusive, r.Verdict, key)
			require.Len(t, r.Reasons, 1)
			require.Regexp(t, "^config.json has "+key+" .*, the pack's config has .*: correct config.json, or record the pack from this checkpoint$", r.Reasons[0])
		}
	}
}
