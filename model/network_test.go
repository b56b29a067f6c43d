package model_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/model"
)

// watch is a trace that calls stage, and topK if it is not nil.
type watch struct {
	stage func(name string) error
	topK  func(name string) error
}

func (w watch) Stage(name string, _ *model.Activation) error { return w.stage(name) }

func (w watch) TopK(name string, _ *model.Choice[*model.Activation]) error {
	if w.topK == nil {
		return nil
	}
	return w.topK(name)
}

// watched runs the decoder over three tokens, watched by w.
func watched(ctx context.Context, m *model.DeepseekForCausalLM, w watch) (*model.Activation, error) {
	plain := model.NewPlain(model.Options{})
	defer plain.Close(nil)
	in := &model.Input{Batch: 1, Seq: 3, InputIDs: []int{1, 2, 3}}
	net := &model.Network[*model.Activation]{Model: m, Input: in, Arithmetic: plain, Trace: w}
	return net.Forward(ctx)
}

// TestPanicsAreNotErrors: what a trace or an arithmetic panics with leaves the pass as it
// is, an error among it.
func TestPanicsAreNotErrors(t *testing.T) {
	m := loaded(t, tinyConfig)
	for _, thrown := range []any{"a mistake of the programmer", errEnough} {
		require.PanicsWithValue(t, thrown, func() {
			watched(context.Background(), m, watch{stage: func(string) error { panic(thrown) }})
		})
		require.PanicsWithValue(t, thrown, func() {
			watched(context.Background(), m, watch{stage: func(string) error { return nil }, topK: func(string) error { panic(thrown) }})
		})
	}
	broken := loaded(t, tinyConfig)
	broken.Model.Layers[1].MoE.Experts = nil
	var runtimeError interface{ RuntimeError() }
	defer func() {
		err, _ := recover().(error)
		require.ErrorAs(t, err, &runtimeError, "an index out of range stays one")
	}()
	watched(context.Background(), broken, watch{stage: func(string) error { return nil }})
}

// TestPassesStopOnTheirOwn: of passes at once, each returns the error of its own trace, or
// none; so does a pass that a trace runs inside of another.
func TestPassesStopOnTheirOwn(t *testing.T) {
	m := loaded(t, tinyConfig)
	var wait sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wait.Go(func() {
			_, errs[i] = watched(context.Background(), m, watch{stage: func(name string) error {
				if i%2 == 0 && name == fmt.Sprintf("model.layers.%d.mlp.output", i/2%2) {
					return fmt.Errorf("pass %d: %w", i, errEnough)
				}
				return nil
			}})
		})
	}
	wait.Wait()
	for i, err := range errs {
		if i%2 == 0 {
			require.EqualError(t, err, fmt.Sprintf("pass %d: enough", i))
			require.ErrorIs(t, err, errEnough)
		} else {
			require.NoError(t, err)
		}
	}

	var inner error
	_, err := watched(context.Background(), m, watch{stage: func(name string) error {
		if name == "model.layers.0.output" {
			_, inner = watched(context.Background(), m, watch{stage: func(string) error { return errEnough }})
		}
		return nil
	}})
	require.ErrorIs(t, inner, errEnough)
	require.NoError(t, err, "the outer pass goes on")
}

// TestCancelledPass stops at the next stage.
func TestCancelledPass(t *testing.T) {
	m := loaded(t, tinyConfig)
	ctx, cancel := context.WithCancelCause(context.Background())
	var last string
	y, err := watched(ctx, m, watch{stage: func(name string) error {
		last = name
		if strings.HasSuffix(name, "layers.0.self_attn.k_proj.output") {
			cancel(errors.New("for a reason"))
		}
		return nil
	}})
	require.ErrorIs(t, err, context.Canceled)
	require.Nil(t, y)
	require.Equal(t, "model.layers.0.self_attn.k_proj.output", last)
}

// cancelling cancels a context while it computes scores of attention.
type cancelling struct {
	*model.Plain
	cancel func()
	calls  int
}

func (c *cancelling) Scores(q, k *model.Activation, first, n int, s *model.Scoring) *model.Activation {
	c.calls++
	c.cancel()
	return c.Plain.Scores(q, k, first, n, s)
}

// TestCancelledAttention: in attention over many tokens, and in an indexer, a pass ends before the next block of queries.
func TestCancelledAttention(t *testing.T) {
	const blocks = 3
	for _, fixture := range []string{"v1-base", "v3", "v32", "v4"} {
		c := configtest.Fixture(t, fixture+"/checkpoint")
		m, err := model.Load(c, synthetic(t, c))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		a := &cancelling{model.NewPlain(model.Options{}), cancel, 0}
		in := &model.Input{Batch: 1, Seq: 64 * blocks, InputIDs: make([]int, 64*blocks)}
		net := &model.Network[*model.Activation]{Model: m, Input: in, Arithmetic: a}
		_, err = net.Forward(ctx)
		require.ErrorIs(t, err, context.Canceled, fixture)
		require.Equal(t, 1, a.calls, fixture)
		a.Close(nil)
	}
}

// TestTraceChangesThePass: what a trace sets, values or experts, is what follows.
func TestTraceChangesThePass(t *testing.T) {
	m := loaded(t, tinyConfig)
	in := &model.Input{Batch: 1, Seq: 3, InputIDs: []int{1, 2, 3}}
	forward := func(trace model.Trace[*model.Activation]) []float32 {
		plain := model.NewPlain(model.Options{})
		net := &model.Network[*model.Activation]{Model: m, Input: in, Arithmetic: plain, Trace: trace}
		y, err := net.Forward(context.Background())
		require.NoError(t, err)
		plain.Close(y)
		return y.Values
	}
	plain := forward(nil)
	same := forward(&setter{})
	require.Equal(t, plain, same)
	require.NotEqual(t, plain, forward(&setter{experts: []int{0, 1}}))
	zero := forward(&setter{clears: "lm_head.output"})
	require.Equal(t, make([]float32, len(plain)), zero)
	require.NotEqual(t, plain, forward(&setter{clears: "model.layers.0.output"}))
}

// setter is a trace that sets one stage to zeros, or every token's experts.
type setter struct {
	clears  string
	experts []int
}

func (s *setter) Stage(name string, x *model.Activation) error {
	if name == s.clears {
		clear(x.Values)
	}
	return nil
}

func (s *setter) TopK(_ string, choice *model.Choice[*model.Activation]) error {
	for at := 0; s.experts != nil && at < len(choice.Idx); at += len(s.experts) {
		copy(choice.Idx[at:], s.experts)
	}
	return nil
}

// TestPartsOfTheDecoder: the layers and the head one by one are the whole.
func TestPartsOfTheDecoder(t *testing.T) {
	for _, text := range []string{tinyConfig, tinyLatentConfig} {
		m := loaded(t, text)
		in := &model.Input{Batch: 2, Seq: 2, InputIDs: []int{1, 2, 3, 4}}
		whole, err := m.Forward(context.Background(), in, model.Options{})
		require.NoError(t, err)
		plain := model.NewPlain(model.Options{})
		net := &model.Network[*model.Activation]{Model: m, Input: in, Arithmetic: plain}
		x := plain.Reshape(plain.Embed(&m.Model.EmbedTokens, in.InputIDs), 2, 2, m.Config.HiddenSize)
		for l := range m.Model.Layers {
			x, err = net.Layer(context.Background(), l, x)
			require.NoError(t, err)
		}
		x, err = net.Head(context.Background(), x)
		require.NoError(t, err)
		require.Equal(t, whole.Shape, x.Shape)
		require.Equal(t, whole.Values, x.Values)
		plain.Close(nil)
	}
}

// TestLatentModelsDoNotTrain: no reference's gradients speak for theirs.
func TestLatentModelsDoNotTrain(t *testing.T) {
	m := loaded(t, tinyLatentConfig)
	heard := &listener{}
	err := heard.train(m, &model.Input{Batch: 1, Seq: 2, InputIDs: []int{1, 2}}, func(string) bool { return true })
	require.ErrorContains(t, err, "model_type deepseek_v3: the gradients of latent attention")
}

// outputs is a trace that keeps the layers' outputs, row after row.
type outputs map[string][]float32

func (o outputs) Stage(name string, x *model.Activation) error {
	if strings.HasSuffix(name, ".mlp.gate.topk_weight") || strings.Count(name, ".") == 3 {
		o[name] = append(o[name], x.Values...)
	}
	return nil
}

func (o outputs) TopK(string, *model.Choice[*model.Activation]) error { return nil }

// TestDecode: several inputs layer by layer equal one pass over all inputs, up to the requested
// layer, and an invalid input is an error before any layer runs.
func TestDecode(t *testing.T) {
	m := loaded(t, tinyConfig)
	plain := model.NewPlain(model.Options{})
	defer plain.Close(nil)
	net := func(trace model.Trace[*model.Activation], batch, seq int, ids ...int) *model.Network[*model.Activation] {
		return &model.Network[*model.Activation]{Model: m, Input: &model.Input{Batch: batch, Seq: seq, InputIDs: ids}, Arithmetic: plain, Trace: trace}
	}
	whole, parts := outputs{}, outputs{}
	_, err := net(whole, 3, 2, 1, 2, 3, 4, 5, 6).Forward(t.Context())
	require.NoError(t, err)
	nets := []*model.Network[*model.Activation]{net(parts, 2, 2, 1, 2, 3, 4), net(parts, 1, 2, 5, 6)}
	require.NoError(t, model.Decode(t.Context(), len(m.Model.Layers), nets))
	require.Greater(t, len(whole), len(m.Model.Layers))
	require.Equal(t, whole, parts)

	first := outputs{}
	require.NoError(t, model.Decode(t.Context(), 1, []*model.Network[*model.Activation]{net(first, 1, 2, 5, 6)}))
	require.Contains(t, first, "model.layers.0.output")
	require.NotContains(t, first, "model.layers.1.output")

	none := outputs{}
	err = model.Decode(t.Context(), 1, []*model.Network[*model.Activation]{net(none, 1, 2, 5, 6), net(none, 1, 2, 5, -6)})
	require.ErrorContains(t, err, "input_ids[0, 1]: -6 is not in the vocabulary")
	require.Empty(t, none)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, model.Decode(ctx, 1, nets), context.Canceled)
}
