package verify

import (
	"context"
	"encoding/binary"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/convert/checkpoint"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
	"dsmoe/verify/verifytest"
)

// shortened is Plain with products whose operands lose so many of their last bits, to nearest or cut
// off, as a GPU's would be.
type shortened struct {
	*model.Plain
	drop int
	cut  bool
}

func (s *shortened) bits(v float32) float32 {
	b := math.Float32bits(v)
	if !s.cut {
		b += 1<<(s.drop-1) - 1 + b>>s.drop&1
	}
	return math.Float32frombits(b >> s.drop << s.drop)
}

func (s *shortened) of(x *model.Activation) *model.Activation {
	y := *x
	y.Values = slices.Clone(x.Values)
	for i, v := range y.Values {
		y.Values[i] = s.bits(v)
	}
	return &y
}

func (s *shortened) Linear(x *model.Activation, l *model.Linear) *model.Activation {
	return s.Plain.Linear(s.of(x), changed(s.Plain, l, func(v float32, _ int) float32 { return s.bits(v) }))
}

// changed is l with each element of its weight changed, in F32.
func changed(p *model.Plain, l *model.Linear, change func(v float32, column int) float32) *model.Linear {
	other, w := *l, &l.Weight
	other.Weight = model.Weight{Name: w.Name, InFloat32: w.InFloat32, Tensor: tensor.Tensor{DType: tensor.F32, Shape: w.Shape}}
	for i, v := range p.Values(w) {
		bits := math.Float32bits(change(v, i%w.Shape[1]))
		other.Weight.Data = binary.LittleEndian.AppendUint32(other.Weight.Data, bits)
	}
	return &other
}

func (s *shortened) Scores(q, k *model.Activation, first, n int, by *model.Scoring) *model.Activation {
	return s.Plain.Scores(s.of(q), s.of(k), first, n, by)
}

func (s *shortened) Context(probs, vT *model.Activation) *model.Activation {
	return s.Plain.Context(s.of(probs), s.of(vT))
}

// TestShortProductsAreNamed_every: references in float32 whose products are those of TF32 or BF16 numbers
// fail, and that is the cause, the only one. A wrong weight beside exact products is another matter,
// and has no such cause; beside short ones it is not explained by them.
func TestShortProductsAreNamed_every(t *testing.T) {
	t.Parallel()
	for i, c := range []struct {
		fixture string
		drop    int
		cut     bool
		cause   string
	}{
		{"v1-gqa-norm-freq2", 13, false, "tf32-products"}, {"v1-gqa-norm-freq2", 13, true, "tf32-products"},
		{"v1-gqa-norm-freq2", 16, false, "bf16-products"}, {"v2-lite", 13, false, "tf32-products"},
		{"v3", 13, true, "tf32-products"},
		{"v3-fp8", 13, false, "tf32-products"}, {"v3-fp8", 16, true, "bf16-products"},
	} {
		if i%3 > 0 && !configtest.Every(t) {
			continue
		}
		t.Run(c.fixture+" "+c.cause, func(t *testing.T) {
			src := reopened(t, filepath.Join("..", "fixtures", c.fixture, "checkpoint"))
			in := inputOfTokens(12, src.Config)
			golden := recordedBy(t, src.Config, src, in, tensor.F32, func(p *model.Plain) model.Arithmetic[*model.Activation] {
				return &shortened{p, c.drop, c.cut}
			})
			r := failing(t, src, golden)
			require.Equal(t, []string{c.cause}, ids(r.Causes), *r.FirstDivergence)
			for _, wrong := range []*pack.Pack{golden, recorded(t, src.Config, src, in, tensor.F32)} {
				scaleColumn(t, wrong, *r.FirstDivergence, 1.001)
				require.NotContains(t, ids(failing(t, src, wrong).Causes), r.Causes[0].ID)
			}
		})
	}
}

// widened is Plain with a weight of which a function makes other numbers in F32.
type widened struct {
	*model.Plain
	name   string
	change func(v float32, column int) float32
}

func (w *widened) Linear(x *model.Activation, l *model.Linear) *model.Activation {
	if l.Weight.Name == w.name {
		l = changed(w.Plain, l, w.change)
	}
	return w.Plain.Linear(x, l)
}

// TestRoundedRouter_every: a router rounded to BF16, whose reference kept it in F32, is named, and explained by a conversion
// that says so. One that is further off is not put down to that.
func TestRoundedRouter_every(t *testing.T) {
	t.Parallel()
	const gate = "model.layers.2.mlp.gate."
	src := reopened(t, filepath.Join("..", "fixtures", "v3-trained", "checkpoint"))
	for _, d := range []tensor.DType{tensor.F32, tensor.BF16} {
		if d == tensor.F32 && !configtest.Every(t) {
			continue
		}
		for by, causes := range map[float32][]string{0x1p-9: {"router-rounded"}, 0x1p-6: nil} {
			c := src.Config.WithRules(func(r *config.Rules) { r.Router.KeepsGate = true })
			golden := recordedBy(t, c, src, inputOfTokens(12, c), d, func(p *model.Plain) model.Arithmetic[*model.Activation] {
				return &widened{p, gate + "weight", func(v float32, column int) float32 {
					return v * (1 + by*float32(column*37%64-32)/32)
				}}
			})
			golden.Manifest.KeptFloat32 = []string{"mlp.gate.weight", "mlp.gate.e_score_correction_bias"}
			r := failing(t, src, golden)
			require.Equal(t, gate+"logits", *r.FirstDivergence)
			require.Equal(t, causes, ids(r.Causes), "%v", d)
			r, err := Run(context.Background(), src.Config, src, golden, Options{Rounded: func() (map[string]tensor.Rounding, error) {
				return map[string]tensor.Rounding{gate + "weight": bounds.AllRounded("cast")}, nil
			}})
			require.NoError(t, err)
			require.Equal(t, len(causes) == 0, r.Verdict == report.Fail, "%v %v", d, r.FirstDivergence)
		}
	}
}

// inputOfTokens is two sequences of n tokens each.
func inputOfTokens(n int, c *config.Config) *model.Input {
	in := &model.Input{Batch: 2, Seq: n}
	for i := range 2 * n {
		in.InputIDs = append(in.InputIDs, (i*37+11)%c.VocabSize)
	}
	return in
}

// failing is the report of a run that ends with the first stage that fails.
func failing(t *testing.T, src *checkpoint.Checkpoint, golden *pack.Pack) *report.Report {
	r, err := Run(context.Background(), src.Config, src, golden, Options{FailFast: true})
	require.NoError(t, err)
	require.Equal(t, report.Fail, r.Verdict)
	return r
}

// scaleColumn multiplies column 3 of a golden tensor: the reference had another row of the weight.
func scaleColumn(t *testing.T, p *pack.Pack, name string, by float32) {
	x, err := p.Tensor(name)
	require.NoError(t, err)
	values, err := x.Float32s(nil)
	require.NoError(t, err)
	for i := 3; i < len(values); i += x.Shape[len(x.Shape)-1] {
		values[i] = tensor.Rounded(values[i]*by, x.DType)
	}
	require.NoError(t, (&verifytest.Recorder{Pack: p}).Stage(name, &model.Activation{DType: x.DType, Shape: x.Shape, Values: values}))
}

// ids are the causes' names.
func ids(causes []report.Cause) (ids []string) {
	for _, c := range causes {
		ids = append(ids, c.ID)
	}
	return ids
}

// TestBiasLeakedIntoTheWeights: a reference whose top-k weights hold the correction bias.
func TestBiasLeakedIntoTheWeights(t *testing.T) {
	t.Parallel()
	c := reopened(t, filepath.Join("..", "fixtures", "v3", "checkpoint"))
	golden := recordedBy(t, c.Config, c, inputOfTokens(12, c.Config), tensor.F32, func(plain *model.Plain) model.Arithmetic[*model.Activation] {
		return &leaky{Plain: plain}
	})
	r := failing(t, c, golden)
	require.Equal(t, "model.layers.2.mlp.gate.topk_weight", *r.FirstDivergence)
	require.Equal(t, []string{"bias-leak"}, ids(r.Causes))
}

// leaky takes the top-k weights from the scores with the correction bias.
type leaky struct {
	*model.Plain
	scores, biased *model.Activation
}

func (l *leaky) AddBias(scores *model.Activation, bias *model.Weight) *model.Activation {
	l.scores, l.biased = scores, l.Plain.AddBias(scores, bias)
	return l.biased
}

func (l *leaky) Move(m *model.Move, operands ...*model.Activation) *model.Activation {
	if operands[0] == l.scores {
		operands = []*model.Activation{l.biased}
	}
	return l.Plain.Move(m, operands...)
}
