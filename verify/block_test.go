package verify_test

import (
	"context"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// blockFamilies have packs of mixtures alone.
var blockFamilies = []string{"afmoe", "bailing-hybrid", "kimi-linear", "mimo-v2-flash", "flint", "ling-1", "qwen3-next"}

// TestBlocksPass: of a family whose attention is not computed the mixtures pass, and the verdict says that it is of these.
func TestBlocksPass(t *testing.T) {
	for _, family := range blockFamilies {
		for _, golden := range []string{"/golden-f32", "/golden-bf16"} {
			c, p := open(t, "blocks/"+family+golden)
			r := run(t, c.Config, c, p, verify.Options{})
			assert.Equal(t, report.Pass, r.Verdict, family+golden)
			layers := p.Manifest.Block.Layers
			assert.Equal(t, "the MLPs of "+report.LayersText(layers)+" of 3, attention is not computed", r.Scope.Text, family)
			assert.Equal(t, layers, r.Scope.Blocks, family)
			assert.Len(t, r.Scope.Unread, 3-len(layers), family)
			assert.False(t, r.Scope.Whole || r.Scope.Head || r.Scope.Embedding, family)
			assert.Equal(t, len(p.Manifest.Tensors)-1-len(layers), r.Coverage.GoldenChecked, family) // not tokens and inputs
		}
	}
}

// TestBlocksFail: a mistake in a mixture fails at its stage, and its cause is named.
func TestBlocksFail(t *testing.T) {
	for family, x := range map[string]struct{ key, value, stage, cause string }{
		"kimi-linear":    {"moe_renormalize", "false", "mlp.gate.topk_weight", "norm-topk"},
		"bailing-hybrid": {"topk_group", "4", "mlp.gate.topk_idx", "topk-group"},
		"mimo-v2-flash":  {"routed_scaling_factor", "1.0", "mlp.gate.topk_weight", "routed-scale"},
		"flint":          {"norm_topk_prob", "false", "mlp.gate.topk_weight", "norm-topk"},
		"qwen3-next":     {"norm_topk_prob", "false", "mlp.gate.topk_weight", "norm-topk"},
		"ling-1":         {"norm_topk_prob", "false", "mlp.gate.topk_weight", "norm-topk"},
		"afmoe":          {"rms_norm_eps", "0.01", "post_mlp_layernorm.output", "norm-eps"},
	} {
		c, p := open(t, "blocks/"+family+"/golden-f32")
		changed, err := c.Config.Override(map[string]jsontext.Value{x.key: jsontext.Value(x.value)})
		require.NoError(t, err)
		r := run(t, changed, c, p, verify.Options{})
		require.Equal(t, report.Fail, r.Verdict, family)
		assert.Equal(t, pack.StageOf(p.Manifest.Block.Layers[0], x.stage), *r.FirstDivergence, family)
		require.NotEmpty(t, r.Causes, family)
		assert.Equal(t, x.cause, r.Causes[0].ID, family)
	}
}

// TestBlocksAreNotRunWhole: chained mode, and a pack without what a mixture takes, are errors.
func TestBlocksAreNotRunWhole(t *testing.T) {
	c, p := open(t, "blocks/kimi-linear/golden-f32")
	_, err := verify.Run(context.Background(), c.Config, c, p, verify.Options{Mode: report.Chained})
	require.ErrorContains(t, err, "attention is not computed for it")
	delete(p.Manifest.Tensors, pack.StageOf(2, pack.AttentionNorm))
	_, err = verify.Run(context.Background(), c.Config, c, p, verify.Options{})
	require.ErrorContains(t, err, "layer 2: what its MLP takes is not there: model.layers.2.post_attention_layernorm.output")
}
