package verify_test

import (
	"encoding/binary"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// nudged returns a BF16 weight in which the largest element of a row is a number of units further from zero.
func nudged(w tensor.Tensor, row, units int) tensor.Tensor {
	columns := w.Shape[len(w.Shape)-1]
	size := func(i int) uint16 { return binary.LittleEndian.Uint16(w.Data[2*i:]) &^ (1 << 15) }
	at := row * columns
	for i := range columns {
		if size(row*columns+i) > size(at) {
			at = row*columns + i
		}
	}
	binary.LittleEndian.PutUint16(w.Data[2*at:], binary.LittleEndian.Uint16(w.Data[2*at:])+uint16(units))
	return w
}

// TestWrongWeightsOfTrainedModels: a weight that is one to four units of BF16 off fails the stage that it
// belongs to, and the report names its row, or its expert and neuron.
func TestWrongWeightsOfTrainedModels(t *testing.T) {
	t.Parallel()
	for _, golden := range trained {
		c, p := open(t, golden)
		expert, _ := firstExperts(t, p)
		prefix := moe1 + "experts." + strconv.Itoa(expert)
		rows := func(want ...int) func(t *testing.T, c report.Check) {
			return func(t *testing.T, c report.Check) { require.Equal(t, want, c.WeightRows) }
		}
		neuron := func(t *testing.T, c report.Check) {
			require.Equal(t, []int{expert}, c.Experts)
			require.Equal(t, []int{expert, 7}, []int{c.Neuron.Expert, c.Neuron.Index})
		}
		for _, test := range []struct {
			weight     string
			row, units int
			stage      string
			cause      string
			located    func(t *testing.T, c report.Check)
		}{
			{moe1 + "gate.weight", 5, 1, moe1 + "gate.logits", "weight-elements", rows(5)},
			{"model.layers.2.self_attn.o_proj.weight", 33, 1, "model.layers.2.self_attn.o_proj.output", "weight-elements", rows(33)},
			{"model.layers.3.post_attention_layernorm.weight", 0, 1, "model.layers.3.post_attention_layernorm.output", "norm-weight",
				func(t *testing.T, c report.Check) { require.Contains(t, c.Where, "all in column ") }},
			{prefix + ".up_proj.weight", 7, 4, moe1 + "experts.output", "", neuron},
			{prefix + ".gate_proj.weight", 7, 4, moe1 + "experts.output", "", neuron},
			{prefix + ".down_proj.weight", 7, 4, moe1 + "experts.output", "weight-elements", func(t *testing.T, c report.Check) {
				require.Equal(t, []int{expert}, c.Experts)
				require.Equal(t, "all in column 7", c.Where)
			}},
		} {
			t.Run(golden+" "+test.weight, func(t *testing.T) {
				t.Parallel()
				w := nudged(get(t, c, test.weight), test.row, test.units)
				layer := pack.Parse(test.weight).Layer
				o := verify.Options{Layers: text.Spans{{layer, layer}}}
				r := run(t, c.Config, replace(c, test.weight, w), p, o)
				requireFails(t, r, test.stage, test.cause)
				at := slices.IndexFunc(r.Checks, func(c report.Check) bool { return c.Tensor == test.stage })
				test.located(t, r.Checks[at])
			})
		}
	}
}

// firstExperts are two that the first token chose in layer 1.
func firstExperts(t *testing.T, p *pack.Pack) (a, b int) {
	t.Helper()
	chosen, err := p.Ints(moe1 + "gate.topk_idx")
	require.NoError(t, err)
	return chosen[0], chosen[1]
}

// TestExchangedExpertsOfTrainedModels are named.
func TestExchangedExpertsOfTrainedModels(t *testing.T) {
	t.Parallel()
	for _, golden := range trained {
		c, p := open(t, golden)
		first, second := firstExperts(t, p)
		var pairs []string
		for _, proj := range []string{"gate_proj", "up_proj", "down_proj"} {
			for _, e := range []int{first, second} {
				pairs = append(pairs, moe1+"experts."+strconv.Itoa(e)+"."+proj+".weight")
			}
		}
		r := run(t, c.Config, swap(t, c, pairs...), p, verify.Options{})
		requireFails(t, r, moe1+"experts.output", "experts-swapped")
	}
}

// TestTrainedModelInBF16 passes with RoPE's tables in the pack, and without them: all of its frequencies are certain.
// With half a unit of doubt about each, the scores of two rows, some hundreds large, might be any of several numbers.
func TestTrainedModelInBF16(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-trained/golden-bf16")
	r := run(t, c.Config, c, p, verify.Options{})
	require.Equal(t, report.Pass, r.Verdict, r.Reasons)
	require.Equal(t, r.Coverage.Experts, r.Coverage.ExpertsReached)
	require.Zero(t, r.Routing.Mismatches)

	dir := rewritten(t, "v1-trained/golden-bf16", func(dir string, m map[string]any) {
		maps.DeleteFunc(m["tensors"].(map[string]any), func(name string, _ any) bool {
			return strings.HasPrefix(name, "model.rotary_emb.")
		})
		prune(t, dir, m)
	})
	r = run(t, c.Config, c, must(pack.Open(dir)), verify.Options{})
	require.Equal(t, report.Pass, r.Verdict, r.Reasons)
}

// TestTablesOfFloat32Packs: they are stages, and what follows is computed with the pack's.
func TestTablesOfFloat32Packs(t *testing.T) {
	t.Parallel()
	c, p := open(t, "axk1/golden-f32")
	r := run(t, c.Config, c, p, verify.Options{})
	require.Equal(t, report.Pass, r.Verdict, r.Reasons)
	cosines, err := p.Float32s(pack.RotaryCos)
	require.NoError(t, err)
	dir := rewritten(t, "axk1/golden-f32", func(dir string, m map[string]any) {
		for i := range cosines {
			cosines[i] *= 1 + 1e-5
		}
		rewrite(t, dir, m, pack.RotaryCos, cosines, p.Manifest.Tensors[pack.RotaryCos].Shape...)
	})
	r = run(t, c.Config, c, must(pack.Open(dir)), verify.Options{})
	requireFails(t, r, pack.RotaryCos, "")
	for _, check := range r.Checks {
		if check.Tensor == "model.layers.0.self_attn.o_proj.input" {
			require.Equal(t, report.Fail, check.Verdict, "queries and keys are rotated by the pack's tables")
		}
	}
}
