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
			pack := recordedBy(t, src.Config, src, in, tensor.F32, func(p *model.Plain) model.Arithmetic[*model.Activation] {
				return &shortened{p, c.drop, c.cut}
			})
			r, err := Run(context.Background(), src.Config, src, pack, Options{})
			require.NoError(t, err)
			require.Equal(t, Fail, r.Verdict)
			require.NotNil(t, r.Cause, *r.FirstDivergence)
			require.Equal(t, []string{c.cause}, ids(r.Causes), *r.FirstDivergence)
			for _, wrong := range []*Pack{pack, recorded(t, src.Config, src, in, tensor.F32)} {
				name := *r.FirstDivergence
				x := wrong.loaded[name]
				width := x.Shape[len(x.Shape)-1]
				x.Data = slices.Clone(x.Data)
				for i := 3; i < x.Len(); i += width { // a row of the weight
					v := math.Float32frombits(binary.LittleEndian.Uint32(x.Data[4*i:]))
					binary.LittleEndian.PutUint32(x.Data[4*i:], math.Float32bits(v*1.001))
				}
				wrong.keep(name, x)
				r, err := Run(context.Background(), src.Config, src, wrong, Options{})
				require.NoError(t, err)
				require.Equal(t, Fail, r.Verdict)
				require.Empty(t, ids(r.Causes))
			}
		})
	}
}

// ids are the causes' names.
func ids(causes []Cause) (ids []string) {
	for _, c := range causes {
		ids = append(ids, c.ID)
	}
	return ids
}

// shortSums is Plain with sums kept in 16 bits: of parts of so many terms each, rounded and added in
// float32, or in 16 bits, or in one accumulator that is rounded after each part.
type shortSums struct {
	*model.Plain
	parts, terms int
	narrow       bool
}

func (s *shortSums) Linear(x *model.Activation, l *model.Linear) *model.Activation {
	y := s.Plain.Linear(x, l)
	k, d := x.Width(), x.DType
	n := s.terms
	if s.parts > 0 {
		n = k / s.parts
	}
	if d == tensor.F32 || s.parts > 0 && k%s.parts != 0 {
		return y
	}
	w, bias := s.Values(&l.Weight), make([]float32, y.Width())
	if l.Bias.Name != "" {
		bias = s.Values(&l.Bias)
	}
	for i := range y.Values {
		c := i % y.Width()
		y.Values[i] = tensor.Rounded(s.sum(x.Row(i/y.Width()), w[c*k:][:k], n, d)+bias[c], d)
	}
	return y
}

func (s *shortSums) sum(x, w []float32, n int, d tensor.DType) (sum float32) {
	for from := 0; from < len(x); from += n {
		to := min(from+n, len(x))
		part := inChains(x[from:to], w[from:to], n)
		if s.parts > 0 {
			part = tensor.Rounded(part, d)
		}
		if sum += part; s.narrow || s.terms > 0 {
			sum = tensor.Rounded(sum, d)
		}
	}
	return sum
}

// TestReducedSumsAreNamed: references in 16 bits that keep sums in them fail, and that is the cause,
// the only one, with what the schedule is. Exact sums pass. A wrong weight beside either is not
// explained by it.
func TestReducedSumsAreNamed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fixture string
		d       tensor.DType
		sums    shortSums
		words   string
	}{
		{"v1-base", tensor.BF16, shortSums{parts: 4}, "BF16: K in 4 parts, added in float32 (allow_bf16_reduced_precision_reduction)"},
		{"v1-base", tensor.BF16, shortSums{parts: 4, narrow: true}, "BF16: K in 4 parts, added in BF16 (allow_bf16_reduced_precision_reduction)"},
		{"v1-rope-linear-tied-bias", tensor.BF16, shortSums{parts: 4}, "BF16: K in 4 parts, added in float32 (allow_bf16_reduced_precision_reduction)"},
		{"v3", tensor.BF16, shortSums{parts: 2}, "BF16: K in 2 parts (allow_bf16_reduced_precision_reduction)"},
		{"v3-fp8", tensor.BF16, shortSums{parts: 4}, "BF16: K in 4 parts, added in float32 (allow_bf16_reduced_precision_reduction)"},
		{"v3", tensor.BF16, shortSums{parts: 2, narrow: true}, "BF16: K in 2 parts (allow_bf16_reduced_precision_reduction)"},
		{"v1-f16", tensor.F16, shortSums{parts: 2}, "F16: K in 2 parts (allow_fp16_reduced_precision_reduction)"},
		{"v3-f16", tensor.F16, shortSums{terms: 16}, "F16: an accumulator that is rounded after every 16 terms"},
		{"v1-f16", tensor.F16, shortSums{terms: 4}, "F16: an accumulator that is rounded after every 4 terms"},
	} {
		t.Run(c.fixture+" "+c.words, func(t *testing.T) {
			src := reopened(t, filepath.Join("..", "fixtures", c.fixture, "checkpoint"))
			in := &model.Input{Batch: 2, Seq: 24}
			for i := range 48 {
				in.InputIDs = append(in.InputIDs, (i*37+11)%src.Config.VocabSize)
			}
			pack := recordedBy(t, src.Config, src, in, c.d, func(p *model.Plain) model.Arithmetic[*model.Activation] {
				c.sums.Plain = p
				return &c.sums
			})
			right := recorded(t, src.Config, src, in, c.d)
			run := func(pack *Pack) *Report {
				r, err := Run(context.Background(), src.Config, src, pack, Options{})
				require.NoError(t, err)
				return r
			}
			require.Equal(t, Pass, run(right).Verdict)
			r := run(pack)
			require.Equal(t, Fail, r.Verdict)
			require.Equal(t, []Cause{{"reduced-precision-sums", "the reference keeps sums in " + c.words}}, r.Causes, *r.FirstDivergence)
			for _, wrong := range []*Pack{pack, right} {
				name := *r.FirstDivergence
				x := wrong.loaded[name]
				x.Data = slices.Clone(x.Data)
				values, err := x.Float32s(nil)
				require.NoError(t, err)
				for i := 3; i < x.Len(); i += x.Shape[len(x.Shape)-1] { // a row of the weight
					bits := half(tensor.Rounded(values[i]*1.05, c.d))
					if c.d == tensor.BF16 {
						bits = uint16(math.Float32bits(tensor.Rounded(values[i]*1.05, c.d)) >> 16)
					}
					binary.LittleEndian.PutUint16(x.Data[2*i:], bits)
				}
				wrong.keep(name, x)
				r := run(wrong)
				require.Equal(t, Fail, r.Verdict)
				require.Empty(t, ids(r.Causes))
			}
		})
	}
}

// TestReducedSumsOfFewElementsAreNotNamed: four rows of 64 columns are enough to tell a schedule by,
// three are not.
func TestReducedSumsOfFewElementsAreNotNamed(t *testing.T) {
	t.Parallel()
	for _, seq := range []int{3, 4} {
		src := reopened(t, filepath.Join("..", "fixtures", "v1-base", "checkpoint"))
		in := &model.Input{Batch: 1, Seq: seq, InputIDs: []int{11, 48, 85, 122}[:seq]}
		pack := recordedBy(t, src.Config, src, in, tensor.BF16, func(p *model.Plain) model.Arithmetic[*model.Activation] {
			return &shortSums{Plain: p, parts: 4}
		})
		r, err := Run(context.Background(), src.Config, src, pack, Options{})
		require.NoError(t, err)
		require.Equal(t, Fail, r.Verdict)
		require.Equal(t, "model.layers.0.self_attn.q_proj.output", *r.FirstDivergence)
		require.Equal(t, seq*64 >= leastSums, len(r.Causes) == 1, seq)
	}
}
