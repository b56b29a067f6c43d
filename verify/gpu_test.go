package verify

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
	"dsmoe/verify/verifytest"
)

// onGPU is Plain with the products of a GPU: tensor cores add up those of 16 bits, and of TF32 if float32 operands are
// rounded to that.
type onGPU struct {
	*shortened
	core  verifytest.TensorCore
	tf32  bool
	whole string // this weight's products are of float32 for all that
}

// product is the sum of products of two rows of dtype d.
func (g *onGPU) product(d tensor.DType, a, b []float32, tf32 bool) float32 {
	if d != tensor.F32 || tf32 {
		return g.core.Dot(a, b)
	}
	return verifytest.TensorCore{}.Dot(a, b)
}

// operand is x as it is multiplied.
func (g *onGPU) operand(x *model.Activation) *model.Activation {
	if g.tf32 && x.DType == tensor.F32 {
		return g.of(x)
	}
	return x
}

func (g *onGPU) Linear(x *model.Activation, l *model.Linear) *model.Activation {
	y, k := g.Plain.Linear(x, l), x.Width()
	a, tf32 := g.operand(x), g.tf32 && l.Weight.Name != g.whole
	w := &model.Activation{DType: x.DType, Values: g.Values(&l.Weight)}
	if tf32 {
		w = g.operand(w)
	} else {
		a = x
	}
	for i := range y.Values {
		t, o := i/y.Width(), i%y.Width()
		sum := g.product(x.DType, a.Values[t*k:][:k], w.Values[o*k:][:k], tf32)
		if l.Bias.Name != "" {
			sum += g.Values(&l.Bias)[o]
		}
		y.Values[i] = tensor.Rounded(sum, y.DType)
	}
	return y
}

// Scores hands the sums on as a product of them with 1, which is exact.
func (g *onGPU) Scores(q, k *model.Activation, first, n int, by *model.Scoring) *model.Activation {
	heads, groups, rows, keys, dim := q.Shape[1], k.Shape[1], q.Shape[2], k.Shape[2], q.Width()
	one, sums := *q, *k
	one.Shape, one.Values = []int{q.Shape[0], heads, rows, rows}, make([]float32, q.Shape[0]*heads*rows*rows)
	sums.Shape, sums.Values = []int{q.Shape[0], heads, keys, rows}, make([]float32, q.Shape[0]*heads*keys*rows)
	a, b := g.operand(q), g.operand(k)
	for head := range q.Shape[0] * heads {
		of := head/heads*groups + head%heads*groups/heads
		for t := first; t < first+n; t++ {
			one.Values[(head*rows+t)*rows+t] = 1
			for s := range keys {
				sums.Values[(head*keys+s)*rows+t] = g.product(q.DType, a.Values[(head*rows+t)*dim:][:dim], b.Values[(of*keys+s)*dim:][:dim], g.tf32)
			}
		}
	}
	return g.Plain.Scores(&one, &sums, first, n, by)
}

func (g *onGPU) Context(probs, vT *model.Activation) *model.Activation {
	y := g.Plain.Context(probs, vT)
	heads, groups, n, width, keys := probs.Shape[1], vT.Shape[1], probs.Shape[2], vT.Shape[2], probs.Width()
	a, b := g.operand(probs), g.operand(vT)
	for i := range y.Values {
		head, row, e := i/width/n, i/width, i%width
		of := head/heads*groups + head%heads*groups/heads
		y.Values[i] = tensor.Rounded(g.product(probs.DType, a.Values[row*keys:][:keys], b.Values[(of*width+e)*keys:][:keys], g.tf32), y.DType)
	}
	return y
}

// TestReferencesOnAGPU_every: references whose products are added up by tensor cores, or in one chain of float32, pass, those of
// TF32 with a line that says so; of products some of which are whole nothing is known: INCONCLUSIVE by name. A wrong
// channel of a weight fails in all of them.
func TestReferencesOnAGPU_every(t *testing.T) {
	t.Parallel()
	volta, ampere, hopper := verifytest.TensorCore{Terms: 4, Fraction: 23}, verifytest.TensorCore{Terms: 8, Fraction: 24}, verifytest.TensorCore{Terms: 16, Fraction: 25}
	for i, test := range []struct {
		fixture  string
		d        tensor.DType
		core     verifytest.TensorCore
		tf32     bool
		cut      bool
		whole    string
		products string
	}{
		{fixture: "v3-trained", d: tensor.BF16, core: ampere},
		{fixture: "v3", d: tensor.F32, core: verifytest.TensorCore{Terms: 4, Fraction: 24}, tf32: true, products: "operands rounded to TF32, 10 bits of mantissa"},
		{fixture: "glm4-moe", d: tensor.F32, core: verifytest.TensorCore{Terms: 8, Fraction: 25}, tf32: true, cut: true, products: "operands cut off to TF32, 10 bits of mantissa"},
		{fixture: "v2-lite", d: tensor.F32},
		{fixture: "v3", d: tensor.BF16, core: hopper},
		{fixture: "v2-lite", d: tensor.F16, core: volta},
		{fixture: "v3", d: tensor.F32, core: ampere, tf32: true, whole: "model.layers.2.mlp.gate.weight", products: "operands may be rounded to TF32, 10 bits of mantissa"},
		{fixture: "v2-lite", d: tensor.BF16, core: volta},
		{fixture: "minimax-m2", d: tensor.BF16, core: ampere},
		{fixture: "minimax-m2", d: tensor.F32, core: hopper, tf32: true, products: "operands rounded to TF32, 10 bits of mantissa"},
	} {
		if i > 1 && !configtest.Every(t) {
			continue
		}
		t.Run(test.fixture+" "+test.d.String()+test.whole, func(t *testing.T) {
			src := reopened(t, filepath.Join("..", "fixtures", test.fixture, "checkpoint"))
			record := func() *pack.Pack {
				golden := recordedBy(t, src.Config, src, inputOfTokens(12, src.Config), test.d, func(p *model.Plain) model.Arithmetic[*model.Activation] {
					return &onGPU{&shortened{p, 13, test.cut}, test.core, test.tf32, test.whole}
				})
				golden.Manifest.Reference.GPU = "simulated"
				golden.Manifest.Reference.Precision = &pack.Precision{MatmulTF32: test.tf32}
				return golden
			}
			r, err := Run(context.Background(), src.Config, src, record(), Options{})
			require.NoError(t, err)
			verdict := report.Pass
			if test.whole != "" {
				verdict = report.Inconclusive
			}
			require.Equal(t, verdict, r.Verdict, "%v %v", r.FirstDivergence, r.Reasons)
			require.Equal(t, test.products, r.Golden.Products)
			for n, name := range []string{"model.layers.1.self_attn.output", "model.layers.2.mlp.output"} {
				if n != i && !configtest.Every(t) {
					continue
				}
				golden := record()
				scaleColumn(t, golden, name, 1.03)
				r, err := Run(context.Background(), src.Config, src, golden, Options{Undiagnosed: true})
				require.NoError(t, err)
				require.Equal(t, report.Fail, r.Verdict, name)
				require.Equal(t, name, *r.FirstDivergence)
			}
		})
	}
}
