package verify

import (
	"cmp"
	"context"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
	"dsmoe/verify/verifytest"
)

// rounding is an engine in BF16 whose norms round once, or whose router rounds its logits.
type rounding struct {
	*model.Plain
	normsOnce, router, weights bool
}

func (e rounding) Scale(x *model.Activation, factor float32) *model.Activation {
	y := e.Plain.Scale(x, factor)
	for i, v := range y.Values {
		if e.weights && x.Width() == 4 { // of the experts of a token
			y.Values[i] = tensor.Rounded(v, tensor.BF16)
		}
	}
	return y
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
	ids := make([]int, 96)
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
	require.Contains(t, text, "these roundings alone move stages of the first layers, as shares of their RMS: input_layernorm.output 3.8e-04, ")
	require.NotZero(t, a.Inputs)
	require.Zero(t, a.Precision)
	require.Equal(t, report.Inputs, a.First.Why)
	require.Nil(t, a.FirstBeyond)
	require.Regexp(t, `the first: layer 1, token \d+: experts \d+ here, \d+ there, because the routers' inputs differ`, text)
	requireLogitsCompared(t, a.Logits, usual.Pack, once.Pack, in)
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
	require.Nil(t, a.First)
	require.Zero(t, a.Logits.LogProb.Max+a.Logits.KL.Max)
	require.Contains(t, text, " tokens: |Δ log p| of the next token median 0.0e+00, at most 0.0e+00, of token 1 (id ")
	require.Contains(t, text, "no difference is seen in how the two round\n")

	here, there := usual.Report.Routing.Layers[0], narrow.Report.Routing.Layers[0]
	chosen := here.Layer + "." + pack.TopKIdx
	here.InFloat32, err = narrow.Pack.Ints(chosen) // each would choose in float32 what the other chose
	require.NoError(t, err)
	there.InFloat32, err = usual.Pack.Ints(chosen)
	require.NoError(t, err)
	l, err := (&job{pack: usual.Pack, in: in}).compareChoices(&report.Against{}, here, there, usual.Report, narrow)
	require.NoError(t, err)
	require.Zero(t, l.Precision, "in float32 the choices differ, too")
	require.NotZero(t, l.Inputs)

	delete(usual.Pack.Manifest.Tensors, "model.layers.1.mlp.gate.logits")
	a, _ = against(usual, narrow)
	require.Equal(t, a.Layers[0].Differ, a.Layers[0].Untold, "without logits the reason is not told")
}

// requireLogitsCompared computes what is said of the logits of two packs from all of them at once.
func requireLogitsCompared(t *testing.T, l *report.AgainstLogits, here, there *pack.Pack, in *model.Input) {
	ours, err := here.Float32s(pack.Logits)
	require.NoError(t, err)
	theirs, err := there.Float32s(pack.Logits)
	require.NoError(t, err)
	var kl, differ []float64
	width := len(ours) / in.Seq
	for at := range in.Seq {
		logs := func(logits []float32) []float64 {
			sum, list := 0.0, make([]float64, width)
			for _, v := range logits[at*width : (at+1)*width] {
				sum += math.Exp(float64(v))
			}
			for i := range list {
				list[i] = float64(logits[at*width+i]) - math.Log(sum)
			}
			return list
		}
		p, q, sum := logs(ours), logs(theirs), 0.0
		for i := range p {
			sum += math.Exp(p[i]) * (p[i] - q[i])
		}
		if kl = append(kl, sum); at+1 < in.Seq {
			next := in.InputIDs[at+1]
			differ = append(differ, math.Abs(p[next]-q[next]))
		}
	}
	const within = 1e-12
	require.Equal(t, in.Seq, l.Tokens)
	require.InDelta(t, slices.Max(kl), l.KL.Max, within)
	require.Equal(t, slices.Index(kl, slices.Max(kl)), l.KL.Position)
	require.InDelta(t, slices.Max(differ), l.LogProb.Max, within)
	require.Equal(t, 1+slices.Index(differ, slices.Max(differ)), l.LogProb.Position)
	require.Equal(t, in.InputIDs[l.LogProb.Position], l.LogProb.Token)
	require.InDelta(t, l.LogProb.Max, math.Abs(*l.LogProb.Here-*l.LogProb.There), within)
	slices.Sort(kl)
	slices.Sort(differ)
	require.InDelta(t, kl[(in.Seq-1)/2], l.KL.Median, within)
	require.InDelta(t, differ[(in.Seq-2)/2], l.LogProb.Median, within)
}

// TestAgainstLogitsInBlocks: figures do not depend on how many rows are read at once; rows of padding, and of logits that
// are not finite, are left out.
func TestAgainstLogitsInBlocks(t *testing.T) {
	t.Parallel()
	const batch, seq, vocab = 2, 5, 7
	in := &model.Input{Batch: batch, Seq: seq, InputIDs: make([]int, batch*seq), AttentionMask: slices.Repeat([]int{1}, batch*seq)}
	in.AttentionMask[4], in.InputIDs[7] = 0, 6 // the last token of the first sequence
	var packs [2]*Trace
	for i := range packs {
		r := verifytest.NewRecorder("", &config.Config{}, tensor.F32)
		x := &model.Activation{Shape: []int{batch, seq, vocab}, DType: tensor.F32, Values: make([]float32, batch*seq*vocab)}
		x.Values[6*vocab+6], x.Values[4*vocab] = float32(i), float32(i) // log p of token 7 after token 6; padding
		if i == 1 {
			x.Values[9*vocab] = float32(math.Inf(1))
		}
		require.NoError(t, r.Stage(pack.Logits, x))
		packs[i] = &Trace{Pack: r.Pack}
	}
	j := &job{pack: packs[0].Pack, in: in, model: &model.DeepseekForCausalLM{Config: &config.Config{VocabSize: vocab}}, scope: &scope{config: &config.Config{}}}
	var before *report.AgainstLogits
	for _, block := range []int{1, 3 * 4 * vocab, 0} {
		j.options = &Options{block: block}
		l, err := j.compareLogits(nil, packs[1])
		require.NoError(t, err)
		require.Equal(t, []int{8, 1, 1, 2, 6}, []int{l.Tokens, l.NotFinite, l.LogProb.Sequence, l.LogProb.Position, l.LogProb.Token})
		require.InDelta(t, math.Log((6+math.E)/7)-1, *l.LogProb.Here-*l.LogProb.There, 1e-12)
		require.Equal(t, []int{1, 1}, []int{l.KL.Sequence, l.KL.Position})
		require.Zero(t, l.KL.Median)
		require.True(t, before == nil || reflect.DeepEqual(before, l))
		before = l
	}
	delete(packs[1].Pack.Manifest.Tensors, pack.Logits)
	l, err := j.compareLogits(nil, packs[1])
	require.NoError(t, err)
	require.Contains(t, l.Missing, " has no lm_head.output")
}

// operationsOf names what two engines compute differently.
func operationsOf(list []report.TwoWays) (of []string) {
	for _, d := range list {
		of = append(of, d.Of)
	}
	return of
}

// TestRoundedWeights: weights of experts that an engine rounds to BF16 are recognised as that, and wrong ones fail.
func TestRoundedWeights(t *testing.T) {
	t.Parallel()
	ids := make([]int, 48)
	for i := range ids {
		ids[i] = i * 89 % 251
	}
	c, _, record := recordingTrained(t, ids)
	const stage = "model.layers.2." + pack.TopKWeight
	for _, odd := range []bool{false, true} {
		p := record(func(p *model.Plain) model.Arithmetic[*model.Activation] { return rounding{Plain: p, weights: true} })
		p.Manifest.Reference = pack.Reference{Kind: pack.Engine, Name: "engine", Version: "1"}
		if odd {
			w := p.Replaced[stage]
			w.Data = slices.Clone(w.Data)
			w.Data[4*21+2] ^= 1 // the last bit of BF16, of token 5
			p.Replaced[stage] = w
		}
		r, err := Run(context.Background(), c.Config, c, p, Options{Undiagnosed: true, RotaryDType: tensor.BF16})
		require.NoError(t, err)
		i := slices.IndexFunc(r.Golden.Recognised, func(k report.Recognised) bool { return k.Kind == "score" })
		require.GreaterOrEqual(t, i, 0)
		require.Equal(t, "weights t", r.Golden.Recognised[i].Ways["score"])
		if want := map[bool]report.Verdict{false: report.Pass, true: report.Fail}[odd]; true {
			require.Equal(t, want, r.Verdict, "%v %v", *cmp.Or(r.FirstDivergence, new(string)), r.Reasons)
		}
		if odd {
			require.Equal(t, stage, *r.FirstDivergence)
		}
	}
}
