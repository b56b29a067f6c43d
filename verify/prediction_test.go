package verify_test

import (
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// mtp2 is the prediction layer of v3-mtp.
const mtp2 = "model.layers.2."

// halved exchanges the halves of each row of a matrix.
func halved(w tensor.Tensor) tensor.Tensor {
	n := len(w.Data) / w.Shape[0]
	var data []byte
	for r := range w.Shape[0] {
		data = append(append(data, w.Data[r*n+n/2:(r+1)*n]...), w.Data[r*n:r*n+n/2]...)
	}
	w.Data = data
	return w
}

// TestMistakesInPredictionLayers are found at the stage at fault, in local mode and end to end.
func TestMistakesInPredictionLayers(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v3-mtp/golden-f32")
	change := func(name string, f func(w tensor.Tensor) tensor.Tensor) weights.Source {
		return replace(c, mtp2+name, f(get(t, c, mtp2+name)))
	}
	for name, test := range map[string]struct {
		src            weights.Source
		stage, chained string // that fail in local mode, and end to end
		cause          string
	}{
		"a row of eh_proj": {change("eh_proj.weight", func(w tensor.Tensor) tensor.Tensor {
			copy(w.Row(7).Data, w.Row(8).Data)
			return w
		}), "eh_proj.output", "output", ""},
		"a weight of eh_proj": {change("eh_proj.weight", func(w tensor.Tensor) tensor.Tensor {
			w.Data[2*(128*7+99)] ^= 8 // of BF16's 8 bits the fifth
			return w
		}), "eh_proj.output", "output", ""},
		"halves exchanged":          {change("eh_proj.weight", halved), "eh_proj.output", "output", "mtp-halves"},
		"enorm and hnorm exchanged": {swap(t, c, mtp2+"enorm.weight", mtp2+"hnorm.weight"), "enorm.output", "output", "mtp-norms"},
		"another norm before the head": {swap(t, c, mtp2+"shared_head.norm.weight", "model.layers.1.input_layernorm.weight"),
			"shared_head.norm.output", "shared_head.norm.output", ""},
		"embedding of the token before": {change("embed_tokens.weight", rotateRows), "enorm.output", "output", "mtp-copy"},
		"another head":                  {change("shared_head.head.weight", rotateRows), "shared_head.head.output", "shared_head.head.output", "mtp-copy"},
		"rows of the gate":              {change("mlp.gate.weight", rotateRows), "mlp.gate.logits", "mlp.gate.topk_idx", "router-rows"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			elsewhere := name == "another norm before the head" // which is exchanged with another layer's
			for mode, stage := range map[report.Mode]string{report.Local: test.stage, report.Chained: test.chained} {
				r := run(t, c.Config, test.src, p, verify.Options{Mode: mode})
				require.Equal(t, report.Fail, r.Verdict)
				failed := func(c report.Check) bool { return c.Tensor == mtp2+stage && c.Verdict == report.Fail }
				require.True(t, slices.ContainsFunc(r.Checks, failed), stage)
				if mode == report.Local && !elsewhere {
					requireFails(t, r, mtp2+test.stage, test.cause)
				}
				for _, c := range r.Checks {
					if c.Verdict == report.Fail && !strings.HasPrefix(c.Tensor, mtp2) {
						require.True(t, elsewhere, c.Tensor)
					}
				}
			}
		})
	}
}

// TestEveryWeightOfAPredictionLayerIsHeld_every: a row of any of them, doubled, is found, but of the
// experts that no token reached.
func TestEveryWeightOfAPredictionLayerIsHeld_every(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v3-mtp/golden-f32")
	right := run(t, c.Config, c, p, verify.Options{})
	require.Equal(t, report.Pass, right.Verdict)
	require.Equal(t, []report.LayerExperts{{Layer: "model.layers.1", Experts: []int{0, 9, 12}}, {Layer: "model.layers.2", Experts: []int{0, 1, 2, 3, 15}}}, right.Coverage.Unreached)
	require.Equal(t, 1, right.Coverage.EmbeddingCopies)
	require.Contains(t, printed(t, right), "\n           15 of 80 rows of the embedding, and of prediction layers' copies of it no others\n")
	held := 0
	for s := range table.FamilyOf(c.Config).MTPSlots(c.Config) {
		if slices.Contains([]int{0, 1, 2, 3, 15}, s.Expert) {
			continue
		}
		if held++; held%3 > 0 && !configtest.Every(t) {
			continue
		}
		w := get(t, c, s.Name)
		row := 0
		if s.Row.LookedUp() {
			row = must(p.Ints("input_ids"))[5]
		}
		double(t, w, row)
		require.Equal(t, report.Fail, run(t, c.Config, replace(c, s.Name, w), p, verify.Options{Undiagnosed: true}).Verdict, s.Name)
	}
	require.Equal(t, 68-5*3, held)
}

// double doubles a row of a matrix, or element 5 of a vector: its exponent, by one.
func double(t *testing.T, w tensor.Tensor, row int) {
	t.Helper()
	first, end, size := 0, len(w.Data), int(w.DType.Bytes(1))
	if len(w.Shape) == 2 {
		first, end = row*end/w.Shape[0], (row+1)*end/w.Shape[0]
	} else {
		first, end = 5*size, 6*size
	}
	for at := first + size - 2; at < end; at += size { // BF16, and F32, have 8 bits of exponent
		w.Data[at+1] += (w.Data[at] >> 7) & 1
		w.Data[at] ^= 0x80
	}
}

// without is a pack of v3-mtp that lacks some tensors, and names some kinds of stages as absent.
func without(t *testing.T, lacks func(name string) bool, absent ...string) *pack.Pack {
	return must(pack.Open(rewritten(t, "v3-mtp/golden-f32", func(dir string, m map[string]any) {
		maps.DeleteFunc(m["tensors"].(map[string]any), func(name string, _ any) bool { return lacks(name) })
		prune(t, dir, m)
		m["absent"] = pack.Absent{Stages: absent}
	})))
}

// TestPredictionStagesMayBeAbsent: errors are carried on over stages that the pack has not, and
// says it has not; without the last of them there is nothing to hold some weights against.
func TestPredictionStagesMayBeAbsent(t *testing.T) {
	t.Parallel()
	c, _ := open(t, "v3-mtp/golden-f32")
	inner := func(name string) bool {
		return slices.Contains([]string{mtp2 + "enorm.output", mtp2 + "hnorm.output", mtp2 + "shared_head.norm.output"}, name)
	}
	p := without(t, inner, "enorm.output", "hnorm.output", "shared_head.norm.output")
	r := run(t, c.Config, c, p, verify.Options{})
	require.Equal(t, report.Pass, r.Verdict, r.Reasons)
	require.Equal(t, []string{"enorm.output", "hnorm.output", "shared_head.norm.output"}, r.Free)
	r = run(t, c.Config, swap(t, c, mtp2+"enorm.weight", mtp2+"hnorm.weight"), p, verify.Options{})
	requireFails(t, r, mtp2+"eh_proj.output", "")

	r = run(t, c.Config, c, without(t, inner), verify.Options{})
	require.Equal(t, report.Inconclusive, r.Verdict)
	require.Equal(t, []string{"the pack has none of these stages, and its manifest does not name them as absent: enorm.output, hnorm.output, shared_head.norm.output"}, r.Reasons)

	head := func(name string) bool { return strings.HasPrefix(name, mtp2+"shared_head.") }
	r = run(t, c.Config, c, without(t, head, "shared_head.norm.output", "shared_head.head.output"), verify.Options{})
	require.Equal(t, report.Inconclusive, r.Verdict)
	require.Equal(t, []string{mtp2 + "shared_head.norm.weight", mtp2 + "shared_head.head.weight"}, r.Coverage.WeightsUnchecked)

	r = run(t, c.Config, c, without(t, func(name string) bool { return name == mtp2+"mlp.gate.logits" }), verify.Options{})
	requireFails(t, r, mtp2+"mlp.gate.logits", "")

	r = run(t, c.Config, c, without(t, func(name string) bool { return strings.HasPrefix(name, mtp2) }), verify.Options{})
	require.Equal(t, report.Pass, r.Verdict)
	require.Equal(t, 68, r.Coverage.OutsideForward)
	require.Equal(t, 77, r.Coverage.Weights)
	require.Contains(t, r.Config.Unexercised, report.Unexercised{Key: "num_nextn_predict_layers", Why: "the pack has stages of 0 of 1 prediction layers"})
}

// lacking is a source without some tensors.
type lacking struct {
	weights.Source
	lacks func(name string) bool
}

// Tensors yields the others.
func (l lacking) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for i := range l.Source.Tensors() {
			if !l.lacks(i.Name) && !yield(i) {
				return
			}
		}
	}
}

// TestPredictionLayersWithoutCopies use the model's embedding and head; a mistake in these is
// found in both places.
func TestPredictionLayersWithoutCopies(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v3-mtp/golden-f32")
	src := lacking{c, func(name string) bool {
		return name == mtp2+"embed_tokens.weight" || name == mtp2+"shared_head.head.weight"
	}}
	r := run(t, c.Config, src, p, verify.Options{})
	require.Equal(t, report.Pass, r.Verdict)
	require.Equal(t, 145-2, r.Coverage.Weights)
	r = run(t, c.Config, replace(src, "lm_head.weight", rotateRows(get(t, c, "lm_head.weight"))), p, verify.Options{})
	requireFails(t, r, "lm_head.output", "rows-permuted")
	last := r.Checks[len(r.Checks)-1]
	require.Equal(t, mtp2+"shared_head.head.output", last.Tensor)
	require.Equal(t, report.Fail, last.Verdict)
}

// TestPredictionLayersThatAreNotThere: stages of one that the checkpoint lacks, whether
// config.json announces it or not, are not checked, and that is no pass.
func TestPredictionLayersThatAreNotThere(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v3-mtp/golden-f32")
	src := lacking{c, func(name string) bool { return strings.HasPrefix(name, mtp2) }}
	for _, announced := range []string{"1", "0"} {
		cfg := override(t, c.Config, "num_nextn_predict_layers", announced)
		for _, mode := range []report.Mode{report.Local, report.Chained} {
			r := run(t, cfg, src, p, verify.Options{Mode: mode})
			require.Equal(t, report.Inconclusive, r.Verdict)
			require.Equal(t, []string{"23 golden tensors of prediction layers cannot be compared: the checkpoint lacks these layers, or one before"}, r.Reasons)
			require.Subset(t, r.Coverage.GoldenUnchecked, []string{mtp2 + "eh_proj.output"})
			require.Zero(t, r.Coverage.OutsideForward)
		}
	}
}

// TestNotFiniteInAPredictionLayer: a row of its embedding that the input does not read.
func TestNotFiniteInAPredictionLayer(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v3-mtp/golden-f32")
	w := get(t, c, mtp2+"embed_tokens.weight")
	ids := must(p.Ints("input_ids"))
	row := 0
	for slices.Contains(ids, row) {
		row++
	}
	copy(w.Row(row).Data, []byte{0xc0, 0x7f})
	r := run(t, c.Config, replace(c, mtp2+"embed_tokens.weight", w), p, verify.Options{})
	require.Equal(t, report.Inconclusive, r.Verdict)
	require.Contains(t, r.Reasons[0], mtp2+"embed_tokens.weight holds NaN at [")
}

// TestMistakesInTheSecondPredictionLayer are named, too: it is run again from what the first
// gives, one token less.
func TestMistakesInTheSecondPredictionLayer(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v3-mtp-two/golden-bf16")
	const mtp3 = "model.layers.3."
	proj, gate := mtp3+"eh_proj.weight", mtp3+"mlp.gate.weight"
	requireFails(t, run(t, c.Config, replace(c, proj, halved(get(t, c, proj))), p, verify.Options{}), mtp3+"eh_proj.output", "mtp-halves")
	requireFails(t, run(t, c.Config, replace(c, gate, rotateRows(get(t, c, gate))), p, verify.Options{}), mtp3+"mlp.gate.logits", "router-rows")
	requireFails(t, run(t, c.Config, swap(t, c, mtp3+"enorm.weight", mtp3+"hnorm.weight"), p, verify.Options{}), mtp3+"enorm.output", "mtp-norms")
}

// TestSecondPredictionLayerAlone: without the first in the checkpoint it cannot be run; without
// the second in the pack the first is verified, and the second's weights are outside.
func TestSecondPredictionLayerAlone(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v3-mtp-two/golden-bf16")
	r := run(t, c.Config, lacking{c, func(name string) bool { return strings.HasPrefix(name, mtp2) }}, p, verify.Options{})
	require.Equal(t, report.Inconclusive, r.Verdict)
	require.Equal(t, 68, r.Coverage.OutsideForward)
	require.Contains(t, r.Reasons, "46 golden tensors of prediction layers cannot be compared: the checkpoint lacks these layers, or one before")

	dir := rewritten(t, "v3-mtp-two/golden-bf16", func(dir string, m map[string]any) {
		maps.DeleteFunc(m["tensors"].(map[string]any), func(name string, _ any) bool { return strings.HasPrefix(name, "model.layers.3.") })
		prune(t, dir, m)
	})
	r = run(t, c.Config, c, must(pack.Open(dir)), verify.Options{})
	require.Equal(t, report.Pass, r.Verdict)
	require.Equal(t, 68, r.Coverage.OutsideForward)
	require.Equal(t, 145, r.Coverage.Weights)
	require.Contains(t, r.Config.Unexercised, report.Unexercised{Key: "num_nextn_predict_layers", Why: "the pack has stages of 1 of 2 prediction layers"})
}
