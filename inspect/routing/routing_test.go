package routing

import (
	"context"
	"errors"
	"io"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/inspect"
	"dsmoe/inspect/inspecttest"
	"dsmoe/model"
	"dsmoe/model/synth"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/text/page"
)

// recording is a pack in memory.
type recording map[string]stage

type stage struct {
	shape  []int
	ints   []int
	floats []float32
}

func (r recording) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for _, name := range slices.Sorted(maps.Keys(r)) {
			d := tensor.F32
			if r[name].ints != nil {
				d = tensor.I64
			}
			if !yield(tensor.Info{Name: name, DType: d, Shape: r[name].shape}) {
				return
			}
		}
	}
}

func (r recording) Ints(name string) ([]int, error) { return r[name].ints, nil }

func (r recording) Float32s(name string) ([]float32, error) { return r[name].floats, nil }

// smallPack is a layer's gate: 3 tokens, the first padding, 2 of 4 experts for each.
func smallPack() (recording, Golden) {
	r := recording{
		"model.layers.1.mlp.gate.topk_idx":    {shape: []int{3, 2}, ints: []int{0, 1, 3, 1, 1, 2}},
		"model.layers.1.mlp.gate.topk_weight": {shape: []int{3, 2}, floats: []float32{9, 9, 0.5, 0.25, 0.375, 0.25}},
		"model.layers.1.mlp.gate.logits":      {shape: []int{3, 4}, floats: []float32{9, 9, 0, 0, 0, 1, 0, 2, 0, 2, 0, 1}},
		"model.layers.1.mlp.gate.aux_loss":    {shape: []int{1}, floats: []float32{1}},
		"model.layers.01.mlp.gate.topk_idx":   {shape: []int{1}, ints: []int{7}},
		"input_ids":                           {shape: []int{1, 3}, ints: []int{1, 2, 3}},
	}
	return r, Golden{Path: "pack", Recording: r, Input: &model.Input{Batch: 1, Seq: 3, InputIDs: []int{1, 2, 3},
		AttentionMask: []int{0, 1, 1}}}
}

// small is a config that fits it.
func small(t *testing.T) *config.Config {
	c := configtest.Fixture(t, "v1-base/checkpoint")
	return inspecttest.Override(t, inspecttest.Override(t, inspecttest.Override(t, c, "n_routed_experts", "4"),
		"num_experts_per_tok", "2"), "num_hidden_layers", "2")
}

// TestRouteGolden: numbers that are worked out by hand, of the tokens that are not padding.
func TestRouteGolden(t *testing.T) {
	_, g := smallPack()
	g.Config = small(t)
	r, err := OfGolden(g, Options{})
	require.NoError(t, err)
	assert.Equal(t, []int{2, 1, 1, 4, 2}, []int{r.Tokens, r.Padding, r.Sequences, r.Experts, r.PerToken})
	require.Len(t, r.Layers, 1)
	l := r.Layers[0]
	assert.Equal(t, decimals(math.Log(4)-0.5*math.Log(2)), l.Entropy)
	assert.Equal(t, []float64{1, math.Sqrt(0.5), math.Sqrt(0.5), 1}, []float64{l.MaxVio, l.CV, l.CVUniform,
		l.UnreachedUniform})
	assert.Equal(t, []int{0}, l.Unreached)
	assert.Equal(t, 0.6875, *l.Mass)
	assert.Equal(t, expert{1, 2, 0.5, 2, l.Experts[1].Mass, l.Experts[1].MeanWeight}, l.Experts[1])
	assert.Equal(t, []float64{0.625, 0.3125}, []float64{*l.Experts[1].Mass, *l.Experts[1].MeanWeight})
	assert.Equal(t, []pair{{[2]int{1, 2}, 1, 1, 0.5, 1}, {[2]int{1, 3}, 1, 1, 0.5, 1}}, l.Pairs)
	e := func(x float64) float64 { return math.Exp(x) / (2 + math.E + math.Exp(2)) }
	m := l.Margins
	assert.Equal(t, []int{2, 0, 1}, []int{m.Tokens, m.Ties, m.Below}, "the last token's scores prefer expert 3")
	assert.Equal(t, m.Min, m.Median, "the first of two")
	assert.InDelta(t, e(0)-e(1), *m.Min, 1e-6)
	assert.Empty(t, r.Missing)

	var b strings.Builder
	require.NoError(t, r.WriteText(&b))
	assert.Contains(t, b.String(), "pack: routing of 2 tokens in 1 sequence (1 more are padding, and left out)")
	assert.Contains(t, b.String(), "model.layers.1: none of 2 tokens reached expert 0\nAn expert without a token is unreached by these tokens, not dead")
	assert.Contains(t, b.String(), "model.layers.1: the scores would choose other experts for 1 token: rounding decided, or the config is another model's\n")
}

// TestMarginsOfFewTokens: no line is drawn that another hides.
func TestMarginsOfFewTokens(t *testing.T) {
	f := func(v float64) *float64 { return &v }
	named := func(hundredth float64) (names []string) {
		r := Report{Layers: []Layer{{Layer: 1, Margins: &margins{Tokens: 9, Min: f(1), Q01: f(hundredth), Q10: f(3), Median: f(4)}}}}
		for _, s := range r.MarginFigure().(page.Lines).Series {
			names = append(names, s.Name)
		}
		return names
	}
	assert.Equal(t, []string{"median token", "token of the lowest tenth", "closest token"}, named(1))
	assert.Contains(t, named(2), "token of the lowest hundredth")
}

// TestGoldenLacks: what a pack has not is said, and nothing is made up for it.
func TestGoldenLacks(t *testing.T) {
	const gate = "model.layers.1.mlp.gate."
	for name, c := range map[string]struct {
		lacks   []string
		config  bool
		v3      bool
		missing []string
		err     string
	}{
		"no config": {nil, false, false, []string{"margins: they need the model's config"}, ""},
		"no weights": {[]string{"topk_weight"}, true, false,
			[]string{"layer 1: the pack has no mlp.gate.topk_weight: no gate weights"}, ""},
		"no logits": {[]string{"logits"}, true, false,
			[]string{"layer 1: the pack has no mlp.gate.logits: no margins"}, ""},
		"no logits, config": {[]string{"logits"}, false, false, nil,
			"pack: no mlp.gate.logits: how many experts there are is not known"},
		"no ids":              {[]string{"topk_idx"}, true, false, nil, "pack: no mlp.gate.topk_idx of any layer"},
		"a config, no biases": {nil, true, true, []string{"margins: experts are chosen with e_score_correction_bias"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			pack, g := smallPack()
			for _, s := range c.lacks {
				delete(pack, gate+s)
			}
			if c.config {
				g.Config = small(t)
			}
			if c.v3 {
				copied := *g.Config
				copied.Router.TopKMethod = "noaux_tc"
				g.Config = &copied
			}
			r, err := OfGolden(g, Options{})
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Len(t, r.Missing, len(c.missing))
			for i, m := range c.missing {
				assert.Contains(t, r.Missing[i], m)
			}
			l := r.Layers[0]
			weighed := !slices.Contains(c.lacks, "topk_weight")
			assert.Equal(t, weighed, l.Mass != nil && l.Experts[0].Mass != nil && l.Experts[0].MeanWeight != nil)
			scored := weighed && len(c.missing) == 0
			assert.Equal(t, scored || !weighed, l.Margins != nil)
			require.NoError(t, r.WriteText(io.Discard))
		})
	}
}

// TestGoldenIsWrong: what cannot be is refused, with its place.
func TestGoldenIsWrong(t *testing.T) {
	const gate = "model.layers.1.mlp.gate."
	edit := func(name string, f func(s *stage)) func(recording, *Golden) {
		return func(r recording, _ *Golden) {
			s := r[gate+name]
			s.ints, s.floats = slices.Clone(s.ints), slices.Clone(s.floats)
			f(&s)
			r[gate+name] = s
		}
	}
	for want, change := range map[string]func(recording, *Golden){
		"topk_idx: row 1: expert 4 is not one of 4": edit("topk_idx",
			func(s *stage) { s.ints[2] = 4 }),
		"topk_idx: row 1: expert -1 is not one of 4": edit("topk_idx",
			func(s *stage) { s.ints[2] = -1 }),
		"topk_idx: row 2: expert 2 appears twice": edit("topk_idx",
			func(s *stage) { s.ints[4] = 2 }),
		"row 1: the gate weight of expert 1 is NaN": edit("topk_weight",
			func(s *stage) { s.floats[3] = float32(math.NaN()) }),
		"row 2: the score of expert 0 is NaN": edit("logits",
			func(s *stage) { s.floats[9] = float32(math.NaN()) }),
		"topk_idx: shape [6], [tokens, num_experts_per_tok]": edit("topk_idx",
			func(s *stage) { s.shape = []int{6} }),
		"topk_idx: shape [6 1], the input is [1 3]": edit("topk_idx",
			func(s *stage) { s.shape = []int{6, 1} }),
		"topk_weight: shape [2 3], that of mlp.gate.topk_idx is": edit("topk_weight",
			func(s *stage) { s.shape = []int{2, 3} }),
		"logits: shape [4 3], [3, n_routed_experts] expected": edit("logits",
			func(s *stage) { s.shape = []int{4, 3} }),
		"logits: 3 experts, not 4": edit("logits",
			func(s *stage) { s.shape = []int{3, 3} }),
		"no token but padding": func(_ recording,
			g *Golden) {
			g.Input.AttentionMask = []int{0, 0, 0}
		},
		"layers 3: 3 not there: the pack has 1": nil,
		"layers.1.mlp.gate.topk_idx: by the config this layer has no routed": func(_ recording,
			g *Golden) {
			g.Config = inspecttest.Override(t, g.Config, "num_hidden_layers", "1")
		},
	} {
		pack, g := smallPack()
		g.Config = small(t)
		o := Options{}
		if change == nil {
			o.Layers = text.Spans{{3, 3}}
		} else {
			change(pack, &g)
		}
		_, err := OfGolden(g, o)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "pack: ")
	}
}

// routedModel is a model of synthetic weights.
func routedModel(t *testing.T, fixture string) *model.DeepseekForCausalLM {
	t.Helper()
	c := configtest.Fixture(t, fixture)
	m, err := model.Load(c, synthetic{synth.New(c, 3)})
	require.NoError(t, err)
	return m
}

// synthetic are the weights of a synthetic checkpoint as a source.
type synthetic struct{ *synth.Source }

func (s synthetic) Tensor(name string) (tensor.Tensor, error) {
	for info := range s.Tensors() {
		if info.Name == name {
			x := tensor.Tensor{DType: info.DType, Shape: info.Shape, Data: make([]byte, info.Bytes())}
			return x, s.Fill(info, x.Data, 0)
		}
	}
	return tensor.Tensor{}, errors.New("no tensor " + name)
}

// TestRouteForward: the numbers depend neither on the pieces that a batch is cut into, nor on
// threads, nor on which layers are selected.
func TestRouteForward(t *testing.T) {
	m := routedModel(t, "v3/checkpoint")
	const batch, seq, atOnce = 4, 20, 65 // three sequences a piece
	in := &model.Input{Batch: batch, Seq: seq, InputIDs: synth.Tokens(5, batch*seq, m.Config.VocabSize),
		AttentionMask: make([]int, batch*seq)}
	for i := range in.AttentionMask {
		in.AttentionMask[i] = min(i/7, 1)
	}
	require.Len(t, pieces(in, atOnce), 2)
	require.Len(t, pieces(in, 1), batch)
	var last [2]int
	whole, err := OfForward(t.Context(), Forward{Path: "m", Model: m, Input: in, Threads: 1, atOnce: atOnce,
		Progress: func(done, total int) { last = [2]int{done, total} }}, Options{By: inspect.ByPair})
	require.NoError(t, err)
	assert.Equal(t, batch*seq-7, whole.Layers[0].Tokens)
	assert.Equal(t, last[0], last[1])
	assert.Positive(t, last[1])

	last3, err := OfForward(t.Context(), Forward{Path: "m", Model: m, Input: in, Threads: 3},
		Options{By: inspect.ByPair, Layers: text.Spans{{3, 3}}})
	require.NoError(t, err)
	require.Len(t, last3.Layers, 1)
	assert.Equal(t, whole.Layers[slices.IndexFunc(whole.Layers, func(l Layer) bool { return l.Layer == 3 })],
		last3.Layers[0])

	counts := make([]int, whole.Experts) // sequence by sequence
	for b := range batch {
		one := &model.Input{Batch: 1, Seq: seq, InputIDs: in.InputIDs[b*seq : (b+1)*seq],
			AttentionMask: in.AttentionMask[b*seq : (b+1)*seq]}
		r, err := OfForward(t.Context(), Forward{Model: m, Input: one}, Options{Layers: text.Spans{{3, 3}}})
		require.NoError(t, err)
		for i, e := range r.Layers[0].Experts {
			counts[i] += e.Tokens
		}
	}
	for i, e := range last3.Layers[0].Experts {
		assert.Equal(t, counts[i], e.Tokens)
	}
}

// TestDenseLayersDoNotRoute: a dense layer with an indexer, which chooses keys, is not reported; sets are compared without
// it.
func TestDenseLayersDoNotRoute(t *testing.T) {
	for _, fixture := range []string{"v32/checkpoint", "glm5/checkpoint"} {
		m := routedModel(t, fixture)
		in := &model.Input{Batch: 8, Seq: 40, InputIDs: synth.Tokens(5, 8*40, m.Config.VocabSize)}
		r, err := OfForward(t.Context(), Forward{Path: "m", Model: m, Input: in}, Options{Blocks: true})
		require.NoError(t, err)
		var layers []int
		for _, l := range r.Layers {
			layers = append(layers, l.Layer)
			require.Equal(t, 8*40, l.Tokens)
		}
		require.Equal(t, m.Config.MoELayers(), layers, fixture)
		require.NotContains(t, layers, 0)
		c := Compare([]string{"a", "b"}, []*Report{r, r}, Options{})
		require.Len(t, c.Layers, len(layers))
		require.Zero(t, c.Layers[0].Experts[0].Difference)
	}
}

// TestRouteForwardFails with what it cannot do.
func TestRouteForwardFails(t *testing.T) {
	m := routedModel(t, "v1-base/checkpoint")
	in := &model.Input{Batch: 1, Seq: 3, InputIDs: []int{1, 2, 3}}
	route := func(o Options) error {
		_, err := OfForward(t.Context(), Forward{Path: "m", Model: m, Input: in}, o)
		return err
	}
	require.ErrorContains(t, route(Options{Layers: text.Spans{{0, 1}}}),
		"m: layers 0-1: 0 not there: the checkpoint has 1-3")
	require.ErrorContains(t, route(Options{Experts: text.Spans{{16, 16}}}), "experts 16: 16 not there")
	in.InputIDs = []int{1, 2, 256}
	require.ErrorContains(t, route(Options{}), "input_ids[0, 2]: 256 is not in the vocabulary of 256")
	in.InputIDs = []int{1, 2, -1}
	require.ErrorContains(t, route(Options{}), "input_ids[0, 2]: -1 is not")
	in.InputIDs = []int{1, 2, 3}
	gate := m.Model.Layers[2].MoE.Gate.Weight.Data
	copy(gate[2*64*5:], []byte{0xc0, 0x7f}) // a NaN in row 5
	require.ErrorContains(t, route(Options{}),
		"m: model.layers.2.mlp.gate.topk_idx: token 0 of a sequence: the score of expert 0 is NaN")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := OfForward(ctx, Forward{Model: m, Input: in}, Options{})
	require.ErrorIs(t, err, context.Canceled)

	dense := routedModel(t, "v1-dense/checkpoint")
	_, err = OfForward(t.Context(), Forward{Path: "m", Model: dense, Input: in}, Options{})
	require.EqualError(t, err, "m: the model has no routed experts")
}

// TestTableRepeatsAnExpert: of a table's choice, an expert that comes twice counts twice, and is no pair.
func TestTableRepeatsAnExpert(t *testing.T) {
	tally := newTally(0, 4, 3, false, false)
	tally.byTable = true
	require.NoError(t, tally.choose([]int{2, 1, 2}))
	require.Equal(t, []int{0, 1, 2, 0}, tally.counts)
	require.EqualValues(t, 2, tally.pairs[tally.pair(1, 2)])
	require.EqualError(t, tally.choose([]int{2, 1, 4}), "expert 4 is not one of 4")
}

// TestBlocks: a block is a part of one sequence, and there are few of them.
func TestBlocks(t *testing.T) {
	for _, x := range []struct{ batch, seq, length, blocks int }{
		{3, 5, 5, 3}, {2, 64, 64, 2}, {2, 130, 64, 6}, {1, 256 * 100, 100, 256}, {1000, 10, 10, 1000},
	} {
		b := newBlocks(x.batch, x.seq, 4)
		assert.Equal(t, []int{x.length, x.blocks}, []int{b.length, len(b.counts)}, x)
		for token := range x.batch * x.seq {
			b.add(token, []int{token % 4})
		}
		assert.LessOrEqual(t, slices.Max(b.tokens), x.length)
		assert.Positive(t, slices.Min(b.tokens))
	}
}
