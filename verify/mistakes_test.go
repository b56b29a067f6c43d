package verify_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

const moe1 = "model.layers.1.mlp."

// TestMistakesAreFoundAndNamed alters a good checkpoint or its config in one way each,
// and demands the stage at fault and the name of the mistake.
func TestMistakesAreFoundAndNamed(t *testing.T) {
	t.Parallel()
	type mistake struct {
		name, pack, stage, cause string
		alter                    func(t *testing.T, c *config.Config, src weights.Source) (*config.Config, weights.Source)
	}
	altering := func(f func(t *testing.T, src weights.Source) altered) func(*testing.T, *config.Config, weights.Source) (*config.Config, weights.Source) {
		return func(t *testing.T, c *config.Config, src weights.Source) (*config.Config, weights.Source) {
			return c, f(t, src)
		}
	}
	setting := func(key, value string) func(*testing.T, *config.Config, weights.Source) (*config.Config, weights.Source) {
		return func(t *testing.T, c *config.Config, src weights.Source) (*config.Config, weights.Source) {
			return override(t, c, key, value), src
		}
	}
	const base, bf16 = "v1-base/golden-f32", "v1-base/golden-bf16"
	for _, m := range []mistake{
		{"two experts swapped", base, moe1 + "experts.output", "experts-swapped", altering(func(t *testing.T, src weights.Source) altered {
			e := moe1 + "experts."
			return swap(t, src, e+"3.gate_proj.weight", e+"9.gate_proj.weight", e+"3.up_proj.weight", e+"9.up_proj.weight", e+"3.down_proj.weight", e+"9.down_proj.weight")
		})},
		{"two experts swapped, bf16", bf16, moe1 + "experts.output", "experts-swapped", altering(func(t *testing.T, src weights.Source) altered {
			e := moe1 + "experts."
			return swap(t, src, e+"3.gate_proj.weight", e+"9.gate_proj.weight", e+"3.up_proj.weight", e+"9.up_proj.weight", e+"3.down_proj.weight", e+"9.down_proj.weight")
		})},
		{"one expert's up_proj swapped with another's", base, moe1 + "experts.output", "", altering(func(t *testing.T, src weights.Source) altered {
			return swap(t, src, moe1+"experts.3.up_proj.weight", moe1+"experts.9.up_proj.weight")
		})},
		{"gate and up swapped", base, "model.layers.0.mlp.output", "gate-up-swapped", altering(func(t *testing.T, src weights.Source) altered {
			return swap(t, src, "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight")
		})},
		{"gate and up of the shared experts swapped", base, moe1 + "shared_experts.output", "gate-up-swapped", altering(func(t *testing.T, src weights.Source) altered {
			return swap(t, src, moe1+"shared_experts.gate_proj.weight", moe1+"shared_experts.up_proj.weight")
		})},
		{"experts in the order of their names", base, moe1 + "experts.output", "expert-order",
			func(t *testing.T, c *config.Config, src weights.Source) (*config.Config, weights.Source) {
				return c, lexicographic(t, src, c)
			}},
		{"q permuted for interleaved RoPE", base, "model.layers.2.self_attn.q_proj.output", "rope-permutation", altering(func(t *testing.T, src weights.Source) altered {
			name := "model.layers.2.self_attn.q_proj.weight"
			return replace(src, name, interleave(get(t, src, name), 16))
		})},
		{"v transposed", base, "model.layers.0.self_attn.v_proj.output", "transposed", altering(func(t *testing.T, src weights.Source) altered {
			name := "model.layers.0.self_attn.v_proj.weight"
			w := get(t, src, name)
			for r := range 64 {
				for c := range 64 {
					copy(w.Data[2*(64*r+c):2*(64*r+c)+2], must(src.Tensor(name)).Data[2*(64*c+r):])
				}
			}
			return replace(src, name, w)
		})},
		{"q and k swapped", base, "model.layers.1.self_attn.q_proj.output", "projections-exchanged", altering(func(t *testing.T, src weights.Source) altered {
			return swap(t, src, "model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.k_proj.weight")
		})},
		{"eps 1e-5", base, "model.layers.0.input_layernorm.output", "norm-eps", setting("rms_norm_eps", "1e-5")},
		{"eps 1e-5, bf16", bf16, "model.layers.0.input_layernorm.output", "norm-eps", setting("rms_norm_eps", "1e-5")},
		{"norm_topk_prob flipped", base, moe1 + "gate.topk_weight", "norm-topk", setting("norm_topk_prob", "true")},
		{"norm_topk_prob flipped back", "v1-gqa-norm-freq2/golden-f32", "model.layers.0.mlp.gate.topk_weight", "norm-topk", setting("norm_topk_prob", "false")},
		{"rope_theta 1 % off", base, "model.layers.0.self_attn.o_proj.input", "rope-theta", setting("rope_theta", "10100.0")},
		{"rope scaled", base, "model.layers.0.self_attn.o_proj.input", "rope-scaling", setting("rope_scaling", `{"type":"linear","factor":2.0}`)},
		{"one expert zeroed", base, moe1 + "experts.output", "", altering(func(t *testing.T, src weights.Source) altered {
			name := moe1 + "experts.5.down_proj.weight"
			w := get(t, src, name)
			clear(w.Data)
			return replace(src, name, w)
		})},
		{"router rows rotated", base, moe1 + "gate.logits", "router-rows", altering(func(t *testing.T, src weights.Source) altered {
			return replace(src, moe1+"gate.weight", rotateRows(get(t, src, moe1+"gate.weight")))
		})},
		{"NaN in a weight", base, "model.layers.3.self_attn.o_proj.output", "weight-not-finite", altering(func(t *testing.T, src weights.Source) altered {
			name := "model.layers.3.self_attn.o_proj.weight"
			w := get(t, src, name)
			w.Data[2*(64*10+7)], w.Data[2*(64*10+7)+1] = 0xc0, 0x7f
			return replace(src, name, w)
		})},
		{"one weight of the head changed", base, "lm_head.output", "weight-elements", altering(func(t *testing.T, src weights.Source) altered {
			w := get(t, src, "lm_head.weight")
			w.Data[1] ^= 0x80
			return replace(src, "lm_head.weight", w)
		})},
		{"embedding rows rotated", base, "model.embed_tokens.output", "embedding-rows", altering(func(t *testing.T, src weights.Source) altered {
			return replace(src, "model.embed_tokens.weight", rotateRows(get(t, src, "model.embed_tokens.weight")))
		})},
	} {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			c, p := open(t, m.pack)
			cfg, src := m.alter(t, c.Config, c)
			r := run(t, cfg, src, p, verify.Options{})
			require.Equal(t, report.Fail, r.Verdict)
			require.Equal(t, m.stage, *r.FirstDivergence)
			if m.cause == "" {
				require.Nil(t, r.Cause)
			} else {
				require.NotNil(t, r.Cause)
				require.Equal(t, m.cause, r.Cause.ID, r.Cause.Text)
			}
			var text strings.Builder
			require.NoError(t, r.WriteText(&text))
			require.Contains(t, text.String(), m.stage)
			_, err := json.Marshal(r)
			require.NoError(t, err)
		})
	}
}

// TestMistakesOfTheAuxiliaryLoss change what config_overrides says the reference ran
// with: the auxiliary loss is the first to differ, and the gradients of the router
// differ with it.
func TestMistakesOfTheAuxiliaryLoss(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		pack, key string
		value     any
		cause     string
	}{
		"sequence form for batch form": {"v1-base/golden-train-batch", "seq_aux", true, "aux-loss-form"},
		"batch form for sequence form": {"v1-base/golden-train-seq", "seq_aux", false, "aux-loss-form"},
		"alpha doubled":                {"v1-base/golden-train-seq", "aux_loss_alpha", 0.1, "aux-loss-alpha"},
		// 17 tokens × 4 choices / 16 experts = 4.25
		"counts not divided": {"v1-base/golden-train-seq", "aux_loss_alpha", 0.05 / 4.25, "aux-loss-counts"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := rewritten(t, test.pack, func(_ string, m map[string]any) {
				m["config_overrides"].(map[string]any)[test.key] = test.value
			})
			c, _ := open(t, test.pack)
			r := run(t, c.Config, c, must(pack.Open(dir)), verify.Options{})
			require.Equal(t, report.Fail, r.Verdict)
			require.Equal(t, "model.layers.1.mlp.gate.aux_loss", *r.FirstDivergence)
			require.Equal(t, test.cause, r.Cause.ID, r.Cause.Text)
			for _, check := range r.Checks {
				switch check.Tensor {
				case "model.layers.3.mlp.gate.weight.grad", "model.layers.3.mlp.gate.aux_loss":
					require.Equal(t, report.Fail, check.Verdict, check.Tensor)
				case "loss", "model.layers.3.mlp.experts.0.up_proj.weight.grad":
					require.Equal(t, report.Pass, check.Verdict, check.Tensor)
				}
			}
		})
	}
}

// TestMistakesOfLatentModels_every change what the reference ran with, or what the
// checkpoint holds, in the ways that DeepSeek-V2 and V3 invite.
func TestMistakesOfLatentModels_every(t *testing.T) {
	t.Parallel()
	const yarn = `{"rope_type":"yarn","rope_theta":10000.0,"factor":%,"original_max_position_embeddings":32,"mscale":0,"mscale_all_dim":0}`
	mistakes := map[string]struct{ pack, key, value, stage, cause string }{
		"groups ignored, V3":  {"v3/golden-f32", "topk_group,n_group", "1", "model.layers.2.mlp.gate.topk_idx", "group-mask"},
		"groups ignored, V2":  {"v2-group-yarn/golden-f32", "topk_method", `"greedy"`, "model.layers.1.mlp.gate.topk_idx", "group-mask"},
		"scaling missing, V3": {"v3/golden-f32", "routed_scaling_factor", "1.0", "model.layers.2.mlp.gate.topk_weight", "routed-scale"},
		"scaling missing, V2": {"v2-group-yarn/golden-f32", "routed_scaling_factor", "1.0", "model.layers.1.mlp.gate.topk_weight", "routed-scale"},
		"not normalised":      {"v3/golden-f32", "norm_topk_prob", "false", "model.layers.2.mlp.gate.topk_weight", "norm-topk"},
		"halves":              {"v3/golden-f32", "rope_interleave", "false", "model.layers.0.self_attn.o_proj.input", "rope-layout"},
		"halves, BF16":        {"v3/golden-bf16", "rope_interleave", "false", "model.layers.0.self_attn.o_proj.input", "rope-layout"},
		"mscale missing, V3":  {"v3-yarn/golden-f32", "rope_parameters", strings.Replace(yarn, "%", "40", 1), "model.layers.0.self_attn.o_proj.input", "yarn-mscale"},
		"mscale missing, V2":  {"v2-group-yarn/golden-f32", "rope_parameters", strings.Replace(yarn, "%", "4.0", 1), "model.layers.0.self_attn.o_proj.input", "yarn-mscale"},
		"yarn missing":        {"v3-yarn/golden-f32", "rope_parameters", `{"rope_type":"default","rope_theta":10000.0}`, "model.layers.0.self_attn.o_proj.input", "rope-scaling"},
	}
	for i, name := range slices.Sorted(maps.Keys(mistakes)) {
		test := mistakes[name]
		if i%2 > 0 && !configtest.Every(t) {
			continue
		}
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

func requireFails(t *testing.T, r *report.Report, stage, cause string) {
	t.Helper()
	require.Equal(t, report.Fail, r.Verdict)
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
	requireFails(t, run(t, c.Config, replace(c, name, w), p, verify.Options{}), "model.layers.1.self_attn.q_b_proj.output", "scales-transposed")
}

// TestInfiniteScale: the weight that holds an infinity is the scales, and is named.
func TestInfiniteScale(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v3-fp8/golden-f32")
	const name = "model.layers.1.self_attn.q_b_proj.weight_scale_inv"
	w := get(t, c, name)
	binary.LittleEndian.PutUint32(w.Data[4*2:], math.Float32bits(float32(math.Inf(1))))
	r := run(t, c.Config, replace(c, name, w), p, verify.Options{})
	requireFails(t, r, "model.layers.1.self_attn.q_b_proj.output", "weight-not-finite")
	require.Equal(t, name+" holds +Inf at [1 0]", r.Cause.Text)
	require.Len(t, r.Causes, 1)
}

// TestHugeScale: an exponent of a block of gate_proj that is 66 too large makes gates so large that their own rounding is
// larger than all else. Where they are below 0, that excuses nothing.
func TestHugeScale(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v4-fp4/golden-f32")
	for module, stage := range map[string]string{"0.ffn.shared_experts": "0.mlp.shared_experts.output", "1.ffn.experts.4": "1.mlp.experts.output"} {
		name := "layers." + module + ".w1.scale"
		w := get(t, c, name)
		w.Data[0] += 66
		r := run(t, c.Config, replace(c, name, w), p, verify.Options{})
		require.Equal(t, report.Fail, r.Verdict, module)
		require.Equal(t, "model.layers."+stage, *r.FirstDivergence, module)
	}
	const up = "layers.0.ffn.shared_experts.w3.scale"
	w := get(t, c, up)
	w.Data[0] += 66
	r := run(t, c.Config, replace(c, up, w), p, verify.Options{})
	require.Equal(t, report.Fail, r.Verdict)
	require.NotContains(t, fmt.Sprint(r.Causes), "gate-up-swapped", "as gates these rows hide nothing")
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

// TestRotaryDType: the pack was made after model.to(bfloat16); told otherwise, the
// attention differs, and the cause says what to do.
func TestRotaryDType(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-bf16")
	r := run(t, c.Config, c, p, verify.Options{RotaryDType: tensor.F32})
	require.Equal(t, "model.layers.0.self_attn.o_proj.input", *r.FirstDivergence)
	require.Equal(t, "rotary-dtype", r.Cause.ID)
	require.Equal(t, "the reference kept RoPE's inv_freq in BF16: verify with --rotary-dtype compute", r.Cause.Text)

	saysOtherwise := must(pack.Open(rewritten(t, "v1-base/golden-bf16", func(_ string, m map[string]any) {
		m["made_by"] = "from_pretrained(checkpoint, dtype)"
	})))
	r = run(t, c.Config, c, saysOtherwise, verify.Options{})
	require.Equal(t, "model.layers.0.self_attn.o_proj.input", *r.FirstDivergence)
	require.Equal(t, "rotary-dtype", r.Cause.ID)
	require.Equal(t, report.Pass, run(t, c.Config, c, saysOtherwise, verify.Options{RotaryDType: tensor.BF16}).Verdict)
}

// TestMistakesInPacks alters what the pack says that the reference ran with.
func TestMistakesInPacks(t *testing.T) {
	t.Parallel()
	const attended = "model.layers.0.self_attn.o_proj.input"
	for name, test := range map[string]struct {
		pack, stage, cause, text string
		edit                     func(t *testing.T, dir string, m map[string]any)
		key, value               string // of our config
		options                  verify.Options
	}{
		"a mask that the reference did not have": {pack: "v1-gqa-norm-freq2/golden-f32", stage: attended, cause: "padding-mask",
			text: "the reference ran without the attention_mask of the pack",
			edit: func(t *testing.T, dir string, m map[string]any) {
				tensors := m["tensors"].(map[string]any)
				ids := tensors["input_ids"].(map[string]any)
				tensors["attention_mask"] = map[string]any{"file": ids["file"], "dtype": "I64", "shape": ids["shape"]}
				refile(t, dir, m, ids["file"].(string), func(x map[string]view) {
					mask := view{"I64", x["input_ids"].shape, make([]byte, len(x["input_ids"].data))}
					for i := 8; i < len(mask.data); i += 8 { // all but the first
						mask.data[i] = 1
					}
					x["attention_mask"] = mask
				})
			}},
		"groups that the reference did not have": {pack: "v2-lite/golden-f32", stage: "model.layers.1.mlp.gate.topk_idx", cause: "group-mask",
			text: "the reference chose among all experts, here there are 4 groups",
			key:  "topk_method,n_group,topk_group", value: `"group_limited_greedy",4,1`},
		"the order of the routed sum": {pack: "v3/golden-bf16", stage: "model.layers.2.mlp.experts.output", cause: "reference",
			text:    "the pack follows the rules of the native reference: verify with --reference native",
			options: verify.Options{Reference: config.Remote, Limits: map[string]float64{"self_attn.o_proj.input": 1e9}}},
		"counts not divided, batch form": {pack: "v1-base/golden-train-batch", stage: "model.layers.1.mlp.gate.aux_loss", cause: "aux-loss-counts",
			text: "the reference did not divide the experts' counts by seq_len·num_experts_per_tok/n_routed_experts",
			edit: func(_ *testing.T, _ string, m map[string]any) {
				ran := m["config_overrides"].(map[string]any)
				ran["aux_loss_alpha"] = ran["aux_loss_alpha"].(float64) * 16 / (34 * 4)
			}},
		"top-k weights of zero": {pack: "v3/golden-f32", stage: "model.layers.2.mlp.gate.topk_weight", cause: "reference-zeros",
			text: "the golden holds only zeros in all 29 rows, where the numbers computed here have an RMS of 0.64: nothing was " +
				"computed or stored there, or weights are zero",
			edit: func(t *testing.T, dir string, m map[string]any) {
				rewrite(t, dir, m, "model.layers.2.mlp.gate.topk_weight", make([]float32, 34*4))
			}},
		"a scale that is not applied": {pack: "v1-gqa-norm-freq2/golden-f32", stage: "model.layers.0.mlp.gate.topk_weight",
			edit: func(t *testing.T, dir string, m map[string]any) {
				const name = "model.layers.0.mlp.gate.topk_weight"
				w := must(must(pack.Open(fixture("v1-gqa-norm-freq2/golden-f32"))).Float32s(name))
				for i := range w {
					w[i] *= 2
				}
				rewrite(t, dir, m, name, w)
			}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := rewritten(t, test.pack, func(dir string, m map[string]any) {
				if test.edit != nil {
					test.edit(t, dir, m)
				}
			})
			c, _ := open(t, test.pack)
			cfg, values := c.Config, strings.Split(test.value, ",")
			for i, key := range strings.Split(test.key, ",") {
				if key != "" {
					cfg = override(t, cfg, key, values[i])
				}
			}
			r := run(t, cfg, c, must(pack.Open(dir)), test.options)
			requireFails(t, r, test.stage, test.cause)
			if r.Cause != nil {
				require.Equal(t, test.text, r.Cause.Text)
			}
		})
	}
}

// TestProjectionsTransposedOrPermuted: each projection of either attention in turn.
func TestProjectionsTransposedOrPermuted(t *testing.T) {
	t.Parallel()
	const layer = "model.layers.1.self_attn."
	transpose := func(w tensor.Tensor) tensor.Tensor {
		n, data := w.Shape[0], make([]byte, 0, len(w.Data))
		for i := range n * n {
			at := 2 * (i%n*n + i/n)
			data = append(data, w.Data[at:at+2]...)
		}
		w.Data = data
		return w
	}
	halves := func(w tensor.Tensor) tensor.Tensor { // the inverse of interleave, of heads of 16
		var rows []byte
		for r := range w.Shape[0] {
			i := r % 16
			rows = append(rows, w.Row(r-i+i%8*2+i/8).Data...)
		}
		w.Data = rows
		return w
	}
	pairs := func(w tensor.Tensor) tensor.Tensor { return interleave(w, 16) }
	rotary := func(w tensor.Tensor) tensor.Tensor { // the last 16 rows of heads of 40
		for head := range w.Shape[0] / 40 {
			from, size := head*40+24, len(w.Data)/w.Shape[0]
			part := tensor.Tensor{DType: w.DType, Shape: []int{16, w.Shape[1]}, Data: slices.Clone(w.Data[from*size : (from+16)*size])}
			copy(w.Data[from*size:], halves(part).Data)
		}
		return w
	}
	for _, test := range []struct {
		pack, proj, cause string
		alter             func(tensor.Tensor) tensor.Tensor
	}{
		{"v1-base/golden-f32", "q_proj", "transposed", transpose},
		{"v1-base/golden-f32", "k_proj", "transposed", transpose},
		{"v1-base/golden-f32", "v_proj", "transposed", transpose},
		{"v1-base/golden-f32", "o_proj", "transposed", transpose},
		{"v1-base/golden-f32", "q_proj", "rope-permutation", pairs},
		{"v1-base/golden-f32", "k_proj", "rope-permutation", pairs},
		{"v1-base/golden-f32", "k_proj", "rope-permutation", halves},
		{"v1-base/golden-f32", "v_proj", "rows-permuted", pairs}, // values are not rotated
		{"v3/golden-f32", "q_b_proj", "rope-permutation", rotary},
		{"v2-lite/golden-f32", "q_proj", "rope-permutation", rotary},
	} {
		t.Run(test.pack+" "+test.proj+" "+test.cause, func(t *testing.T) {
			t.Parallel()
			c, p := open(t, test.pack)
			name := layer + test.proj + ".weight"
			r := run(t, c.Config, replace(c, name, test.alter(get(t, c, name))), p, verify.Options{})
			requireFails(t, r, layer+test.proj+".output", test.cause)
			if r.Cause != nil {
				require.Contains(t, r.Cause.Text, test.proj)
			}
		})
	}
}

// TestBiasIsPermutedWithItsRows: rows of q_proj with a bias, in the other RoPE layout.
func TestBiasIsPermutedWithItsRows(t *testing.T) {
	t.Parallel()
	const name = "model.layers.1.self_attn.q_proj."
	c, p := open(t, "v1-rope-linear-tied-bias/golden-f32")
	src := replace(c, name+"weight", interleave(get(t, c, name+"weight"), 16))
	src.tensors[name+"bias"] = interleave(get(t, c, name+"bias"), 16)
	requireFails(t, run(t, c.Config, src, p, verify.Options{}), name+"output", "rope-permutation")
}

// TestExpertsSwappedAmongFew: fewer than eleven experts cannot be in the order of their
// names, and the pair is found.
func TestExpertsSwappedAmongFew(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-top1-noshared/golden-f32")
	chosen := must(p.Ints(moe1 + "gate.topk_idx"))
	a := chosen[0]
	b := chosen[slices.IndexFunc(chosen, func(e int) bool { return e != a })]
	var pairs []string
	for _, proj := range []string{"gate_proj", "up_proj", "down_proj"} {
		for _, e := range []int{a, b} {
			pairs = append(pairs, moe1+"experts."+strconv.Itoa(e)+"."+proj+".weight")
		}
	}
	r := run(t, c.Config, swap(t, c, pairs...), p, verify.Options{})
	requireFails(t, r, moe1+"experts.output", "experts-swapped")
	require.Equal(t, fmt.Sprintf("experts %d and %d are exchanged", min(a, b), max(a, b)), r.Cause.Text)
}

// TestNoCauseWithoutTheLayersInput: a pack that does not hold the input of the layer at
// fault leaves nothing to try mistakes with.
func TestNoCauseWithoutTheLayersInput(t *testing.T) {
	t.Parallel()
	dir := rewritten(t, "v1-base/golden-f32", func(dir string, m map[string]any) {
		maps.DeleteFunc(m["tensors"].(map[string]any), func(name string, _ any) bool {
			return strings.HasPrefix(name, "model.layers.") && strings.Count(name, ".") == 3 // model.layers.3.output
		})
		prune(t, dir, m)
	})
	c, _ := open(t, "v1-base/golden-f32")
	name := "model.layers.2.self_attn.q_proj.weight"
	src := replace(c, name, interleave(get(t, c, name), 16))
	requireFails(t, run(t, c.Config, src, must(pack.Open(dir)), verify.Options{}), "model.layers.2.self_attn.q_proj.output", "")
}
