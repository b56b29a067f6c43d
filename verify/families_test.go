package verify_test

import (
	"encoding/binary"
	"encoding/json"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nlpodyssey/safetensors"
	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/convert/checkpoint"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/verify"
)

// TestFusedCheckpointPasses: the same weights, fused, against the same packs.
func TestFusedCheckpointPasses(t *testing.T) {
	t.Parallel()
	c, err := checkpoint.Open(fixture("v3/checkpoint-fused"))
	require.NoError(t, err)
	defer c.Close()
	for _, pack := range []string{"v3/golden-f32", "v3/golden-bf16"} {
		_, p := open(t, pack)
		require.Equal(t, verify.Pass, run(t, c.Config, c, p, verify.Options{}).Verdict)
	}
}

// TestMistakesOfLatentModels change what the reference ran with, or what the
// checkpoint holds, in the ways that DeepSeek-V2 and V3 invite.
func TestMistakesOfLatentModels(t *testing.T) {
	t.Parallel()
	const yarn = `{"rope_type":"yarn","rope_theta":10000.0,"factor":%,"original_max_position_embeddings":32,"mscale":0,"mscale_all_dim":0}`
	for name, test := range map[string]struct{ pack, key, value, stage, cause string }{
		"groups ignored, V3":  {"v3/golden-f32", "topk_group,n_group", "1", "model.layers.2.mlp.gate.topk_idx", ""},
		"groups ignored, V2":  {"v2-group-yarn/golden-f32", "topk_method", `"greedy"`, "model.layers.1.mlp.gate.topk_idx", ""},
		"scaling missing, V3": {"v3/golden-f32", "routed_scaling_factor", "1.0", "model.layers.2.mlp.gate.topk_weight", "routed-scale"},
		"scaling missing, V2": {"v2-group-yarn/golden-f32", "routed_scaling_factor", "1.0", "model.layers.1.mlp.gate.topk_weight", "routed-scale"},
		"not normalised":      {"v3/golden-f32", "norm_topk_prob", "false", "model.layers.2.mlp.gate.topk_weight", "norm-topk"},
		"halves":              {"v3/golden-f32", "rope_interleave", "false", "model.layers.0.self_attn.o_proj.input", "rope-layout"},
		"halves, BF16":        {"v3/golden-bf16", "rope_interleave", "false", "model.layers.0.self_attn.o_proj.input", "rope-layout"},
		"mscale missing, V3":  {"v3-yarn/golden-f32", "rope_parameters", strings.Replace(yarn, "%", "40", 1), "model.layers.0.self_attn.o_proj.input", "yarn-mscale"},
		"mscale missing, V2":  {"v2-group-yarn/golden-f32", "rope_parameters", strings.Replace(yarn, "%", "4.0", 1), "model.layers.0.self_attn.o_proj.input", "yarn-mscale"},
		"yarn missing":        {"v3-yarn/golden-f32", "rope_parameters", `{"rope_type":"default","rope_theta":10000.0}`, "model.layers.0.self_attn.o_proj.input", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, p := open(t, test.pack)
			cfg := c.Config
			for key := range strings.SplitSeq(test.key, ",") {
				cfg = override(t, cfg, key, test.value)
			}
			requireFails(t, run(t, cfg, c, p, verify.Options{}), test.stage, test.cause)
		})
	}
}

func requireFails(t *testing.T, r *verify.Report, stage, cause string) {
	t.Helper()
	require.Equal(t, verify.Fail, r.Verdict)
	require.Equal(t, stage, *r.FirstDivergence)
	if cause == "" {
		require.Nil(t, r.Cause)
		return
	}
	require.NotNil(t, r.Cause)
	require.Equal(t, cause, r.Cause.ID, r.Cause.Text)
}

// TestScaleBlocksTransposed: the scales of a weight of four blocks, rows for columns.
func TestScaleBlocksTransposed(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v3-fp8/golden-f32")
	const name = "model.layers.1.self_attn.q_b_proj.weight_scale_inv"
	w := get(t, c, name)
	require.Equal(t, []int{2, 2}, w.Shape)
	for i := range 4 { // the block right of the first for the one below it
		w.Data[4+i], w.Data[8+i] = w.Data[8+i], w.Data[4+i]
	}
	requireFails(t, run(t, c.Config, replace(c, name, w), p, verify.Options{}), "model.layers.1.self_attn.q_b_proj.output", "")
}

// TestKeysPermutedForHalves: the rotary rows of kv_a_proj_with_mqa in the other layout.
func TestKeysPermutedForHalves(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v3/golden-f32")
	const name = "model.layers.1.self_attn.kv_a_proj_with_mqa.weight"
	w := get(t, c, name)
	var rows []byte
	for r := range 48 {
		from := r
		if i := r - 32; i >= 0 {
			from = 32 + i%8*2 + i/8
		}
		rows = append(rows, w.Row(from).Data...)
	}
	w.Data = rows
	requireFails(t, run(t, c.Config, replace(c, name, w), p, verify.Options{}), strings.TrimSuffix(name, "weight")+"output", "rope-permutation")
}

// TestBiasLeakedIntoTheWeights: a reference whose top-k weights hold the correction bias.
func TestBiasLeakedIntoTheWeights(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v3/golden-f32")
	const gate = "model.layers.2.mlp.gate."
	logits, err := p.Float32s(gate + "logits")
	require.NoError(t, err)
	idx, err := p.Ints(gate + "topk_idx")
	require.NoError(t, err)
	bias, err := get(t, c, gate+"e_score_correction_bias").Float32s(nil)
	require.NoError(t, err)
	leaked := make([]float32, len(idx))
	for token := range len(idx) / 4 {
		sum := 0.0
		for i := range 4 {
			e := idx[4*token+i]
			w := 1/(1+math.Exp(-float64(logits[16*token+e]))) + float64(bias[e])
			leaked[4*token+i], sum = float32(w), sum+w
		}
		for i := range 4 {
			leaked[4*token+i] = float32(float64(leaked[4*token+i]) / sum * 2.5)
		}
	}
	dir := rewritten(t, "v3/golden-f32", func(dir string, m map[string]any) {
		rewriteTensor(t, dir, m, "layer-002.safetensors", gate+"topk_weight", leaked)
	})
	requireFails(t, run(t, c.Config, c, must(verify.OpenPack(dir)), verify.Options{}), gate+"topk_weight", "bias-leak")
}

// rewriteTensor replaces a float32 tensor of a pack's file, and the file's hash.
func rewriteTensor(t *testing.T, dir string, m map[string]any, file, name string, values []float32) {
	t.Helper()
	path := filepath.Join(dir, file)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	parsed, err := safetensors.Deserialize(data)
	require.NoError(t, err)
	view, ok := parsed.Tensor(name)
	require.True(t, ok)
	for i, v := range values {
		binary.LittleEndian.PutUint32(view.Data()[4*i:], math.Float32bits(v))
	}
	require.NoError(t, os.WriteFile(path, data, 0o600))
	m["files"].(map[string]any)[file] = must(verify.HashFile(path))
}

// TestReferenceOverride: the rules of the other reference fail, and the report names
// the ones in force.
func TestReferenceOverride(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v2-lite/golden-f32")
	cfg := override(t, c.Config, "norm_topk_prob", "true")
	r := run(t, cfg, c, p, verify.Options{})
	require.Equal(t, verify.Pass, r.Verdict, "transformers' own V2 ignores norm_topk_prob")
	require.Equal(t, verify.Rules{Reference: config.Native, TopKScale: 1, MoELayerFreq: 1, IgnoresMoELayerFreq: true}, r.Rules)
	var text strings.Builder
	require.NoError(t, r.WriteText(&text))
	require.Contains(t, text.String(), "native reference: top-k weights not normalised, times 1; moe_layer_freq ignored")

	r = run(t, cfg, c, p, verify.Options{Reference: config.Remote})
	requireFails(t, r, "model.layers.1.mlp.gate.topk_weight", "norm-topk")
	require.Equal(t, verify.Rules{Reference: config.Remote, NormaliseTopK: true, TopKScale: 1, MoELayerFreq: 1}, r.Rules)
}

// TestRemoteSumsInTheOrderOfChoices: the published code's order of the routed sum agrees
// within the limits where nothing else differs.
func TestRemoteSumsInTheOrderOfChoices(t *testing.T) {
	t.Parallel()
	for _, pack := range []string{"v2-lite/golden-f32", "v3/golden-f32"} {
		c, p := open(t, pack)
		require.Equal(t, verify.Pass, run(t, c.Config, c, p, verify.Options{Reference: config.Remote}).Verdict, pack)
	}
}

// TestPredictionLayersAreReported, and not run.
func TestPredictionLayersAreReported(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v3/golden-f32")
	extra := mtp{c, map[string]tensor.Info{}}
	for s := range model.FamilyOf(c.Config).MTPSlots(c.Config) {
		extra.infos[s.Name] = s.Info(tensor.BF16)
	}
	r := run(t, c.Config, extra, p, verify.Options{})
	require.Equal(t, verify.Pass, r.Verdict)
	require.Equal(t, len(extra.infos), r.Coverage.OutsideForward)
	data, err := json.Marshal(r.Coverage)
	require.NoError(t, err)
	require.Contains(t, string(data), `"outside_forward":`)
}

// mtp is a source with more headers.
type mtp struct {
	weights.Source
	infos map[string]tensor.Info
}

func (m mtp) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for i := range m.Source.Tensors() {
			if !yield(i) {
				return
			}
		}
		for _, i := range m.infos {
			if !yield(i) {
				return
			}
		}
	}
}

// TestTiesBetweenGroups: with a router of zeros all groups tie, and the reference may
// choose any; which of ours the golden's stand for is found by their worth.
func TestTiesBetweenGroups(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v3/golden-f32")
	const gate = "model.layers.2.mlp.gate."
	zero := altered{Source: c, tensors: map[string]tensor.Tensor{}}
	for _, name := range []string{gate + "weight", gate + "e_score_correction_bias"} {
		w := get(t, c, name)
		clear(w.Data)
		zero.tensors[name] = w
	}
	tokens := p.Manifest.Tensors[gate+"topk_idx"].Shape[0]
	golden := func(experts ...int) *verify.Pack {
		return must(verify.OpenPack(rewritten(t, "v3/golden-f32", func(dir string, m map[string]any) {
			rewriteInts(t, dir, m, "layer-002.safetensors", gate+"topk_idx", slices.Repeat(experts, tokens))
			rewriteTensor(t, dir, m, "layer-002.safetensors", gate+"logits", make([]float32, 16*tokens))
		})))
	}
	verdict := func(src weights.Source, p *verify.Pack) verify.Verdict {
		for _, check := range run(t, c.Config, src, p, verify.Options{}).Checks {
			if check.Tensor == gate+"topk_idx" {
				return check.Verdict
			}
		}
		return "not checked"
	}
	require.Equal(t, verify.Pass, verdict(zero, golden(8, 9, 13, 15)))
	require.Equal(t, verify.Fail, verdict(zero, golden(0, 4, 8, 12)), "four groups, where two may be chosen")
	require.Equal(t, verify.Fail, verdict(c, golden(8, 9, 13, 15)), "the bias tells the groups apart")
}
