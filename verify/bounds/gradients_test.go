package bounds

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
)

// TestErrorsAreCarriedBack: operands, and the gradient of the result, are moved at random by far more
// than rounding does; the gradients of the operands move by as much as the analysis says.
func TestErrorsAreCarriedBack(t *testing.T) {
	const spread = 1e-4 // relative, of each element
	r := rand.New(rand.NewPCG(5, 6))
	linear := &model.Linear{Weight: weight(r, 24, 32)}
	scale := weight(r, 32)
	angles := numbers(r, 32)
	rotary := &model.Rotary{Angles: angles, Others: angles, Cos: make([]float32, 32), Sin: make([]float32, 32), Factor: 1, Half: 4, DType: tensor.F32}
	part := func(e int, x *Value, slots ...int) model.Part[*Value] {
		return model.Part[*Value]{Expert: e, Slots: slots, Out: x}
	}
	for name, test := range map[string]struct {
		shapes      [][]int
		f           func(g *Gradients, x []*Value) *Value
		least, most float64 // predicted over observed, RMS
	}{
		"Linear":    {[][]int{{8, 32}}, func(g *Gradients, x []*Value) *Value { return g.Linear(x[0], linear) }, 0.9, 1.1},
		"RMSNorm":   {[][]int{{8, 32}}, func(g *Gradients, x []*Value) *Value { return g.RMSNorm(x[0], &scale, 1e-6) }, 0.9, 1.15},
		"Add":       {[][]int{{8, 32}, {8, 32}}, func(g *Gradients, x []*Value) *Value { return g.Add(x[0], x[1]) }, 0.9, 1.1},
		"SwiGLU":    {[][]int{{8, 32}, {8, 32}}, func(g *Gradients, x []*Value) *Value { return g.SwiGLU(x[0], x[1]) }, 0.9, 1.1},
		"Softmax":   {[][]int{{8, 32}}, func(g *Gradients, x []*Value) *Value { return g.Softmax(x[0]) }, 0.9, 1.2},
		"Scale":     {[][]int{{8, 32}}, func(g *Gradients, x []*Value) *Value { return g.Scale(x[0], 2.5) }, 0.9, 1.1},
		"Normalise": {[][]int{{8, 6}}, func(g *Gradients, x []*Value) *Value { return g.Normalise(g.Softmax(x[0]), model.Divisor{Eps: 1e-20}) }, 0.7, 1.6},
		"RoPE": {[][]int{{2, 2, 8, 8}}, func(g *Gradients, x []*Value) *Value {
			cos, sin := g.Tables(rotary)
			return g.RoPE(x[0], cos, sin, rotary)
		}, 0.9, 1.1},
		"Scores": {[][]int{{1, 4, 8, 16}, {1, 2, 8, 16}}, func(g *Gradients, x []*Value) *Value {
			return g.Scores(x[0], x[1], 0, 8, &model.Scoring{By: 5.5, Divides: true})
		}, 0.9, 1.1},
		"Attention": {[][]int{{1, 4, 8, 16}, {1, 2, 8, 16}, {1, 2, 16, 8}}, func(g *Gradients, x []*Value) *Value {
			return g.Context(g.Softmax(g.Scores(x[0], x[1], 0, 8, &model.Scoring{By: 5.5, Divides: true})), x[2])
		}, 0.8, 1.5},
		"Combine": {[][]int{{4, 2}, {4, 16}, {4, 16}}, func(g *Gradients, x []*Value) *Value {
			return g.Combine(x[0], []model.Part[*Value]{part(1, x[1], 0, 3, 4, 7), part(2, x[2], 1, 2, 5, 6)}, config.ByChoice)
		}, 0.9, 1.1},
	} {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(7, 8))
			bases := [][]float32{}
			for _, shape := range test.shapes {
				bases = append(bases, numbers(r, size(shape)))
			}
			var result []float32
			backward := func(moved, sigma float64) (dx []*Value) {
				a := NewAnalysis(model.Options{DType: tensor.F32}, nil)
				g := NewGradients(a, &model.DeepseekForCausalLM{})
				g.Wanted = func(string) bool { return false }
				of := func(base []float32, shape []int) *Value {
					x := a.result(tensor.F32, shape...)
					x.roundLater = false
					for k, v := range base {
						x.Set(k, float64(v)*(1+moved*r.NormFloat64()), Sq(sigma*float64(v)/Unit))
					}
					return x
				}
				var x []*Value
				for i, base := range bases {
					x = append(x, of(base, test.shapes[i]))
				}
				y := test.f(g, x)
				if result == nil {
					result = numbers(r, len(y.Values))
				}
				dy := of(result, y.Shape)
				d := g.Adjoint(y)
				for i, v := range dy.Values {
					d.sums[i] = addends{y: float64(v), v: dy.Variance(i), n: 1}
				}
				steps := g.Steps
				for i := range steps {
					require.NoError(t, steps[len(steps)-1-i]())
				}
				for _, x := range x {
					dx = append(dx, g.Total(x))
				}
				return dx
			}
			base := backward(0, spread)
			const samples = 200
			observed := make([]float64, len(base))
			for range samples {
				for k, dx := range backward(spread, 0) {
					for i, v := range dx.Values {
						observed[k] += Sq(float64(v)-float64(base[k].Values[i])) / samples
					}
				}
			}
			for k, dx := range base {
				predicted := 0.0
				for i := range dx.Values {
					predicted += dx.Variance(i) * Sq(Unit)
				}
				ratio := predicted / observed[k]
				require.Greater(t, ratio, Sq(test.least), "operand %d", k)
				require.Less(t, ratio, Sq(test.most), "operand %d", k)
			}
		})
	}
}

// size is the number of elements of a shape.
func size(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// TestEqualTermsDrift: the rounding errors of equal terms that are added up one after the other are the same.
func TestEqualTermsDrift(t *testing.T) {
	g := &Gradients{Analysis: NewAnalysis(model.Options{DType: tensor.F32}, nil)}
	defer g.Close()
	const k = 400
	for name, first := range map[string]float32{"repeated": 0.1, "lost in a large one": 1e6} {
		x, total := make([]float32, k), float32(0)
		for i := range x {
			x[i] = 0.1
		}
		x[0] = first
		exact := 0.0
		for _, v := range x {
			total += v
			exact += float64(v)
		}
		one := matrix{1, k, make([]float32, k), nil}
		for i := range one.y {
			one.y[i] = 1
		}
		y, v := sumOf(matrix{1, k, x, nil}, one, g.sums(k))
		require.InEpsilon(t, exact, y, 1e-12)
		z := Sq(float64(total)-exact) / (v * Sq(Unit))
		require.Less(t, z, Sq(4), name)
		require.Greater(t, z, Sq(0.1), name)
	}
}
