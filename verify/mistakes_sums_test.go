package verify

import (
	"context"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// shortSums is Plain with sums kept in 16 bits, by a schedule of its own.
type shortSums struct {
	*model.Plain
	parts  int  // number of equal parts of K; sums of which it is no divisor stay whole
	narrow bool // partial sums are added in 16 bits, not in float32
	terms  int  // number of terms after which one accumulator is rounded; 0 with parts
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
		part := float32(0)
		for i := from; i < to; i++ {
			part += float32(x[i] * w[i])
		}
		if s.parts > 0 {
			part = tensor.Rounded(part, d)
		}
		if sum += part; s.narrow || s.terms > 0 {
			sum = tensor.Rounded(sum, d)
		}
	}
	return sum
}

// around puts the schedule around Plain, for recordedBy.
func (s shortSums) around(p *model.Plain) model.Arithmetic[*model.Activation] {
	s.Plain = p
	return &s
}

// Settings of torch that allow such sums.
const (
	bf16Setting = "allow_bf16_reduced_precision_reduction"
	fp16Setting = "allow_fp16_reduced_precision_reduction"
)

// TestReducedSumsAreNamed_every: references that keep sums in 16 bits fail, and the only cause is this one,
// with the schedule. A wrong row of the weight is not explained by it, beside such sums and alone.
func TestReducedSumsAreNamed_every(t *testing.T) {
	t.Parallel()
	for i, c := range []struct {
		fixture string
		d       tensor.DType
		sums    shortSums
		words   string
	}{
		{"v1-base", tensor.BF16, shortSums{parts: 4, narrow: true},
			"BF16: K in 4 parts, added in BF16 (" + bf16Setting + ")"},
		{"v1-rope-linear-tied-bias", tensor.BF16, shortSums{parts: 2, narrow: true},
			"BF16: K in 2 parts (" + bf16Setting + ")"},
		{"v3", tensor.BF16, shortSums{parts: 2}, "BF16: K in 2 parts (" + bf16Setting + ")"},
		{"v3-fp8", tensor.BF16, shortSums{parts: 3}, "BF16: K in 3 parts, added in float32 (" + bf16Setting + ")"},
		{"v1-f16", tensor.F16, shortSums{parts: 2}, "F16: K in 2 parts (" + fp16Setting + ")"},
		{"v3-f16", tensor.F16, shortSums{terms: 16}, "F16: an accumulator that is rounded after every 16 terms"},
	} {
		if i%2 > 0 && !configtest.Every(t) {
			continue
		}
		t.Run(c.fixture+" "+c.words, func(t *testing.T) {
			src := reopened(t, filepath.Join("..", "fixtures", c.fixture, "checkpoint"))
			in := inputOfTokens(6, src.Config)
			golden := recordedBy(t, src.Config, src, in, c.d, c.sums.around)
			r := failing(t, src, golden)
			cause := report.Cause{ID: "reduced-precision-sums", Text: "the reference keeps sums in " + c.words,
				Explains: 1, Failing: 1}
			require.Equal(t, []report.Cause{cause}, r.Causes, *r.FirstDivergence)
			for _, wrong := range []*pack.Pack{golden, recorded(t, src.Config, src, in, c.d)} {
				scaleColumn(t, wrong, *r.FirstDivergence, 1.05)
				require.NotContains(t, ids(failing(t, src, wrong).Causes), r.Causes[0].ID)
			}
		})
	}
}

// TestReducedSumsOfFewElementsAreNotNamed: 32 elements must tell the schedule from exact sums. Of the
// first product 16 elements do of tokens 15 and 20, 15 of token 19, and 30 of token 3.
func TestReducedSumsOfFewElementsAreNotNamed(t *testing.T) {
	t.Parallel()
	src := reopened(t, filepath.Join("..", "fixtures", "v1-base", "checkpoint"))
	for _, c := range []struct {
		tokens []int
		named  bool
	}{{[]int{15, 20}, true}, {[]int{15, 19}, false}, {[]int{3, 3}, false}} {
		in := &model.Input{Batch: 1, Seq: 2, InputIDs: c.tokens}
		r := failing(t, src, recordedBy(t, src.Config, src, in, tensor.BF16, shortSums{parts: 4}.around))
		require.Equal(t, "model.layers.0.self_attn.q_proj.output", *r.FirstDivergence)
		require.Equal(t, c.named, slices.Contains(ids(r.Causes), "reduced-precision-sums"), c.tokens)
	}
}

// wrongWeights is Plain with other weights in all products.
type wrongWeights struct {
	*model.Plain
	change func(v float32, column int) float32
}

func (w *wrongWeights) Linear(x *model.Activation, l *model.Linear) *model.Activation {
	return w.Plain.Linear(x, changed(w.Plain, l, w.change))
}

// TestOtherFaultsAreNoReducedSums_every: wrong weights in all rows move as many elements as such sums do,
// and have no such cause, also with a limit of the user's that only the worst element exceeds.
func TestOtherFaultsAreNoReducedSums_every(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(v float32, column int) float32{
		"rounded to 6 bits":        func(v float32, _ int) float32 { return (&shortened{drop: 18}).bits(v) },
		"cut off to 7 bits":        func(v float32, _ int) float32 { return (&shortened{drop: 17, cut: true}).bits(v) },
		"rounded to steps of 2^-9": func(v float32, _ int) float32 { return float32(math.RoundToEven(float64(v)*512) / 512) },
		"times 1 + 2^-8":           func(v float32, _ int) float32 { return v * (1 + 0x1p-8) },
		"half of K times 1.002":    func(v float32, column int) float32 { return v * (1 + 0.002*float32(column/32%2)) },
	} {
		for fixture, d := range map[string]tensor.DType{"v1-base": tensor.BF16, "v3-f16": tensor.F16} {
			if (d == tensor.BF16) != strings.HasPrefix(name, "rounded") && !configtest.Every(t) {
				continue
			}
			t.Run(fixture+" "+name, func(t *testing.T) {
				src := reopened(t, filepath.Join("..", "fixtures", fixture, "checkpoint"))
				in := inputOfTokens(6, src.Config)
				golden := recordedBy(t, src.Config, src, in, d, func(p *model.Plain) model.Arithmetic[*model.Activation] {
					return &wrongWeights{p, change}
				})
				r := failing(t, src, golden)
				require.NotContains(t, ids(r.Causes), "reduced-precision-sums")
				worst := r.Checks[slices.IndexFunc(r.Checks, func(c report.Check) bool { return c.Tensor == *r.FirstDivergence })]
				limits := map[string]float64{worst.Tensor: 0.999 * *worst.Z / bounds.Lambda}
				r, err := Run(context.Background(), src.Config, src, golden, Options{FailFast: true, Limits: limits})
				require.NoError(t, err)
				require.Equal(t, worst.Tensor, *r.FirstDivergence)
				require.NotContains(t, ids(r.Causes), "reduced-precision-sums")
			})
		}
	}
}
