package model_test

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/convert/checkpoint"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/pack"
)

// firstOff is a trace that notes the first stage with more than 2 % of the elements off a golden pack's, and puts the golden in
// the place of each.
type firstOff struct {
	pack  *pack.Pack
	stage string
}

// Stage implements model.Trace. A BF16 number is off if it is another one.
func (r *firstOff) Stage(name string, x *model.Activation) error {
	want, err := r.pack.Float32s(name)
	if err != nil { // the pack lacks it
		return nil
	}
	square, off := 0.0, 0
	for _, v := range want {
		square += float64(v) * float64(v)
	}
	limit := 1e-5 * math.Sqrt(square/float64(len(want)))
	for i, v := range want {
		if d := math.Abs(float64(x.Values[i] - v)); d > limit || x.DType != tensor.F32 && d > 0 {
			off++
		}
	}
	if dtype := r.pack.Manifest.Tensors[name].DType; r.stage == "" && (50*off > len(want) || x.DType != dtype) {
		r.stage = pack.Parse(name).Within
	}
	copy(x.Values, want)
	return nil
}

// TopK implements model.Trace. An expert that the golden did not choose for the token is off.
func (r *firstOff) TopK(name string, choice *model.Choice[*model.Activation]) error {
	want, err := r.pack.Ints(name)
	k := len(choice.Idx) / choice.Scores.Rows()
	for t := 0; t < len(want) && r.stage == ""; t += k {
		ours, golden := scoresOf(choice.Scores.Row(t/k), choice.Idx[t:t+k]), scoresOf(choice.Scores.Row(t/k), want[t:t+k])
		if !assert.ObjectsAreEqual(golden, ours) {
			r.stage = "mlp.gate.topk_idx"
		}
	}
	copy(choice.Idx, want)
	return err
}

// TestBlockRules: a mixture of a family whose attention is not computed is the reference's, and each rule of it that no key
// of the config says shows, in the stage of its operation.
func TestBlockRules(t *testing.T) {
	for name, x := range map[string]struct {
		family, golden, stage string
		change                func(r *config.Rules)
	}{
		"factor of the weights": {"laguna", "f32", "mlp.gate.topk_weight", func(r *config.Rules) { r.MoE.ScalesSum = false }},
		"choice by scores":      {"kolibri1", "f32", "mlp.gate.topk_idx", func(r *config.Rules) { r.Router.ChoosesByLogits = false }},
		"limit before SiLU":     {"step3p7", "f32", "mlp.experts.output", func(r *config.Rules) { r.MoE.Activation = config.SwiGLU }},
		"SiLU":                  {"minimax-m3", "f32", "mlp.experts.output", func(r *config.Rules) { r.MoE.Activation = config.SwiGLU }},
		"sum in BF16":           {"nemotron-h", "bf16", "mlp.experts.output", func(r *config.Rules) { r.MoE.SumsInFloat32 = false }},
		"rounded twice":         {"beam", "bf16", "mlp.experts.output", func(r *config.Rules) { r.MoE.Activation = config.SwiGLU }},
		"limit of all MLPs":     {"hy-v4", "f32", "mlp.shared_experts.output", func(r *config.Rules) { r.MoE.LimitsRouted = false }},
		"no gate of the shared": {"qwen3-5", "f32", "mlp.output", func(r *config.Rules) { r.MoE.GatesShared = false }},
		"router in float32":     {"mistral4", "bf16", "mlp.gate.logits", func(r *config.Rules) { r.Router.RouterFloat32 = true }},
		"other groups get 0":    {"glm5-next", "f32", "mlp.gate.topk_idx", func(r *config.Rules) { r.Router.MasksToZero = true }},
		"cast weights":          {"lara-mini", "bf16", "mlp.gate.topk_weight", func(r *config.Rules) { r.Router.CastsTopKWeights = false }},
	} {
		src, err := checkpoint.Opener{}.OpenPart("../fixtures/blocks/"+x.family+"/checkpoint", nil)
		require.NoError(t, err)
		defer src.Close()
		p, err := pack.Open("../fixtures/blocks/" + x.family + "/golden-" + x.golden)
		require.NoError(t, err)
		in, err := p.Input()
		require.NoError(t, err)
		for _, of := range []struct {
			c    *config.Config
			want string
		}{{src.Config, ""}, {src.Config.WithRules(x.change), x.stage}} {
			m, err := model.Load(of.c, src)
			require.NoError(t, err)
			o, r, l := model.Options{DType: p.DType}, &firstOff{pack: p}, p.Manifest.Block.Layers[0]
			plain := model.NewPlain(o)
			taken, err := p.Float32s(pack.StageOf(l, pack.AttentionNorm))
			require.NoError(t, err)
			net := &model.Network[*model.Activation]{Model: m, Input: in, Options: o, Arithmetic: plain, Trace: r}
			_, err = net.Layer(context.Background(), l, &model.Activation{Shape: []int{in.Batch, in.Seq, of.c.HiddenSize},
				Values: taken, DType: p.DType})
			require.NoError(t, err)
			assert.Equal(t, of.want, r.stage, name)
			plain.Close(nil)
		}
	}
}
