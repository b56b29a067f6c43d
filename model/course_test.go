package model_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
	"dsmoe/model/table"
)

// during runs a course over three tokens and keeps the stages.
func during(m *model.DeepseekForCausalLM, course *model.Course[*model.Activation], o model.Options) (*recorder, error) {
	heard := &recorder{listener{idx: map[int][]int{}}, map[string]*model.Activation{}}
	plain := model.NewPlain(o)
	defer plain.Close(nil)
	in := &model.Input{Batch: 1, Seq: 3, InputIDs: []int{1, 2, 3}}
	net := &model.Network[*model.Activation]{Model: m, Input: in, Options: o, Arithmetic: plain, Trace: heard}
	_, err := net.Run(context.Background(), course)
	return heard, err
}

// TestPartsOfAModel: each part, from what the part before gave, gives what it gives in the
// whole, and nothing else is run, nor its weights bound.
func TestPartsOfAModel(t *testing.T) {
	c, src := predicting(t)
	all, err := model.Load(c, src)
	require.NoError(t, err)
	whole, err := during(all, model.WholeCourse[*model.Activation](all, 2), model.Options{})
	require.NoError(t, err)
	for name, test := range map[string]struct {
		course model.Course[*model.Activation]
		wanted string            // prefixes of the weights
		starts map[int]string    // layer -> what it begins with
		stages func(string) bool // that are run
	}{
		"a layer": {model.Course[*model.Activation]{Layers: []int{1}}, "model.layers.1.", map[int]string{1: "model.layers.0.output"},
			func(s string) bool { return strings.HasPrefix(s, "model.layers.1.") }},
		"the first layer": {model.Course[*model.Activation]{Embedding: true, Layers: []int{0}}, "model.layers.0. model.embed", nil,
			func(s string) bool {
				return strings.HasPrefix(s, "model.layers.0.") || strings.HasPrefix(s, "model.embed")
			}},
		"a layer that another input is given": {model.Course[*model.Activation]{Layers: []int{0, 1}, Given: []int{1}}, "model.layers.0. model.layers.1.",
			map[int]string{0: "model.embed_tokens.output", 1: "model.layers.0.output"},
			func(s string) bool {
				return strings.HasPrefix(s, "model.layers.0.") || strings.HasPrefix(s, "model.layers.1.")
			}},
		"the head": {model.Course[*model.Activation]{Head: true}, "model.norm lm_head", map[int]string{2: "model.layers.1.output"},
			func(s string) bool { return s == "model.norm.output" || s == "lm_head.output" }},
		"prediction layers": {model.Course[*model.Activation]{Head: true, Predictions: 2}, "model.norm lm_head model.layers.2. model.layers.3. model.embed",
			map[int]string{2: "model.layers.1.output"}, func(s string) bool {
				return !strings.HasPrefix(s, "model.layers.0.") && !strings.HasPrefix(s, "model.layers.1.") && !strings.HasPrefix(s, "model.embed")
			}},
		"RoPE's tables": {model.Course[*model.Activation]{}, "", nil, func(string) bool { return false }},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := model.LoadPart(c, src, func(s table.Slot) bool {
				return slices.ContainsFunc(strings.Fields(test.wanted), func(prefix string) bool { return strings.HasPrefix(s.Name, prefix) })
			})
			require.NoError(t, err)
			begun := map[int]string{}
			test.course.Start = func(l int) (*model.Activation, error) {
				begun[l] = test.starts[l]
				x := *whole.stages[test.starts[l]]
				x.Values = slices.Clone(x.Values)
				return &x, nil
			}
			part, err := during(m, &test.course, model.Options{})
			require.NoError(t, err)
			if test.starts != nil {
				require.Equal(t, test.starts, begun)
			}
			for stage, x := range whole.stages {
				if strings.HasPrefix(stage, "model.rotary_emb.") || test.stages(stage) {
					require.Equal(t, x, part.stages[stage], stage)
				} else {
					require.NotContains(t, part.stages, stage)
				}
			}
		})
	}
}

// TestStartsThatFail end the pass with their error.
func TestStartsThatFail(t *testing.T) {
	m := loaded(t, tinyConfig)
	nothing := errors.New("nothing to begin with")
	_, err := during(m, &model.Course[*model.Activation]{Layers: []int{1}, Start: func(int) (*model.Activation, error) { return nil, nothing }}, model.Options{})
	require.ErrorIs(t, err, nothing)
}

// TestPagesOfChosenLayers: the layer that is run next is fetched, not the one behind.
func TestPagesOfChosenLayers(t *testing.T) {
	m := loaded(t, strings.Replace(tinyConfig, `"num_hidden_layers":2`, `"num_hidden_layers":4`, 1))
	require.Len(t, m.Model.Layers, 4)
	p := &pages{map[*byte]int{}, map[*byte]int{}}
	_, err := during(m, &model.Course[*model.Activation]{Embedding: true, Layers: []int{0, 3}, Start: func(int) (*model.Activation, error) {
		return &model.Activation{Shape: []int{1, 3, m.Config.HiddenSize}, Values: make([]float32, 3*m.Config.HiddenSize)}, nil
	}}, model.Options{Pages: p})
	require.NoError(t, err)
	require.Contains(t, p.needed, &m.Model.Layers[3].SelfAttn.QProj.Weight.Data[0])
	for l := range 4 {
		require.Equal(t, l == 0 || l == 3, p.dropped[&m.Model.Layers[l].SelfAttn.QProj.Weight.Data[0]] > 0, l)
		require.Equal(t, l == 3, p.needed[&m.Model.Layers[l].SelfAttn.QProj.Weight.Data[0]] > 0, l)
	}
}

// TestAttnWeights are shown whole, and leave the bits of everything else as they are.
func TestAttnWeights(t *testing.T) {
	m := loaded(t, tinyConfig)
	in := &model.Input{Batch: 1, Seq: 70, InputIDs: make([]int, 70)} // more than a block of queries
	for i := range in.InputIDs {
		in.InputIDs[i] = i % 11
	}
	without, logits := recorded(t, m, in, 0, model.Options{})
	with, same := recorded(t, m, in, 0, model.Options{AttnWeights: true})
	require.Equal(t, logits.Values, same.Values)
	require.Len(t, with.stages, len(without.stages)+len(m.Model.Layers))
	probs := with.stages["model.layers.0.self_attn.attn_weights"]
	require.Equal(t, []int{1, m.Config.Attention.NumAttentionHeads, 70, 70}, probs.Shape)
	for r := range probs.Rows() {
		sum := float32(0)
		for key, p := range probs.Row(r) {
			require.True(t, p == 0 || key <= r%70)
			sum += p
		}
		require.InDelta(t, 1, sum, 1e-6)
	}
}

// TestHeadsInBlocks: heads of latent attention in blocks, or together, leave the same bits in all stages.
func TestHeadsInBlocks(t *testing.T) {
	m := loaded(t, strings.Replace(tinyLatentConfig, `_heads":2,"num_key_value_heads":2`, `_heads":64,"num_key_value_heads":64`, 1))
	in := &model.Input{Batch: 2, Seq: 70, InputIDs: make([]int, 2*70)}
	for i := range in.InputIDs {
		in.InputIDs[i] = i * i % 11
	}
	blocks, _ := recorded(t, m, in, 0, model.Options{})
	together, _ := recorded(t, m, in, 0, model.Options{HeadsTogether: true})
	require.Equal(t, together.stages, blocks.stages)
	require.Equal(t, []int{2, 70, 64 * m.Config.Attention.VHeadDim},
		blocks.stages["model.layers.0.self_attn.o_proj.input"].Shape)
}
