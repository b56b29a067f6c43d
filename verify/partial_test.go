package verify_test

import (
	"context"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/checkpoint"
	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// Packs of scripts/golden.py: of chosen layers, of chosen stages, and with inner stages.
const (
	layersF32  = "v1-base/golden-layers-f32"  // layer 2, from a seeded input
	layersBF16 = "v3/golden-layers-bf16"      // layers 1, 2 and 4, and the head; 1 and 4 from seeded inputs
	stagesF32  = "v3/golden-stages-f32"       // layers 0-2, without outputs of layers, which are recorded as inputs
	innerBF16  = "v1-base/golden-inner-bf16"  // everything
	trainInner = "v1-base/golden-train-inner" // everything, and the gates' gradients
)

// TestPartialPacksPass, and say what that is a pass of.
func TestPartialPacksPass(t *testing.T) {
	t.Parallel()
	for golden, want := range map[string]report.Scope{
		layersF32: {Text: "layer 2 of 4", Layers: []int{2}, Of: 4, Unread: []int{0, 1, 3}, UnreadParts: []string{"layers 0, 1, 3", "the embedding", "the head"}, Weights: 128,
			Inputs: []report.ScopeInput{{Layer: 2, Kind: pack.Seeded, Text: "model.layers.2.input, seeded: random numbers, seed 5, and not what the layer before gives"}}},
		layersBF16: {Text: "layers 1, 2, 4 of 5, the head", Layers: []int{1, 2, 4}, Of: 5, Head: true, Unread: []int{0, 3}, UnreadParts: []string{"layers 0, 3", "the embedding"}, Weights: 75,
			Inputs: []report.ScopeInput{
				{Layer: 1, Kind: pack.Seeded, Text: "model.layers.1.input, seeded: random numbers, seed 4, and not what the layer before gives"},
				{Layer: 4, Kind: pack.Seeded, Text: "model.layers.4.input, seeded: random numbers, seed 7, and not what the layer before gives"}}},
		stagesF32: {Text: "the embedding, layers 0-2 of 5, but for 3 weights whose stages are absent on purpose", Layers: []int{0, 1, 2}, Of: 5, Embedding: true,
			Unread: []int{3, 4}, UnreadParts: []string{"layers 3, 4", "the head"}, Weights: 126, LeftOut: 3, Inputs: []report.ScopeInput{}},
		innerBF16:  {Text: "the whole model", Whole: true, Layers: []int{0, 1, 2, 3}, Of: 4, Embedding: true, Head: true, Unread: []int{}, UnreadParts: []string{}, Inputs: []report.ScopeInput{}},
		trainInner: {Text: "the whole model", Whole: true, Layers: []int{0, 1, 2, 3}, Of: 4, Embedding: true, Head: true, Unread: []int{}, UnreadParts: []string{}, Inputs: []report.ScopeInput{}},
	} {
		want.Stages = []string{}
		for _, acc := range []model.Accumulator{model.Float64, model.Float32} {
			t.Run(golden, func(t *testing.T) {
				t.Parallel()
				c, p := open(t, golden)
				r := run(t, c.Config, c, p, verify.Options{Accumulate: acc})
				require.Equal(t, report.Pass, r.Verdict, "%v %v", r.FirstDivergence, r.Reasons)
				want := want // the runs of both accumulators share the other
				want.Bytes = readBytes(c, want)
				require.Equal(t, want, r.Scope)
				require.Equal(t, r.Coverage.GoldenTensors, r.Coverage.GoldenChecked)
				require.Empty(t, r.Coverage.WeightsUnchecked)
				verdict := "verdict    PASS: " + want.Text + " (" + exercised(r) + ")\n"
				if want.Whole {
					verdict = "verdict    PASS (" + exercised(r) + ")\n"
				}
				require.Contains(t, printed(t, r), verdict)
			})
		}
		t.Run(golden+" end to end", func(t *testing.T) {
			t.Parallel()
			c, p := open(t, golden)
			r := run(t, c.Config, c, p, verify.Options{Mode: report.Chained})
			require.Nil(t, r.FirstDivergence)
			if p.DType == tensor.F32 && golden != stagesF32 {
				require.Equal(t, report.Pass, r.Verdict, r.Reasons)
			} else {
				require.Equal(t, report.Inconclusive, r.Verdict)
			}
		})
	}
}

// readBytes is the size of the weights of the parts that were read.
func readBytes(c *checkpoint.Checkpoint, s report.Scope) (n int64) {
	for i := range c.Tensors() {
		part := map[bool]string{true: "the embedding", false: "the head"}[i.Name == "model.embed_tokens.weight"]
		if rest, ok := strings.CutPrefix(i.Name, "model.layers."); ok {
			part = "layer " + rest[:1]
		}
		unread := slices.ContainsFunc(s.UnreadParts, func(p string) bool {
			return p == part || strings.HasPrefix(p, "layer") && strings.HasPrefix(part, "layer ") && strings.Contains(p, part[6:])
		})
		if !unread {
			n += i.Bytes()
		}
	}
	return n
}

// edited is a pack whose manifest and files were changed.
func edited(t *testing.T, golden string, edit func(t *testing.T, dir string, m map[string]any)) string {
	return rewritten(t, golden, func(dir string, m map[string]any) { edit(t, dir, m) })
}

// dropping leaves out the tensors of which lacks says so.
func dropping(lacks func(name string) bool) func(t *testing.T, dir string, m map[string]any) {
	return func(t *testing.T, dir string, m map[string]any) {
		maps.DeleteFunc(m["tensors"].(map[string]any), func(name string, _ any) bool { return lacks(name) })
		prune(t, dir, m)
	}
}

// absent changes what a manifest names as absent.
func absent(edit func(absent map[string]any)) func(t *testing.T, dir string, m map[string]any) {
	return func(_ *testing.T, _ string, m map[string]any) { edit(m["absent"].(map[string]any)) }
}

// without leaves some strings out of a list of JSON.
func lessOf(list any, names ...string) (rest []any) {
	return slices.DeleteFunc(slices.Clone(list.([]any)), func(x any) bool { return slices.Contains(names, x.(string)) })
}

// TestHolesOfPartialPacks: whatever is absent without a word is no pass, and nor is a pack that
// names everything.
func TestHolesOfPartialPacks(t *testing.T) {
	t.Parallel()
	in := func(layer string) func(name string) bool {
		return func(name string) bool { return strings.HasPrefix(name, "model.layers."+layer+".") }
	}
	is := func(wanted string) func(name string) bool { return func(name string) bool { return name == wanted } }
	both := func(edits ...func(t *testing.T, dir string, m map[string]any)) func(t *testing.T, dir string, m map[string]any) {
		return func(t *testing.T, dir string, m map[string]any) {
			for _, edit := range edits {
				edit(t, dir, m)
			}
		}
	}
	for name, test := range map[string]struct {
		pack    string
		edit    func(t *testing.T, dir string, m map[string]any)
		verdict report.Verdict
		reason  string // among the reasons, or why the check of stage failed
		stage   string
	}{
		"a layer": {layersBF16, dropping(in("2")), report.Inconclusive,
			"the pack has no stage of layers 2, and its manifest does not name them as absent", ""},
		"a layer, and another's input": {stagesF32, dropping(func(name string) bool {
			return in("1")(name) && !strings.HasSuffix(name, ".input") || name == "model.layers.1.self_attn.o_proj.input"
		}), report.Fail,
			"the pack has no such tensor for this layer, though it has for others", "model.layers.1.self_attn.q_a_proj.output"},
		"layers that the manifest does not name": {layersBF16, absent(func(a map[string]any) { delete(a, "layers") }), report.Inconclusive,
			"the pack has no stage of layers 0, 3, and its manifest does not name them as absent", ""},
		"a stage of the only layer": {layersF32, dropping(is("model.layers.2.self_attn.q_proj.output")), report.Inconclusive,
			"the pack has none of these stages, and its manifest does not name them as absent: self_attn.q_proj.output", ""},
		"a stage of one layer": {layersBF16, dropping(is("model.layers.2.self_attn.output")), report.Fail,
			"the pack has no such tensor for this layer, though it has for others", "model.layers.2.self_attn.output"},
		"a stage of one expert": {layersF32, dropping(is("model.layers.2.mlp.experts.7.up_proj.output")), report.Fail,
			"the pack has no such tensor for this expert, though it has for others", "model.layers.2.mlp.experts.7.up_proj.output"},
		"probabilities of one layer": {layersBF16, dropping(is("model.layers.4.self_attn.attn_weights")), report.Fail,
			"the pack has no such tensor for this layer, though it has for others", "model.layers.4.self_attn.attn_weights"},
		"the head": {layersBF16, dropping(func(name string) bool { return name == "lm_head.output" || name == "model.norm.output" }), report.Inconclusive,
			"2 weights took part in no checked stage, the first is model.norm.weight", ""},
		"the head behind an absent layer": {layersF32, absent(func(a map[string]any) { a["stages"] = lessOf(a["stages"], "lm_head.output", "model.norm.output") }), report.Inconclusive,
			"the pack has none of these stages, and its manifest does not name them as absent: lm_head.output, model.norm.output", ""},
		"the embedding": {layersF32, absent(func(a map[string]any) { a["stages"] = lessOf(a["stages"], "model.embed_tokens.output") }), report.Inconclusive,
			"the pack has none of these stages, and its manifest does not name them as absent: model.embed_tokens.output", ""},
		"stages that the manifest does not name": {stagesF32, absent(func(a map[string]any) { a["stages"] = lessOf(a["stages"], "mlp.output", "mlp.shared_experts.output") }), report.Inconclusive,
			"the pack has none of these stages, and its manifest does not name them as absent: mlp.output, mlp.shared_experts.output", ""},
		"weights of a pack that is not partial": {stagesF32, func(_ *testing.T, _ string, m map[string]any) { delete(m, "partial") }, report.Inconclusive,
			"3 weights took part in no checked stage, the first is model.layers.2.mlp.shared_experts.gate_proj.weight", ""},
		"the choice of experts": {stagesF32, both(dropping(func(name string) bool { return strings.HasPrefix(name, "model.layers.2.mlp.gate.topk_") }),
			absent(func(a map[string]any) {
				a["stages"] = append(a["stages"].([]any), "mlp.gate.topk_idx", "mlp.gate.topk_weight")
			})), report.Inconclusive,
			"the pack has no mlp.gate.topk_idx: the choice of experts was not checked", ""},
		"everything, by name": {layersF32, both(dropping(func(name string) bool { return name != "input_ids" }), func(_ *testing.T, _ string, m map[string]any) {
			delete(m, "layer_inputs")
			m["absent"].(map[string]any)["layers"] = []int{0, 1, 2, 3}
		}), report.Inconclusive, "no weight took part in a checked stage: this proves nothing of the checkpoint", ""},
		"everything but RoPE's tables": {layersF32, both(dropping(in("2")), func(_ *testing.T, _ string, m map[string]any) {
			delete(m, "layer_inputs")
			m["absent"].(map[string]any)["layers"] = []int{0, 1, 2, 3}
		}), report.Inconclusive, "no weight took part in a checked stage: this proves nothing of the checkpoint", ""},
		"an input of zeros": {layersF32, func(t *testing.T, dir string, m map[string]any) {
			rewrite(t, dir, m, "model.layers.2.input", make([]float32, 9*64))
		}, report.Fail, "1 golden tensor is all zero and proves nothing: model.layers.2.input", ""},
		"an input that is the same for all tokens": {layersF32, func(t *testing.T, dir string, m map[string]any) {
			rewrite(t, dir, m, "model.layers.2.input", slices.Repeat(slices.Repeat([]float32{1, -1}, 32), 9))
		}, report.Fail, "model.layers.2.input is the same for all tokens: attention and RoPE were not exercised", ""},
		"another input": {layersF32, func(t *testing.T, dir string, m map[string]any) {
			values := make([]float32, 9*64)
			for i := range values {
				values[i] = float32(i%7) - 3
			}
			rewrite(t, dir, m, "model.layers.2.input", values)
		}, report.Fail, "", "model.layers.2.input_layernorm.output"},
		"a stage that no model has": {layersF32, func(_ *testing.T, _ string, m map[string]any) {
			x := m["tensors"].(map[string]any)
			x["model.layers.2.mlp.experts.7.down_proj.output"] = x["model.layers.2.mlp.experts.7.output"]
		}, report.Fail, "the model has no such stage", "model.layers.2.mlp.experts.7.down_proj.output"},
		"a stage of an expert that there is not": {layersF32, func(_ *testing.T, _ string, m map[string]any) {
			x := m["tensors"].(map[string]any)
			x["model.layers.2.mlp.experts.16.output"] = x["model.layers.2.mlp.experts.7.output"]
		}, report.Fail, "the model has no such stage", "model.layers.2.mlp.experts.16.output"},
		"a stage of an expert without a token": {layersF32, func(_ *testing.T, _ string, m map[string]any) {
			x := m["tensors"].(map[string]any)
			x["model.layers.2.mlp.experts.0.output"] = x["model.layers.2.mlp.experts.7.output"]
		}, report.Fail, "the model gives this expert no token", "model.layers.2.mlp.experts.0.output"},
		"a recorded input that is another": {stagesF32, func(t *testing.T, dir string, m map[string]any) {
			_, p := open(t, stagesF32)
			values := must(p.Float32s("model.layers.2.input"))
			values[77] *= 1.001
			rewrite(t, dir, m, "model.layers.2.input", values)
		}, report.Fail, "", "model.layers.2.input"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _ := open(t, test.pack)
			r := run(t, c.Config, c, must(pack.Open(edited(t, test.pack, test.edit))), verify.Options{Undiagnosed: true})
			require.Equal(t, test.verdict, r.Verdict, "%v %v", r.FirstDivergence, r.Reasons)
			if test.stage == "" {
				require.Contains(t, r.Reasons, test.reason)
				return
			}
			require.Equal(t, test.stage, *r.FirstDivergence)
			check := r.Checks[slices.IndexFunc(r.Checks, func(c report.Check) bool { return c.Tensor == test.stage })]
			require.Equal(t, test.reason, check.Reason)
		})
	}
}

// TestBrokenPartialPacks are refused with the cause: what layers begin with is not there, not
// told, or not what it is said to be.
func TestBrokenPartialPacks(t *testing.T) {
	t.Parallel()
	const input = "model.layers.2.input"
	told := func(edit func(in map[string]any)) func(t *testing.T, dir string, m map[string]any) {
		return func(_ *testing.T, _ string, m map[string]any) {
			edit(m["layer_inputs"].(map[string]any)["2"].(map[string]any))
		}
	}
	for name, test := range map[string]struct {
		pack string
		edit func(t *testing.T, dir string, m map[string]any)
		want string
	}{
		"not told": {layersF32, func(_ *testing.T, _ string, m map[string]any) { delete(m, "layer_inputs") },
			`tensors: "model.layers.2.input": layer_inputs does not say where it is from`},
		"not there": {layersF32, dropping(func(name string) bool { return name == input }),
			"layer_inputs: layer 2: there is no tensor model.layers.2.input"},
		"neither told nor there": {layersBF16, func(t *testing.T, dir string, m map[string]any) {
			delete(m["layer_inputs"].(map[string]any), "4")
			dropping(func(name string) bool { return name == "model.layers.4.input" })(t, dir, m)
		}, "layer 4: what it begins with is not there: neither model.layers.4.input nor model.layers.3.output"},
		"the head's": {layersBF16, func(t *testing.T, dir string, m map[string]any) {
			dropping(func(name string) bool { return strings.HasPrefix(name, "model.layers.4.") })(t, dir, m)
			delete(m["layer_inputs"].(map[string]any), "4")
			m["absent"].(map[string]any)["layers"] = []int{0, 3, 4}
		}, "model.norm.output: what it begins with is not there: model.layers.4.output"},
		"another kind": {layersF32, told(func(in map[string]any) { in["kind"] = "guessed" }), `layer 2: kind "guessed", not "recorded" or "seeded"`},
		"recorded as something else": {stagesF32, told(func(in map[string]any) { in["is"] = "model.layers.0.output" }),
			`layer 2: recorded as "model.layers.0.output", but it begins with model.layers.1.output`},
		"of no layer": {layersF32, func(_ *testing.T, _ string, m map[string]any) {
			in := m["layer_inputs"].(map[string]any)
			in["02"] = in["2"]
		}, `layer_inputs: "02" is not the number of a layer`},
		"of a layer that the decoder has not": {layersBF16, func(_ *testing.T, _ string, m map[string]any) {
			x, in := m["tensors"].(map[string]any), m["layer_inputs"].(map[string]any)
			x["model.layers.5.input"], in["5"] = x["model.layers.4.input"], in["4"]
		}, "layer_inputs: layer 5: the decoder has layers 0-4"},
		"another shape": {layersF32, func(t *testing.T, dir string, m map[string]any) {
			rewrite(t, dir, m, input, make([]float32, 9*64), 9, 64)
			rewrite(t, dir, m, input, make([]float32, 9*63), 1, 9, 63)
		}, "model.layers.2.input: shape: golden [1 9 63], model [1 9 64]"},
		"another dtype": {layersF32, func(t *testing.T, dir string, m map[string]any) { rewrite(t, dir, m, input, make([]int, 9*64)) },
			"model.layers.2.input: dtype: golden I64, computed in F32"},
		"not finite": {layersF32, func(t *testing.T, dir string, m map[string]any) {
			rewrite(t, dir, m, input, append(make([]float32, 9*64-1), float32(math.Inf(1))))
		}, "model.layers.2.input: not finite, and a layer begins with it"},
		"a layer that is there and absent": {layersBF16, absent(func(a map[string]any) { a["layers"] = []int{0, 2, 3} }),
			`tensors: "model.layers.2.input_layernorm.output": its layer is said to be absent`},
		"an absent layer that is none": {layersBF16, absent(func(a map[string]any) { a["layers"] = []int{-1} }), "absent: layer -1 is none"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _ := open(t, test.pack)
			p, err := pack.Open(edited(t, test.pack, test.edit))
			if err == nil {
				_, err = verify.Run(context.Background(), c.Config, c, p, verify.Options{})
			}
			require.ErrorContains(t, err, test.want)
		})
	}
}

// unreadable is a source some weights of which must not be read.
type unreadable struct {
	weights.Source
	t    *testing.T
	must func(name string) bool
}

// Tensor implements weights.Source.
func (u unreadable) Tensor(name string) (tensor.Tensor, error) {
	if u.must(name) {
		u.t.Errorf("%s was read", name)
	}
	return u.Source.Tensor(name)
}

// TestOnlyChosenLayersAreRead: a wrong weight in a chosen layer fails; those of other layers
// are not touched, and said to be unread.
func TestOnlyChosenLayersAreRead(t *testing.T) {
	t.Parallel()
	for golden, chosen := range map[string][]string{layersF32: {"model.layers.2."}, layersBF16: {"model.layers.1.", "model.layers.2.", "model.layers.4.", "model.norm.", "lm_head."}} {
		c, p := open(t, golden)
		others := func(name string) bool {
			return !slices.ContainsFunc(chosen, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		}
		r := run(t, c.Config, unreadable{c, t, others}, p, verify.Options{})
		require.Equal(t, report.Pass, r.Verdict, r.Reasons)
		unread := 0
		for s := range table.FamilyOf(c.Config).Slots(c.Config) {
			if others(s.Name) {
				unread++
			}
		}
		require.Equal(t, unread, r.Scope.Weights)
		require.Contains(t, printed(t, r), " weights were not read, and not verified: those of "+strings.Join(r.Scope.UnreadParts, ", ")+"\n")
	}
	c, p := open(t, layersF32)
	for name, verdict := range map[string]report.Verdict{"model.layers.2.mlp.experts.7.up_proj.weight": report.Fail, "model.layers.2.self_attn.k_proj.weight": report.Fail,
		"model.layers.1.mlp.experts.7.up_proj.weight": report.Pass, "lm_head.weight": report.Pass} {
		w := get(t, c, name)
		w.Data[2*33] ^= 1 << 6
		require.Equal(t, verdict, run(t, c.Config, replace(c, name, w), p, verify.Options{}).Verdict, name)
	}
}

// needed is a source of which only some tensors were read.
type needed struct {
	unreadable
	holders map[string]bool
}

// Tensors implements weights.Source.
func (n needed) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for info := range n.Source.Tensors() {
			if !n.holders[info.Name] {
				info = tensor.Info{Name: info.Name}
			}
			if !yield(info) {
				return
			}
		}
	}
}

// TestReadsIsWhatRunReads: where nothing but the names of other tensors is known, Run gives the same report,
// which counts these.
func TestReadsIsWhatRunReads(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		golden string
		unread bool
		o      verify.Options
	}{
		{layersF32, true, verify.Options{}},
		{stagesF32, true, verify.Options{}},
		{"v1-base/golden-f32", false, verify.Options{}},
		{"v1-base/golden-f32", true, verify.Options{Layers: text.Spans{{0, 0}}}},
		{"v1-base/golden-f32", true, verify.Options{Stages: []string{"model.embed_tokens.output"}}},
		{"v1-base/golden-f32", true, verify.Options{Mode: report.Chained, Stages: []string{"output", "model.norm.output"}}},
		{"v3-fp8/golden-f32", true, verify.Options{Layers: text.Spans{{2, 2}}}},
		{"v3-mtp/golden-f32", false, verify.Options{}},
		{"v3-mtp/golden-f32", true, verify.Options{Layers: text.Spans{{2, 2}}}},
		{"v1-rope-linear-tied-bias/golden-f32", true, verify.Options{Stages: []string{"lm_head.output"}}},
		{"v1-rope-linear-tied-bias/golden-f32", true, verify.Options{Layers: text.Spans{{1, 1}}}},
	} {
		c, p := open(t, x.golden)
		var src weights.Source = c
		if c.Config.TieWordEmbeddings {
			src = withHead(c, get(t, c, "model.embed_tokens.weight")) // which the published code compares
		}
		want := run(t, c.Config, src, p, x.o)
		n := needed{holders: weights.Holders(c.Config, src, must(verify.Reads(c.Config, p, x.o)))}
		n.unreadable = unreadable{src, t, func(name string) bool { return !n.holders[name] }}
		r := run(t, c.Config, n, p, x.o)
		require.Equal(t, report.Pass, r.Verdict, r.Reasons)
		require.Equal(t, x.unread, r.Scope.ByName > 0, x)
		require.Equal(t, r.Scope.ByName > 0, strings.Contains(printed(t, r), " in files whose headers were not read: their shapes were not checked\n"))
		r.Scope.ByName = 0
		for i := range r.Places {
			r.Places[i].ByName = 0
		}
		require.Equal(t, want, r)
	}
}

// TestSelection: what is selected is compared, by the golden's own inputs; the rest is not, and
// not read where nothing depends on it.
func TestSelection(t *testing.T) {
	t.Parallel()
	spans := func(s string) text.Spans { return must(text.ParseSpans(s, "layers")) }
	for name, test := range map[string]struct {
		pack    string
		o       verify.Options
		checked int
		text    string
		unread  func(name string) bool
	}{
		"layers": {"v3/golden-f32", verify.Options{Layers: spans("0,2-3")}, 13 + 2*18, "layers 0, 2, 3 of 5, as selected",
			func(name string) bool {
				return !strings.HasPrefix(name, "model.layers.") || name[13] == '1' || name[13] == '4'
			}},
		"stages": {"v3/golden-f32", verify.Options{Stages: []string{"mlp.gate.*", "lm_head.output"}}, 3*3 + 1, "layers 2-4 of 5, the head, stages mlp.gate.*, lm_head.output, as selected",
			func(name string) bool {
				return strings.HasPrefix(name, "model.layers.0.") || strings.HasPrefix(name, "model.layers.1.") || name == "model.embed_tokens.weight"
			}},
		"both": {"v3/golden-f32", verify.Options{Layers: spans("2"), Stages: []string{"self_attn.*"}}, 9, "layer 2 of 5, stages self_attn.*, as selected",
			func(name string) bool { return !strings.HasPrefix(name, "model.layers.2.") }},
		"a whole name": {"v3/golden-f32", verify.Options{Stages: []string{"model.layers.3.mlp.experts.output"}}, 1, "layer 3 of 5, stages model.layers.3.mlp.experts.output, as selected", nil},
		"RoPE's tables, too": {innerBF16, verify.Options{Layers: spans("1"), Stages: []string{"self_attn.attn_weights", "mlp.experts.[0-9].output"}}, 3 + 8,
			"layer 1 of 4, stages self_attn.attn_weights, mlp.experts.[0-9].output, as selected", nil},
		"of a partial pack": {layersBF16, verify.Options{Layers: spans("4")}, 2 + 18 + 1 + 3 + 4*13, "layer 4 of 5, as selected", nil},
		"of recorded inputs": {stagesF32, verify.Options{Layers: spans("2")}, 0, "layer 2 of 5, as selected",
			func(name string) bool { return !strings.HasPrefix(name, "model.layers.2.") }},
		"gradients":        {trainInner, verify.Options{Stages: []string{"mlp.gate.*"}}, 2 + 3*5, "", nil},
		"prediction layer": {"v3-mtp/golden-f32", verify.Options{Layers: spans("2")}, 23, "prediction layer 2, as selected", func(name string) bool { return strings.HasPrefix(name, "model.layers.0.") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, p := open(t, test.pack)
			if test.unread == nil {
				test.unread = func(string) bool { return false }
			}
			r := run(t, c.Config, unreadable{c, t, test.unread}, p, test.o)
			require.Equal(t, report.Pass, r.Verdict, "%v %v", r.FirstDivergence, r.Reasons)
			require.True(t, r.Scope.Selected)
			if test.checked > 0 {
				require.Equal(t, test.checked, len(r.Checks))
			}
			if test.text != "" {
				require.Equal(t, test.text, r.Scope.Text)
			}
			require.Equal(t, len(r.Checks), r.Coverage.GoldenChecked)
			require.Equal(t, r.Coverage.GoldenTensors, r.Coverage.GoldenChecked+r.Scope.NotLooked)
			require.Contains(t, printed(t, r), "verdict    PASS: "+r.Scope.Text+" ("+exercised(r)+")\n")
		})
	}
}

// TestSelectionHidesNothing: a mistake outside of the selection is not seen, and the weights
// are said to be unchecked; one in it is, RoPE's among them.
func TestSelectionHidesNothing(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v3/golden-f32")
	const name = "model.layers.2.self_attn.o_proj.weight"
	w := get(t, c, name)
	wrong := replace(c, name, scaled(t, w, 2, row(w, 3)...))
	r := run(t, c.Config, wrong, p, verify.Options{Stages: []string{"mlp.*"}})
	require.Equal(t, report.Pass, r.Verdict)
	require.Equal(t, 5*9, r.Scope.LeftOut, "norms and projections of attention")
	require.Empty(t, r.Coverage.WeightsUnchecked)
	require.Contains(t, printed(t, r), " weights were run, but not checked: stages are not selected, or absent on purpose\n")
	require.NotContains(t, printed(t, r), "213 of 213 weights")
	r = run(t, c.Config, wrong, p, verify.Options{Layers: must(text.ParseSpans("2", "layers"))})
	requireFails(t, r, "model.layers.2.self_attn.o_proj.output", "weight-scaled")

	c, p = open(t, innerBF16)
	r = run(t, override(t, c.Config, "rope_theta", "10100.0"), c, p, verify.Options{Stages: []string{"self_attn.o_proj.*"}})
	requireFails(t, r, "model.rotary_emb.cos", "rope-theta")
	for want, o := range map[string]verify.Options{
		": layers 2,7-8: 7, 8 not there: the pack has 0-3":                         {Layers: must(text.ParseSpans("2,7-8", "layers"))},
		`: stages "mlp.gat.*": the pack has no such stage; stages "[": not a glob`: {Stages: []string{"mlp.gat.*", "["}},
		`: stages "input_ids": the pack has no such stage`:                         {Stages: []string{"input_ids"}},
		": nothing is selected: the pack has none of these stages in these layers": {Layers: must(text.ParseSpans("0", "layers")), Stages: []string{"mlp.gate.*"}},
	} {
		_, err := verify.Run(context.Background(), c.Config, c, p, o)
		require.ErrorContains(t, err, want)
	}
}

// TestFailFast stops at the first failing stage, and says what was not looked at.
func TestFailFast(t *testing.T) {
	t.Parallel()
	for _, mode := range []report.Mode{report.Local, report.Chained} {
		c, p := open(t, "v1-base/golden-f32")
		src := swap(t, c, moe1+"experts.3.up_proj.weight", moe1+"experts.9.up_proj.weight")
		whole := run(t, c.Config, src, p, verify.Options{Mode: mode})
		r := run(t, c.Config, src, p, verify.Options{Mode: mode, FailFast: true})
		require.Equal(t, report.Fail, r.Verdict)
		require.True(t, r.Stopped)
		require.Equal(t, whole.FirstDivergence, r.FirstDivergence)
		require.Equal(t, whole.Causes, r.Causes)
		require.Equal(t, len(whole.Checks), len(r.Checks))
		at, looked := slices.IndexFunc(r.Checks, func(c report.Check) bool { return c.Tensor == *r.FirstDivergence }), 0
		for _, check := range r.Checks {
			if check.Reason == "not looked at: the run stopped at the first failing stage" {
				require.Equal(t, report.Skipped, check.Verdict)
			} else {
				looked++
			}
		}
		require.Equal(t, at+1, looked)
		require.Equal(t, len(r.Checks)-looked, r.Scope.NotLooked)
		require.NotContains(t, printed(t, r), "no token reached")
		require.Contains(t, printed(t, r), "verdict    FAIL\n           stopped at the first failing stage: ")
		right := run(t, c.Config, c, p, verify.Options{Mode: mode, FailFast: true})
		require.Equal(t, run(t, c.Config, c, p, verify.Options{Mode: mode}), right)
	}
}

// TestInnerStagesAreUsed: a weight of an expert that is off by one unit is found at the stage of
// its own projection; with what went into down_proj known, neurons are not looked for.
func TestInnerStagesAreUsed(t *testing.T) {
	t.Parallel()
	c, p := open(t, innerBF16)
	right := run(t, c.Config, c, p, verify.Options{})
	for _, check := range right.Checks {
		require.Nil(t, check.NeuronZ, check.Tensor)
	}
	const expert = "model.layers.2.mlp.experts.0."
	for proj, stage := range map[string]string{"gate_proj": "gate_proj.output", "up_proj": "up_proj.output", "down_proj": "output"} {
		w := get(t, c, expert+proj+".weight")
		r := run(t, c.Config, replace(c, expert+proj+".weight", scaled(t, w, 2, row(w, 5)...)), p, verify.Options{})
		requireFails(t, r, expert+stage, "weight-scaled")
		failing := 0
		for _, check := range r.Checks {
			if check.Verdict == report.Fail {
				failing++
			}
		}
		require.Equal(t, 1, failing, "the stages behind it are fed the golden")
	}
}

// TestCausesOfInnerStages are those that are found without them, at the first stage that shows
// them.
func TestCausesOfInnerStages(t *testing.T) {
	t.Parallel()
	c, p := open(t, innerBF16)
	mlp2 := "model.layers.2.mlp."
	gate := get(t, c, moe1+"gate.weight")
	for name, test := range map[string]struct {
		src          weights.Source
		stage, cause string
	}{
		"gate and up of an expert": {swap(t, c, mlp2+"experts.0.gate_proj.weight", mlp2+"experts.0.up_proj.weight"), mlp2 + "experts.0.gate_proj.output", "gate-up-swapped"},
		"gate and up of a dense layer": {swap(t, c, "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"),
			"model.layers.0.mlp.gate_proj.output", "gate-up-swapped"},
		"two experts": {swap(t, c, mlp2+"experts.0.gate_proj.weight", mlp2+"experts.1.gate_proj.weight", mlp2+"experts.0.up_proj.weight", mlp2+"experts.1.up_proj.weight",
			mlp2+"experts.0.down_proj.weight", mlp2+"experts.1.down_proj.weight"), mlp2 + "experts.0.gate_proj.output", "experts-swapped"},
		"the order of experts": {lexicographic(t, c, c.Config), moe1 + "experts.2.gate_proj.output", "expert-order"},
		"the router's rows":    {replace(c, moe1+"gate.weight", rotateRows(gate)), moe1 + "gate.logits", "router-rows"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireFails(t, run(t, c.Config, test.src, must(pack.Open(fixture(innerBF16))), verify.Options{}), test.stage, test.cause)
		})
	}
	requireFails(t, run(t, override(t, c.Config, "num_experts_per_tok", "3"), c, p, verify.Options{}), moe1+"gate.topk_idx", "experts-per-token")
}

// TestGivenInputsAreNoWhole: with every layer recorded, one of them from an input of its own, a
// pass is none of the whole model.
func TestGivenInputsAreNoWhole(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-base/golden-f32")
	const input = "model.layers.2.input"
	dir := edited(t, "v1-base/golden-f32", func(t *testing.T, dir string, m map[string]any) {
		tensors := m["tensors"].(map[string]any)
		tensors[input] = maps.Clone(tensors["model.layers.2.output"].(map[string]any))
		refile(t, dir, m, "layer-002.safetensors", func(x map[string]view) { x[input] = x["model.layers.2.output"] })
		rewrite(t, dir, m, input, must(p.Float32s("model.layers.1.output")))
		m["layer_inputs"] = map[string]any{"2": map[string]any{"kind": "seeded", "seed": 1}}
	})
	r := run(t, c.Config, c, must(pack.Open(dir)), verify.Options{})
	require.Equal(t, report.Pass, r.Verdict, r.Reasons)
	require.False(t, r.Scope.Whole)
	require.Contains(t, printed(t, r), "verdict    PASS: the embedding, layers 0-3 of 4, the head ("+exercised(r)+")\n")
}

// TestTiedHeadAlone: the head's weight is the embedding's, which is not said to be verified as
// an embedding.
func TestTiedHeadAlone(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-rope-linear-tied-bias/golden-f32")
	require.True(t, c.Config.TieWordEmbeddings)
	r := run(t, c.Config, c, p, verify.Options{Stages: []string{"lm_head.output"}})
	require.Equal(t, report.Pass, r.Verdict, r.Reasons)
	require.Equal(t, "the head, stages lm_head.output, as selected", r.Scope.Text)
	require.Zero(t, r.Coverage.EmbeddingRows)
}
