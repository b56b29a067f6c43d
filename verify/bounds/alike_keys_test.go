package bounds

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
	"dsmoe/model/tensor"
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
func (c *alikeKeysTest) context(moved, sigma float64) *Value {
	a := NewAnalysis(model.Options{DType: tensor.F32}, nil)
	operand := func(moves bool, values []float32, shape ...int) *Value {
		x := a.result(tensor.F32, shape...)
		for i, v := range values {
			if !moves {
				x.Set(i, float64(v), 0)
				continue
			}
			x.Set(i, float64(v)*(1+moved*c.deviation*c.randomness.NormFloat64()), Sq(sigma*c.deviation*float64(v)/Unit))
		}
		return x
	}
	const different, copies, keys = 2, 20, 40
	repeated := func(x *Value, at func(head, key, dim int) int, shape ...int) *Value {
		y, width := a.result(tensor.F32, shape...), x.Width()
		for i := range x.Values {
			head, key, dim := i/width/different, i/width%different, i%width
			for n := range copies {
				y.Set(at(head, copies*key+n, dim), float64(x.Values[i]*(1+c.drift*float32(n))), x.Variance(i))
			}
		}
		return y
	}
	q := operand(c.moveQ, c.q, 1, 2, 8, 16)
	q.ColumnsShare = c.moveQ
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
					observed += Sq(float64(v)-float64(base.Values[i])) / samples
				}
			}
			for i := range base.Values {
				predicted += base.Variance(i) * Unit * Unit
			}
			ratio := math.Sqrt(predicted / observed)
			t.Logf("predicted %.2f of what was observed", ratio)
			require.True(t, ratio >= test.least && ratio <= test.most, "predicted %g of what was observed", ratio)
			require.True(t, base.ColumnsShare)
		})
	}
}
