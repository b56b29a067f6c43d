package verify

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/checkpoint"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/verify/pack"
)

// alikeKeysTest is a context of 40 keys, twenty times two different ones, whose operands are moved by
// as much as their standard deviations say: equal keys by the same numbers.
type alikeKeysTest struct {
	q, k, v    []float32 // [2, 8, 16], [2, 2, 16], [2, 2, 12]: of the different keys
	drift      float32   // relative difference of each of equal keys from the one before
	moveQ      bool      // else the values
	deviation  float64   // relative, of what is moved
	randomness *rand.Rand
}

// context computes with operands that are moved by so many deviations, and carry those of sigma.
func (c *alikeKeysTest) context(moved, sigma float64) *value {
	a := newAnalysis(model.Options{DType: tensor.F32}, nil)
	operand := func(moves bool, values []float32, shape ...int) *value {
		x := a.result(tensor.F32, shape...)
		for i, v := range values {
			if !moves {
				x.set(i, float64(v), 0)
				continue
			}
			x.set(i, float64(v)*(1+moved*c.deviation*c.randomness.NormFloat64()), sq(sigma*c.deviation*float64(v)/unit))
		}
		return x
	}
	const different, copies, keys = 2, 20, 40
	repeated := func(x *value, at func(head, key, dim int) int, shape ...int) *value {
		y, width := a.result(tensor.F32, shape...), x.Width()
		for i := range x.Values {
			head, key, dim := i/width/different, i/width%different, i%width
			for n := range copies {
				y.set(at(head, copies*key+n, dim), float64(x.Values[i]*(1+c.drift*float32(n))), x.v(i))
			}
		}
		return y
	}
	q := operand(c.moveQ, c.q, 1, 2, 8, 16)
	q.together = c.moveQ
	k := repeated(operand(false, c.k, 1, 2, different, 16), func(head, key, dim int) int { return (head*keys+key)*16 + dim }, 1, 2, keys, 16)
	vT := repeated(operand(!c.moveQ, c.v, 1, 2, different, 12), func(head, key, dim int) int { return (head*12+dim)*keys + key }, 1, 2, 12, keys)
	return a.Context(a.Softmax(a.Scores(q, k, 0, 8, &model.Scoring{By: 4, Divides: true})), vT)
}

// TestErrorsOfAlikeKeysAddUp: where values that equal tokens have, or queries, are moved at random,
// a context moves by as much as the analysis says.
func TestErrorsOfAlikeKeysAddUp(t *testing.T) {
	for name, test := range map[string]struct {
		drift       float32
		moveQ       bool
		least, most float64 // predicted over observed, RMS
	}{
		"values":         {0, false, 0.95, 1.05},
		"values, nearly": {0x1p-21, false, 0.95, 1.05},
		"queries":        {0, true, 0.95, 3},
	} {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(5, 6))
			c := &alikeKeysTest{numbers(r, 256), numbers(r, 64), numbers(r, 48), test.drift, test.moveQ, 1e-3, r}
			base := c.context(0, 1)
			predicted, observed := 0.0, 0.0
			const samples = 200
			for range samples {
				for i, v := range c.context(1, 0).Values {
					observed += sq(float64(v)-float64(base.Values[i])) / samples
				}
			}
			for i := range base.Values {
				predicted += base.v(i) * unit * unit
			}
			ratio := math.Sqrt(predicted / observed)
			t.Logf("predicted %.2f of what was observed", ratio)
			require.True(t, ratio >= test.least && ratio <= test.most, "predicted %g of what was observed", ratio)
			require.True(t, base.together)
		})
	}
}

// TestRepeatedTokensWithoutAStage: batches of two ids are right references whatever the pack lacks
// of attention. Where rows share the errors of what it lacks, columns have the limit of rows.
func TestRepeatedTokensWithoutAStage(t *testing.T) {
	t.Parallel()
	in := &model.Input{Batch: 2, Seq: 240}
	for i := range in.Batch * in.Seq {
		in.InputIDs = append(in.InputIDs, 3+i%2*6)
	}
	const attention, behind = "self_attn.o_proj.input", "output"
	for _, test := range []struct {
		fixture string
		absent  []string
		shares  string // a stage whose rows share errors
	}{
		{"v3", nil, ""},
		{"v1-gqa-norm-freq2", []string{"self_attn.v_proj.output"}, attention},
		{"v3", []string{"self_attn.kv_b_proj.output"}, attention},
		{"v3", []string{"self_attn.q_b_proj.output"}, attention},
		{"v3", []string{"self_attn.q_b_proj.output", "self_attn.kv_b_proj.output"}, attention},
		{"v3", []string{"self_attn.kv_b_proj.output", attention, "self_attn.o_proj.output", "self_attn.output", "post_attention_layernorm.output", "mlp.output"}, behind},
	} {
		t.Run(fmt.Sprint(test.fixture, test.absent), func(t *testing.T) {
			c, err := checkpoint.Open(filepath.Join("..", "fixtures", test.fixture, "checkpoint"))
			require.NoError(t, err)
			defer c.Close()
			p := recorded(t, c.Config, c, in, tensor.F32)
			for name := range p.Manifest.Tensors {
				if _, kind := pack.CutLayer(name); slices.Contains(test.absent, kind) {
					delete(p.Manifest.Tensors, name)
				}
			}
			p.Manifest.Partial, p.Manifest.Absent.Stages = "two ids", test.absent
			r, err := Run(context.Background(), c.Config, c, p, Options{Undiagnosed: true})
			require.NoError(t, err)
			require.Nil(t, r.FirstDivergence)
			for _, check := range r.Checks {
				switch layer, kind := pack.CutLayer(check.Tensor); {
				case layer == 0 && kind == test.shares:
					require.Equal(t, float64(rowRMS), check.Limits.ColumnZ, check.Tensor)
				case layer == 0 && (kind == attention || kind == "self_attn.o_proj.output"):
					require.Less(t, check.Limits.ColumnZ, 1.6, check.Tensor)
				}
			}
		})
	}
}
