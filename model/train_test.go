package model_test

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/model"
)

// listener keeps the routing and the gradients.
type listener struct {
	idx   map[int][]int
	grads map[string][]float32
	aux   float64
	loss  float64
}

func (l *listener) Stage(name string, a *model.Activation) error {
	switch {
	case strings.HasSuffix(name, ".grad"):
		l.grads[strings.TrimSuffix(name, ".grad")] = a.Values
	case strings.HasSuffix(name, "aux_loss"):
		l.aux += float64(a.Values[0])
	case name == "loss":
		l.loss = float64(a.Values[0])
	}
	return nil
}

func (l *listener) TopK(name string, choice *model.Choice[*model.Activation]) error {
	layer, _ := strconv.Atoi(strings.Split(name, ".")[2])
	l.idx[layer] = slices.Clone(choice.Idx)
	return nil
}

// train runs m in training mode, heard by l, and returns the error.
func (l *listener) train(m *model.DeepseekForCausalLM, in *model.Input, wants func(weight string) bool) error {
	tape := model.NewTape(model.NewPlain(model.Options{}), wants)
	defer tape.Close(nil)
	_, err := model.Train(context.Background(), &model.Network[*model.Activation]{Model: m, Input: in, Arithmetic: tape, Trace: l}, tape)
	return err
}

// TestGradientsByFiniteDifferences_every compares every weight's gradient with central
// differences of the oracle's loss, in float64.
func TestGradientsByFiniteDifferences_every(t *testing.T) {
	for name, fields := range map[string]string{
		"sequence form":     `"aux_loss_alpha":0.3,`,
		"batch form, norm":  `"aux_loss_alpha":0.3,"seq_aux":false,"norm_topk_prob":true,`,
		"no auxiliary loss": `"aux_loss_alpha":0.0,`,
		"biases":            `"attention_bias":true,"aux_loss_alpha":0.1,`,
	} {
		if !configtest.Every(t) && name != "biases" && name != "batch form, norm" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkGradients(t, configtest.Parse(t, strings.Replace(tinyConfig, "{", "{"+fields, 1)))
		})
	}
}

func checkGradients(t *testing.T, c *config.Config) {
	src := synthetic(t, c)
	o := ask(t, c, src)
	m, err := model.Load(c, src)
	require.NoError(t, err)
	heard := &listener{idx: map[int][]int{}, grads: map[string][]float32{}}
	require.NoError(t, heard.train(m, o.input(), func(string) bool { return true }))
	o.idx = heard.idx
	require.InDelta(t, o.loss(), heard.loss+heard.aux, 1e-6)
	require.Len(t, heard.grads, len(o.w))
	r := rand.New(rand.NewPCG(1, 1))
	for name, grad := range heard.grads {
		scale := 0.0
		for _, g := range grad {
			scale = max(scale, math.Abs(float64(g)))
		}
		for range 6 {
			i := r.IntN(len(grad))
			require.InDelta(t, o.slope(name, i), float64(grad[i]), 2e-6*scale+1e-10, "%s[%d]", name, i)
		}
	}
}

// slope is the derivative of the loss by one weight: a central difference of fourth
// order.
func (o *oracle) slope(name string, i int) float64 {
	const h = 1e-3
	was := o.w[name][i]
	at := func(d float64) float64 {
		o.w[name][i] = was + d
		return o.loss()
	}
	s := (8*(at(h)-at(-h)) - (at(2*h) - at(-2*h))) / (12 * h)
	o.w[name][i] = was
	return s
}

// TestOnlyWantedGradients: the others are neither shown nor computed.
func TestOnlyWantedGradients(t *testing.T) {
	c := configtest.Parse(t, tinyConfig)
	m, err := model.Load(c, synthetic(t, c))
	require.NoError(t, err)
	heard := &listener{idx: map[int][]int{}, grads: map[string][]float32{}}
	in := &model.Input{Batch: 1, Seq: 3, InputIDs: []int{1, 2, 3}}
	want := "model.layers.1.mlp.gate.weight"
	require.NoError(t, heard.train(m, in, func(name string) bool { return name == want }))
	require.Len(t, heard.grads, 1)
	require.Contains(t, heard.grads, want)
	err = heard.train(m, &model.Input{Batch: 1, Seq: 1, InputIDs: []int{1}}, func(string) bool { return false })
	require.ErrorContains(t, err, "no next token")
}

// TestTrainingAndEvaluationAgree: the routed sums differ only in the order of their terms.
func TestTrainingAndEvaluationAgree(t *testing.T) {
	c := configtest.Parse(t, tinyConfig)
	m, err := model.Load(c, synthetic(t, c))
	require.NoError(t, err)
	in := &model.Input{Batch: 1, Seq: 5, InputIDs: []int{1, 2, 3, 4, 5}}
	eval, err := m.Forward(context.Background(), in, model.Options{})
	require.NoError(t, err)
	train, err := m.Forward(context.Background(), in, model.Options{Training: true})
	require.NoError(t, err)
	require.InDeltaSlice(t, eval.Values, train.Values, 1e-5)
}

// TestTrainStopsWithItsTrace: at the loss, and at a gradient; without a trace it returns
// the loss.
func TestTrainStopsWithItsTrace(t *testing.T) {
	c := configtest.Parse(t, tinyConfig)
	m, err := model.Load(c, synthetic(t, c))
	require.NoError(t, err)
	train := func(trace model.Trace[*model.Activation]) (float64, error) {
		tape := model.NewTape(model.NewPlain(model.Options{}), func(weight string) bool { return strings.HasPrefix(weight, "model.layers.1.mlp.gate") })
		defer tape.Close(nil)
		in := &model.Input{Batch: 1, Seq: 3, InputIDs: []int{1, 2, 3}}
		net := &model.Network[*model.Activation]{Model: m, Input: in, Arithmetic: tape, Trace: trace}
		return model.Train(context.Background(), net, tape)
	}
	for _, last := range []string{"model.layers.0.output", "loss", "model.layers.1.mlp.gate.weight.grad"} {
		_, err := train(watch{stage: func(name string) error {
			if name == last {
				return errEnough
			}
			return nil
		}})
		require.ErrorIs(t, err, errEnough, last)
	}
	loss, err := train(nil)
	require.NoError(t, err)
	require.InDelta(t, math.Log(11), loss, 2, "about what guessing among 11 tokens costs")
}
