package verify

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
	"dsmoe/verify/verifytest"
)

// replaying is a trainer whose router gives the weights of experts that a rollout chose.
type replaying struct {
	rounding
	choices [][]int // of layers with experts
	own     bool    // nothing is replayed
	zeros   bool    // scores of experts that the router does not choose by itself are 0
	layer   int
	chosen  []int // by the router itself
}

func (e *replaying) TopK(scores *model.Activation, k int) []int {
	e.chosen = e.Plain.TopK(scores, k)
	if e.own || scores.Width() != 32 { // groups
		return e.chosen
	}
	e.layer++
	return slices.Clone(e.choices[e.layer-1])
}

func (e *replaying) Move(m *model.Move, operands ...*model.Activation) *model.Activation {
	if scores := operands[0]; e.zeros && scores.Width() == 32 && len(e.chosen) > 0 {
		k := len(e.chosen) / scores.Rows()
		zeroed := &model.Activation{Shape: scores.Shape, DType: scores.DType, Values: slices.Clone(scores.Values)}
		for i := range zeroed.Values {
			if row := i / 32; !slices.Contains(e.chosen[row*k:(row+1)*k], i%32) {
				zeroed.Values[i] = 0
			}
		}
		operands, e.chosen = []*model.Activation{zeroed}, nil
	}
	return e.Plain.Move(m, operands...)
}

// TestReplay_every: a trainer that replays a rollout's choices passes; wrong replays fail, with their cause.
func TestReplay_every(t *testing.T) {
	t.Parallel()
	ids := make([]int, 192)
	for i := range ids {
		ids[i] = i * 89 % 251
	}
	c, _, record := recordingTrained(t, ids)
	k := c.Config.MoE.NumExpertsPerTok
	trace := func(of model.Arithmetic[*model.Activation], plain **model.Plain) *pack.Pack {
		p := record(func(p *model.Plain) model.Arithmetic[*model.Activation] {
			*plain = p
			return of
		})
		p.Manifest.Reference = pack.Reference{Kind: pack.Engine, Name: "engine", Version: "1"}
		return p
	}
	once := rounding{normsOnce: true}
	rollout := trace(&once, &once.Plain)
	var choices [][]int
	for _, layer := range []string{"1", "2", "3"} {
		idx, err := rollout.Ints("model.layers." + layer + "." + pack.TopKIdx)
		require.NoError(t, err)
		choices = append(choices, idx)
	}
	each := func(change func(idx []int) []int) (changed [][]int) {
		for _, idx := range choices {
			changed = append(changed, change(slices.Clone(idx)))
		}
		return changed
	}
	verify := func(of replaying) *report.Report {
		r, err := Run(context.Background(), c.Config, c, trace(&of, &of.Plain), Options{RotaryDType: tensor.BF16, Replay: rollout})
		require.NoError(t, err)
		return r
	}

	r := verify(replaying{choices: choices})
	require.Nil(t, r.FirstDivergence, "%v", r.Cause)
	require.Equal(t, report.Pass, r.Verdict, r.Reasons)
	require.Len(t, r.Coverage.WeightsUnpinned, 3, "the biases decide nothing")
	text := &strings.Builder{}
	require.NoError(t, r.WriteText(text))
	require.Regexp(t, `^verdict    PASS with replayed choices of experts \(`, text.String())
	require.Regexp(t, `replay     \d,\d+ choices of experts: 0 differ from those of ""; [1-9]\d* are not the router's own\n`, text.String())
	require.NotRegexp(t, `(?m)^routing`, text.String())

	for name, wrong := range map[string]struct {
		of            replaying
		id, at, words string
	}{
		"shift": {replaying{choices: each(func(idx []int) []int { return append(idx[len(idx)-k:], idx[:len(idx)-k]...) })},
			"replay-shift", pack.TopKIdx, "layers 1-3: each token has the choices of the one 1 place before it"},
		"layer": {replaying{choices: append(slices.Clone(choices[1:]), choices[0])},
			"replay-layer", pack.TopKIdx, "layer 1: has the choices of model.layers.2; layer 2: has the choices of model.layers.3; " +
				"layer 3: has the choices of model.layers.1"},
		"stale": {replaying{choices: each(func(idx []int) []int {
			for token := 100; token < 130; token++ {
				copy(idx[token*k:], idx[99*k:100*k])
			}
			return idx
		})}, "replay-stale", pack.TopKIdx, "layers 1-3: has choices again that are stale: row 99's from row 100 on"},
		"own": {replaying{own: true}, "replay-own", pack.TopKIdx, "layer 1: the router's own choices are in "},
		"zeros": {replaying{choices: choices, zeros: true}, "replay-zeros", pack.TopKWeight,
			"the engine replays choices, and the weights of experts that its router does not choose by itself are 0"},
	} {
		if name != "shift" && name != "zeros" && !configtest.Every(t) {
			continue
		}
		r := verify(wrong.of)
		require.Equal(t, report.Fail, r.Verdict, name)
		require.Equal(t, "model.layers.1."+wrong.at, *r.FirstDivergence, name)
		require.NotNil(t, r.Cause, name)
		require.Equal(t, wrong.id, r.Cause.ID, name)
		require.Contains(t, r.Cause.Text, wrong.words, name)
		require.Len(t, r.Causes, 1, name)
	}

	// A trace to replay that has other tokens, lacks a layer, or chooses what is no expert is refused; so is a trace
	// without choices.
	trainer := replaying{choices: choices}
	right := trace(&trainer, &trainer.Plain)
	refused := func(cause string, change func(p *pack.Pack)) {
		other := &pack.Pack{Manifest: rollout.Manifest, DType: rollout.DType, Replaced: maps.Clone(rollout.Replaced)}
		other.Manifest.Tensors = maps.Clone(rollout.Manifest.Tensors)
		change(other)
		_, err := Run(context.Background(), c.Config, c, right, Options{RotaryDType: tensor.BF16, Replay: other})
		require.ErrorContains(t, err, cause)
	}
	const layer2 = "model.layers.2." + pack.TopKIdx
	refused("its tokens are not those of the trace", func(p *pack.Pack) {
		require.NoError(t, (&verifytest.Recorder{Pack: p}).KeepInts("input_ids", []int{1, 192}, slices.Repeat([]int{1}, 192)))
	})
	refused("the trace to replay lacks it", func(p *pack.Pack) { delete(p.Manifest.Tensors, layer2) })
	refused("golden expert -1 of token 0 is not one of 32", func(p *pack.Pack) {
		require.NoError(t, (&verifytest.Recorder{Pack: p}).KeepInts(layer2, []int{192, k}, append([]int{-1}, choices[1][1:]...)))
	})
	for name := range right.Manifest.Tensors {
		if pack.Parse(name).Within == pack.TopKIdx {
			right.Manifest.Absent.Stages = []string{pack.TopKIdx}
			delete(right.Manifest.Tensors, name)
		}
	}
	refused("the trace lacks it", func(*pack.Pack) {})
}

// TestReplayedSequences: sequences that have each other's choices; a sequence's first token repeats none before it.
func TestReplayedSequences(t *testing.T) {
	t.Parallel()
	rows := [][]int{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}}
	l := func(have ...int) *replayedLayer {
		l := &replayedLayer{LayerRouting: report.LayerRouting{Layer: "model.layers.1", Wrong: map[int]bool{}, Own: make([]int, 12)},
			k: 2, seq: 3, replayed: map[string][]int{"model.layers.1": slices.Concat(rows...)}}
		for token, row := range have {
			l.have = append(l.have, rows[row]...)
			l.Wrong[token] = row != token
		}
		maps.DeleteFunc(l.Wrong, func(_ int, wrong bool) bool { return !wrong })
		return l
	}
	for want, layer := range map[string]*replayedLayer{
		"replay-sequence: each sequence has the choices of the one 1 place behind it, cyclically": l(3, 4, 5, 0, 1, 2),
		"replay-shift: each token has the choices of the one 1 place behind it":                   l(1, 2, 0, 4, 5, 4),
		"replay-stale: has choices again that are stale: row 1's from row 2 on":                   l(0, 1, 1, 3, 4, 5),
		"": l(0, 1, 2, 2, 4, 5), // the first token of the second sequence
	} {
		var found []string
		for _, m := range replayMistakes {
			if words := m.words(layer); words != "" {
				found = append(found, m.id+": "+words)
			}
		}
		require.Equal(t, want, strings.Join(found, "; "))
	}
}
