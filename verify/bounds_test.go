package verify_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// scaled returns w, of BF16 or F32, with some elements multiplied by factor.
func scaled(t *testing.T, w tensor.Tensor, factor float32, elements ...int) tensor.Tensor {
	t.Helper()
	w.Data = slices.Clone(w.Data)
	for _, i := range elements {
		switch w.DType {
		case tensor.BF16:
			v := math.Float32frombits(uint32(binary.LittleEndian.Uint16(w.Data[2*i:])) << 16)
			binary.LittleEndian.PutUint16(w.Data[2*i:], uint16(math.Float32bits(tensor.Rounded(v*factor, tensor.BF16))>>16))
		case tensor.F32:
			v := math.Float32frombits(binary.LittleEndian.Uint32(w.Data[4*i:]))
			binary.LittleEndian.PutUint32(w.Data[4*i:], math.Float32bits(v*factor))
		case tensor.F16:
			v := must(tensor.Tensor{DType: w.DType, Shape: []int{1}, Data: w.Data[2*i : 2*i+2]}.Float32s(nil))[0]
			n := tensor.Ordinal(v*factor, tensor.F16)
			binary.LittleEndian.PutUint16(w.Data[2*i:], uint16(max(n, -n))|uint16(n>>48&0x8000))
		default:
			t.Fatal(w.DType)
		}
	}
	return w
}

// row returns the elements of row r of w.
func row(w tensor.Tensor, r int) (elements []int) {
	for i := range w.Shape[1] {
		elements = append(elements, r*w.Shape[1]+i)
	}
	return elements
}

// TestFaultsOfFewBits: wrong weights that change a BF16 output by a unit in a few places.
func TestFaultsOfFewBits(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-bf16")
	chosen := must(p.Ints(moe1 + "gate.topk_idx"))
	for i, proj := range []string{"gate_proj", "up_proj", "down_proj", "gate_proj", "up_proj", "down_proj"} {
		name := moe1 + "experts." + strconv.Itoa(chosen[i]) + "." + proj + ".weight"
		w := get(t, c, name)
		r := run(t, c.Config, replace(c, name, scaled(t, w, 2, 100+7*i)), p, verify.Options{Undiagnosed: true})
		require.Equal(t, report.Fail, r.Verdict, "%s doubled at %d", name, 100+7*i)
		require.Equal(t, moe1+"experts.output", *r.FirstDivergence)
	}
	head := get(t, c, "lm_head.weight")
	r := run(t, c.Config, replace(c, "lm_head.weight", scaled(t, head, 1.03, row(head, 3)...)), p, verify.Options{Undiagnosed: true})
	require.Equal(t, "lm_head.output", *r.FirstDivergence)
	require.Equal(t, "all in column 3", r.Checks[len(r.Checks)-1].Where)

	channel := altered{Source: c, tensors: map[string]tensor.Tensor{}}
	for e := range c.Config.MoE.NRoutedExperts {
		name := moe1 + "experts." + strconv.Itoa(e) + ".down_proj.weight"
		w := get(t, c, name)
		channel.tensors[name] = scaled(t, w, 1.02, row(w, 20)...)
	}
	require.Equal(t, moe1+"experts.output", *run(t, c.Config, channel, p, verify.Options{Undiagnosed: true}).FirstDivergence)
}

// TestFaultsOfAllDTypes_every: small mistakes of one row, one element or one number of the config,
// on a float32, a BF16 and an F16 pack, one of them with a massive activation.
func TestFaultsOfAllDTypes_every(t *testing.T) {
	t.Parallel()
	for i, golden := range []string{"v1-base/golden-f32", "v1-base/golden-bf16", "v1-f16/golden-f16", "v1-massive/golden-f32", "v1-massive/golden-bf16"} {
		c, p := open(t, golden)
		fails := func(src weights.Source, stage, what string) {
			t.Helper()
			r := run(t, c.Config, src, p, verify.Options{Undiagnosed: true})
			require.Equal(t, report.Fail, r.Verdict, "%s: %s", golden, what)
			require.Equal(t, stage, *r.FirstDivergence, "%s: %s", golden, what)
			require.Nil(t, r.Cause)
		}
		for j, fault := range []struct {
			weight, stage string
			factor        float32
			row           bool
		}{
			{"lm_head.weight", "lm_head.output", 1.03, true},
			{"model.norm.weight", "model.norm.output", 1.01, false},
			{"model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.q_proj.output", 1.01, true},
			{"model.layers.1.self_attn.o_proj.weight", "model.layers.1.self_attn.o_proj.output", 1.02, true},
			{"model.layers.0.mlp.down_proj.weight", "model.layers.0.mlp.output", 1.02, true},
			{"model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.output", 1.1, true},
			{"model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.output", 0, true},
			{moe1 + "gate.weight", moe1 + "gate.logits", 1.01, true},
			{moe1 + "shared_experts.down_proj.weight", moe1 + "shared_experts.output", 1.02, true},
		} {
			if i%3 != j%3 && !configtest.Every(t) {
				continue
			}
			w := get(t, c, fault.weight)
			at := []int{3}
			if fault.row {
				at = row(w, 3)
			}
			fails(replace(c, fault.weight, scaled(t, w, fault.factor, at...)), fault.stage, fmt.Sprintf("%s times %g", fault.weight, fault.factor))
		}
		r := run(t, override(t, c.Config, "rms_norm_eps", "1.05e-6"), c, p, verify.Options{Undiagnosed: true})
		require.Equal(t, report.Fail, r.Verdict, golden)
	}
}

// TestNeuronsAreNamed: one row of up_proj a little off, below the noise of each output.
func TestNeuronsAreNamed(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-f32")
	chosen := must(p.Ints(moe1 + "gate.topk_idx"))[0]
	for stage, test := range map[string]struct {
		weight string
		expert int
	}{
		"shared_experts.output": {"shared_experts.up_proj.weight", -1},
		"experts.output":        {"experts." + strconv.Itoa(chosen) + ".up_proj.weight", chosen},
	} {
		w := get(t, c, moe1+test.weight)
		r := run(t, c.Config, replace(c, moe1+test.weight, scaled(t, w, 1.1, row(w, 5)...)), p, verify.Options{})
		require.Equal(t, moe1+stage, *r.FirstDivergence)
		for _, check := range r.Checks {
			if check.Tensor != *r.FirstDivergence {
				continue
			}
			require.Equal(t, test.expert, check.Neuron.Expert)
			require.Equal(t, 5, check.Neuron.Index)
			require.Greater(t, *check.NeuronZ, *check.Z)
			require.Contains(t, printed(t, r), "neuron 5: z ")
		}
	}
}

// TestBiasesThatDecideEverything: with correction biases so large that they swallow the
// scores nothing is left to be checked; somewhat smaller ones choose otherwise.
func TestBiasesThatDecideEverything(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v3/golden-f32")
	with := func(bias float32) weights.Source {
		src := altered{Source: c, tensors: map[string]tensor.Tensor{}}
		for l := range c.Config.NumHiddenLayers {
			if !c.Config.IsMoE(l) {
				continue
			}
			name := fmt.Sprintf("model.layers.%d.mlp.gate.e_score_correction_bias", l)
			w := get(t, c, name)
			require.Equal(t, tensor.BF16, w.DType)
			for i := range w.Len() {
				binary.LittleEndian.PutUint16(w.Data[2*i:], uint16(math.Float32bits(bias)>>16))
			}
			src.tensors[name] = w
		}
		return src
	}
	r := run(t, c.Config, with(1e9), p, verify.Options{})
	require.Equal(t, report.Inconclusive, r.Verdict, "%v", r.FirstDivergence)
	require.Zero(t, r.Routing.Pinned)
	require.Contains(t, strings.Join(r.Reasons, "; "), "rounding could change 348 of 348 choices of experts")
	for _, bias := range []float32{0, 1, 1000, 1e5} {
		require.Equal(t, report.Fail, run(t, c.Config, with(bias), p, verify.Options{}).Verdict, "%g", bias)
	}
	right := run(t, c.Config, c, p, verify.Options{})
	require.Len(t, right.Routing.Biases, 3)
	require.Contains(t, printed(t, right), "\n           the choices pin each e_score_correction_bias relative to its layer's others only: medians up to 0.058, the widest 0.37 (layer 2, expert 3)\n")
}

// TestPacksThatProveLittle are inconclusive, and say why.
func TestPacksThatProveLittle(t *testing.T) {
	t.Parallel()
	const norm = "model.layers.2.input_layernorm.output"
	without := func(kind string) func(t *testing.T, dir string, m map[string]any) {
		return func(t *testing.T, dir string, m map[string]any) {
			maps.DeleteFunc(m["tensors"].(map[string]any), func(name string, _ any) bool { return strings.HasSuffix(name, kind) })
			prune(t, dir, m)
		}
	}
	then := func(edits ...func(t *testing.T, dir string, m map[string]any)) func(t *testing.T, dir string, m map[string]any) {
		return func(t *testing.T, dir string, m map[string]any) {
			for _, edit := range edits {
				edit(t, dir, m)
			}
		}
	}
	set := func(key string, value any) func(t *testing.T, dir string, m map[string]any) {
		return func(_ *testing.T, _ string, m map[string]any) { m[key] = value }
	}
	for name, test := range map[string]struct {
		pack   string
		edit   func(t *testing.T, dir string, m map[string]any)
		reason string // "" for a pass
		free   []string
	}{
		"a kind of stage is absent": {"v1-base/golden-f32", without("self_attn.o_proj.input"),
			"the pack has none of these stages, and its manifest does not name them as absent: self_attn.o_proj.input", []string{"self_attn.o_proj.input"}},
		"and the manifest says so": {"v1-base/golden-f32", then(without("self_attn.o_proj.input"), set("absent", pack.Absent{Stages: []string{"self_attn.o_proj.input"}})),
			"", []string{"self_attn.o_proj.input"}},
		"that it is partial names nothing": {"v1-base/golden-bf16", then(without("mlp.gate.logits"), set("partial", "to see what happens")),
			"the pack has none of these stages, and its manifest does not name them as absent: mlp.gate.logits", []string{"mlp.gate.logits"}},
		"a golden of zeros": {"v1-base/golden-f32", func(t *testing.T, dir string, m map[string]any) {
			rewrite(t, dir, m, norm, make([]float32, 34*64))
		}, "1 golden tensor is all zero and proves nothing: " + norm, []string{}},
		"a gradient is missing": {"v1-base/golden-train-batch", without("experts.3.up_proj.weight.grad"),
			"1 weight has no gradient in the pack, though others of its module have: model.layers.3.mlp.experts.3.up_proj.weight", []string{"mlp.experts.output"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := rewritten(t, test.pack, func(dir string, m map[string]any) { test.edit(t, dir, m) })
			c, _ := open(t, test.pack)
			r := run(t, c.Config, c, must(pack.Open(dir)), verify.Options{})
			require.Equal(t, test.free, r.Free)
			if test.reason == "" {
				require.Equal(t, report.Pass, r.Verdict, "%v %v", r.FirstDivergence, r.Reasons)
			} else {
				require.NotEqual(t, report.Pass, r.Verdict)
				require.Contains(t, r.Reasons, test.reason)
			}
			if p := r.Golden.Partial; p != "" {
				require.Contains(t, printed(t, r), "\n           partial: "+p+"\n")
			}
			require.Equal(t, len(test.free) == 0, strings.Contains(printed(t, r), "every stage is fed the golden's own input"))
		})
	}
}

// TestErrorsAreCarriedOverGaps: a pack of few stages is right, and a fault before a gap is
// found behind it.
func TestErrorsAreCarriedOverGaps(t *testing.T) {
	t.Parallel()
	const bf16, f32 = "v3/golden-bf16", "v3/golden-f32"
	for _, golden := range []string{bf16, f32, "v1-f16/golden-f16"} {
		dir := rewritten(t, golden, func(dir string, m map[string]any) {
			absent := pack.Absent{}
			maps.DeleteFunc(m["tensors"].(map[string]any), func(name string, _ any) bool {
				inLayer := strings.HasPrefix(name, "model.layers.") && strings.Count(name, ".") > 3 && !strings.HasSuffix(name, "topk_idx")
				if inLayer {
					absent.Stages = append(absent.Stages, strings.SplitN(name, ".", 4)[3])
				}
				return inLayer
			})
			m["absent"] = absent
			prune(t, dir, m)
		})
		c, _ := open(t, golden)
		p := must(pack.Open(dir))
		r := run(t, c.Config, c, p, verify.Options{})
		require.NotEqual(t, report.Fail, r.Verdict, "%s: %v", golden, r.FirstDivergence)
		if golden != f32 {
			continue
		}
		require.Equal(t, report.Pass, r.Verdict, r.Reasons)
		const name = "model.layers.1.self_attn.kv_b_proj.weight"
		w := get(t, c, name)
		r = run(t, c.Config, replace(c, name, scaled(t, w, 1.01, row(w, 3)...)), p, verify.Options{})
		require.Equal(t, "model.layers.1.output", *r.FirstDivergence)
	}
}

// TestNumbersThatAreNone are found in weights that nothing was multiplied with.
func TestNumbersThatAreNone(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-f32")
	for name, at := range map[string][]int{"model.layers.2.mlp.experts.4.up_proj.weight": {3, 7}, "model.embed_tokens.weight": {255, 63}} {
		w := get(t, c, name)
		i := at[0]*w.Shape[1] + at[1]
		w.Data[2*i], w.Data[2*i+1] = 0x80, 0x7f
		r := run(t, c.Config, replace(c, name, w), p, verify.Options{})
		require.Equal(t, report.Inconclusive, r.Verdict)
		require.Equal(t, []string{fmt.Sprintf("%s holds +Inf at %v", name, at)}, r.Reasons)
	}
}

// TestConfigsThatDiffer: what concerns training alone may; with anything else there is no
// verdict about the checkpoint, and both values are told.
func TestConfigsThatDiffer(t *testing.T) {
	t.Parallel()
	c, _ := open(t, "v1-base/golden-f32")
	wrong := override(t, c.Config, "rms_norm_eps", "1e-5")
	dir := rewritten(t, "v1-base/golden-f32", func(_ string, m map[string]any) {
		m["config_overrides"] = map[string]any{"rms_norm_eps": 1e-6, "seq_aux": false, "hidden_act": "silu"}
	})
	p := must(pack.Open(dir))
	r := run(t, wrong, c, p, verify.Options{})
	require.Equal(t, report.Inconclusive, r.Verdict)
	require.Equal(t, []string{"config.json has rms_norm_eps 1e-5, the reference ran with 0.000001: this is no verdict about that config"}, r.Reasons)
	require.Equal(t, []report.Override{{Key: "rms_norm_eps", Checkpoint: "1e-5", Reference: "0.000001"},
		{Key: "seq_aux", Checkpoint: "true", Reference: "false", Training: true}}, r.Config.Overridden)
	require.Contains(t, printed(t, r), "\nconfig     rms_norm_eps 1e-5, the reference ran with 0.000001\n")
	require.Equal(t, report.Pass, run(t, c.Config, c, p, verify.Options{}).Verdict, "the same value, written otherwise")
}

// TestKeysThatAreNotExercised: the pack says nothing of them.
func TestKeysThatAreNotExercised(t *testing.T) {
	t.Parallel()
	for golden, want := range map[string]string{
		"v1-rope-dynamic/golden-f32":  "aux_loss_alpha",
		"v1-top1-noshared/golden-f32": "norm_topk_prob",
	} {
		c, p := open(t, golden)
		var keys []string
		for _, u := range run(t, c.Config, c, p, verify.Options{}).Config.Unexercised {
			keys = append(keys, u.Key)
			require.NotEmpty(t, u.Why)
		}
		require.Contains(t, keys, want, golden)
		require.NotContains(t, keys, "rope_scaling", "%s goes past the trained length", golden)
	}
	c, p := open(t, "v1-base/golden-f32")
	changed, err := c.Config.Override(map[string]jsontext.Value{"rope_scaling": jsontext.Value(`{"type":"dynamic","factor":2.0}`)})
	require.NoError(t, err)
	r := run(t, changed, c, p, verify.Options{})
	require.Equal(t, report.Pass, r.Verdict)
	require.Contains(t, printed(t, r), "config     rope_scaling not exercised: dynamic scaling begins beyond ")
}
