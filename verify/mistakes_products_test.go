package verify

import (
	"context"
	"encoding/binary"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
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
	short := *l
	short.Weight = model.Weight{Name: l.Weight.Name, Tensor: tensor.Tensor{DType: tensor.F32, Shape: l.Weight.Shape}}
	for _, v := range s.Values(&l.Weight) {
		short.Weight.Data = binary.LittleEndian.AppendUint32(short.Weight.Data, math.Float32bits(s.bits(v)))
	}
	return s.Plain.Linear(s.of(x), &short)
}

func (s *shortened) Scores(q, k *model.Activation, first, n int, by *model.Scoring) *model.Activation {
	return s.Plain.Scores(s.of(q), s.of(k), first, n, by)
}

func (s *shortened) Context(probs, vT *model.Activation) *model.Activation {
	return s.Plain.Context(s.of(probs), s.of(vT))
}

// TestShortProductsAreNamed: references in float32 whose products are those of TF32 or BF16 numbers
// fail, and that is the cause, the only one. A wrong weight beside exact products is another matter,
// and has no such cause; beside short ones it is not explained by them.
func TestShortProductsAreNamed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fixture string
		drop    int
		cut     bool
		cause   string
	}{
		{"v1-gqa-norm-freq2", 13, false, "tf32-products"}, {"v1-gqa-norm-freq2", 13, true, "tf32-products"},
		{"v1-gqa-norm-freq2", 16, false, "bf16-products"}, {"v2-lite", 13, false, "tf32-products"}, {"v3", 13, true, "tf32-products"},
		{"v3-fp8", 13, false, "tf32-products"}, {"v3-fp8", 16, true, "bf16-products"},
	} {
		t.Run(c.fixture+" "+c.cause, func(t *testing.T) {
			src := reopened(t, filepath.Join("..", "fixtures", c.fixture, "checkpoint"))
			in := &model.Input{Batch: 2, Seq: 24}
			for i := range 48 {
				in.InputIDs = append(in.InputIDs, (i*37+11)%src.Config.VocabSize)
			}
			golden := recordedBy(t, src.Config, src, in, tensor.F32, func(p *model.Plain) model.Arithmetic[*model.Activation] {
				return &shortened{p, c.drop, c.cut}
			})
			r, err := Run(context.Background(), src.Config, src, golden, Options{})
			require.NoError(t, err)
			require.Equal(t, report.Fail, r.Verdict)
			require.NotNil(t, r.Cause, *r.FirstDivergence)
			require.Equal(t, []string{c.cause}, ids(r.Causes), *r.FirstDivergence)
			for _, wrong := range []*pack.Pack{golden, recorded(t, src.Config, src, in, tensor.F32)} {
				name := *r.FirstDivergence
				x, err := wrong.Tensor(name)
				require.NoError(t, err)
				width := x.Shape[len(x.Shape)-1]
				x.Data = slices.Clone(x.Data)
				for i := 3; i < x.Len(); i += width { // a row of the weight
					v := math.Float32frombits(binary.LittleEndian.Uint32(x.Data[4*i:]))
					binary.LittleEndian.PutUint32(x.Data[4*i:], math.Float32bits(v*1.001))
				}
				wrong.Keep(name, x)
				r, err := Run(context.Background(), src.Config, src, wrong, Options{})
				require.NoError(t, err)
				require.Equal(t, report.Fail, r.Verdict)
				require.Empty(t, ids(r.Causes))
			}
		})
	}
}

// ids are the causes' names.
func ids(causes []report.Cause) (ids []string) {
	for _, c := range causes {
		ids = append(ids, c.ID)
	}
	return ids
}
