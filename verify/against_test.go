package verify

import (
	"context"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// rounding is an engine in BF16 whose norms round once, or whose router rounds its logits.
type rounding struct {
	*model.Plain
	normsOnce, router bool
}

func (e rounding) RMSNorm(x *model.Activation, weight *model.Weight, eps float64) *model.Activation {
	y := e.Plain.RMSNorm(x, weight, eps)
	if !e.normsOnce {
		return y
	}
	w := e.Values(weight)
	for t := range y.Rows() {
		sum, row := 0.0, x.Row(t)
		for _, v := range row {
			sum += float64(v) * float64(v)
		}
		r := float32(1 / math.Sqrt(sum/float64(len(row))+eps))
		for i, v := range row {
			y.Row(t)[i] = tensor.Rounded(float32(v*r)*w[i], tensor.BF16)
		}
	}
	return y
}

func (e rounding) Linear(x *model.Activation, l *model.Linear) *model.Activation {
	y := e.Plain.Linear(x, l)
	for i, v := range y.Values {
		if e.router && strings.HasSuffix(l.Weight.Name, "mlp.gate.weight") {
			y.Values[i] = tensor.Rounded(v, tensor.BF16)
		}
	}
	return y
}

// TestAgainstRoundsDifferently: of two traces of right engines the report says in what they round differently, by how
// much that alone moves a stage, and which choices differ for the router's precision and which for its inputs.
func TestAgainstRoundsDifferently(t *testing.T) {
	t.Parallel()
	ids := make([]int, 192)
	for i := range ids {
		ids[i] = i * 89 % 251
	}
	c, in, record := recordingTrained(t, ids)
	trace := func(of rounding) *Trace {
		p := record(func(p *model.Plain) model.Arithmetic[*model.Activation] {
			of.Plain = p
			return of
		})
		p.Manifest.Reference = pack.Reference{Kind: pack.Engine, Name: "engine", Version: "1"}
		r, err := Run(context.Background(), c.Config, c, p, Options{RotaryDType: tensor.BF16, Undiagnosed: true})
		require.NoError(t, err)
		require.Nil(t, r.FirstDivergence, "%v", r.Reasons)
		return &Trace{p, r}
	}
	against := func(here, there *Trace, stages ...string) (*report.Against, string) {
		o := Options{RotaryDType: tensor.BF16, Undiagnosed: true, Against: there, Stages: stages}
		r, err := Run(context.Background(), c.Config, c, here.Pack, o)
		require.NoError(t, err)
		a, text := r.Against, &strings.Builder{}
		require.Equal(t, a.Differ, a.Precision+a.Inputs+a.WrongHere+a.WrongThere+a.Tied+a.Untold)
		require.NoError(t, r.WriteText(text))
		return a, text.String()
	}
	usual, once, narrow := trace(rounding{}), trace(rounding{normsOnce: true}), trace(rounding{router: true})

	a, text := against(usual, once)
	require.Equal(t, []string{"final-add-norm", "input-add-norm", "latent-norm", "norm", "post-add-norm"}, operationsOf(a.Arithmetics))
	require.Contains(t, text, `they round differently: final-add-norm, input-add-norm, post-add-norm: "rounded, twice" here, `+
		`"rounded, once" there; latent-norm, norm: "twice" here, "once" there`)
	require.Contains(t, text, "\nother      engine, 1\n           declared, and reproduced: nothing\n           recognised: norm: once; ")
	require.Contains(t, text, "these roundings alone move stages of the first layers, as shares of their RMS: input_layernorm.output 4.1e-04, ")
	require.NotZero(t, a.Inputs)
	require.Zero(t, a.Precision)
	const first = "model.layers.0.input_layernorm.output" // of the same embedding in both traces
	ours, err := usual.Pack.Float32s(first)
	require.NoError(t, err)
	theirs, err := once.Pack.Float32s(first)
	require.NoError(t, err)
	differ := make([]float32, len(ours))
	for n := range ours {
		differ[n] = theirs[n] - ours[n]
	}
	a, _ = against(usual, once, first)
	require.Len(t, a.Moved, 1)
	require.InEpsilon(t, bounds.RMS(differ)/bounds.RMS(ours), a.Moved[0].RelRMS, 0.01)

	a, text = against(narrow, usual)
	require.Equal(t, []report.TwoWays{{Of: "router", Here: "t", There: "f32"}}, a.Arithmetics)
	require.Contains(t, text, "because a router rounds: in float32 both choose the same")
	require.NotZero(t, a.Layers[0].Precision)
	require.Zero(t, a.Layers[0].Inputs, "the two are the same up to the first router")
	require.NotZero(t, a.Layers[2].Inputs)

	a, text = against(usual, usual)
	require.Zero(t, a.Differ)
	require.Contains(t, text, "no difference is seen in how the two round\n")

	here, there := usual.Report.Routing.Layers[0], narrow.Report.Routing.Layers[0]
	chosen := here.Layer + "." + pack.TopKIdx
	here.InFloat32, err = narrow.Pack.Ints(chosen) // each would choose in float32 what the other chose
	require.NoError(t, err)
	there.InFloat32, err = usual.Pack.Ints(chosen)
	require.NoError(t, err)
	l, err := (&job{pack: usual.Pack, in: in}).compareChoices(here, there, usual.Report, narrow)
	require.NoError(t, err)
	require.Zero(t, l.Precision, "in float32 the choices differ, too")
	require.NotZero(t, l.Inputs)

	delete(usual.Pack.Manifest.Tensors, "model.layers.1.mlp.gate.logits")
	a, _ = against(usual, narrow)
	require.Equal(t, a.Layers[0].Differ, a.Layers[0].Untold, "without logits the reason is not told")
}

// operationsOf names what two engines compute differently.
func operationsOf(list []report.TwoWays) (of []string) {
	for _, d := range list {
		of = append(of, d.Of)
	}
	return of
}
