package verify

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// inFloat32 attends as sdpa does in BF16: scores and probabilities are float32, the context alone is
// rounded. Scores are multiplied by a factor.
type inFloat32 struct {
	*model.Plain
	factor float32
}

// wide is x with the dtype float32.
func wide(x *model.Activation) *model.Activation {
	return &model.Activation{Shape: x.Shape, Values: x.Values, DType: tensor.F32}
}

func (p inFloat32) Scores(q, k *model.Activation, first, n int, s *model.Scoring) *model.Activation {
	y := p.Plain.Scores(wide(q), wide(k), first, n, s)
	for i := range y.Values {
		y.Values[i] *= p.factor
	}
	return y
}

func (p inFloat32) Context(probs, vT *model.Activation) *model.Activation {
	y := p.Plain.Context(probs, wide(vT))
	y.DType = vT.DType
	for i, v := range y.Values {
		y.Values[i] = tensor.Rounded(v, y.DType)
	}
	return y
}

// TestSdpaInFloat32: where a golden agrees with scores that are not rounded, a stage is as sharp as
// these are: of a trained model, whose scores are large, a pack passes. It does not if all scores are
// 0.3 % too large, which is less than roundings of scores explain.
func TestSdpaInFloat32(t *testing.T) {
	t.Parallel()
	var ids []int
	for _, b := range []byte(strings.Repeat("func (a *analysis) Close() {\n\ta.plain.Close(nil)\n", 2)[:96]) {
		ids = append(ids, int(b))
	}
	c, _, record := recordingTrained(t, ids)
	for factor, want := range map[float32]report.Verdict{1: report.Pass, 1.003: report.Inconclusive} {
		p := record(func(p *model.Plain) model.Arithmetic[*model.Activation] { return inFloat32{p, factor} })
		p.Manifest.Reference.Attention, p.Manifest.Partial = pack.Sdpa, "one text"
		r, err := Run(context.Background(), c.Config, c, p, Options{})
		require.NoError(t, err)
		require.Equal(t, want, r.Verdict, "%v %v", r.FirstDivergence, r.Reasons)
		for _, check := range r.Checks {
			if check.Tensor == "model.layers.3.self_attn.o_proj.input" {
				sharp := want == report.Pass
				require.Equal(t, sharp, strings.HasSuffix(check.Limits.From, "; of scores in float32"))
				require.Equal(t, sharp, *check.Sees < 0.025)
			}
		}
	}
}
