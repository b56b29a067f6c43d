package bounds

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// number is a weight of one float32.
func number(v float32) *model.Weight {
	w := float32Rows(&model.Weight{Tensor: tensor.Tensor{Shape: []int{1, 1}}}, 1, []float32{v})
	return &w
}

// mixes calls f with streams of 2 to 5 and several numbers of iterations, with logits of which the scale makes
// matrices that are nearly uniform or, as training does, nearly permutations.
func mixes(t *testing.T, f func(t *testing.T, z *model.Activation, g *model.Affine, iters int)) {
	for _, n := range []int{2, 4, 5} {
		for _, iters := range []int{1, 2, 20} {
			for _, scale := range []float32{0.1, 1, 4} {
				t.Run(fmt.Sprintf("%d streams, %d iterations, scale %g", n, iters, scale), func(t *testing.T) {
					r := rand.New(rand.NewPCG(1, uint64(n)))
					z := &model.Activation{DType: tensor.F32, Shape: []int{1, 16, n * n}, Values: numbers(r, 16*n*n)}
					base := weight(r, n*n)
					f(t, z, &model.Affine{Scale: number(scale), Base: &base}, iters)
				})
			}
		}
	}
}

// TestSinkhornCarriesErrorsOn: logits are moved at random; the matrices move by as much as the covariance says.
func TestSinkhornCarriesErrorsOn(t *testing.T) {
	const spread = 1e-4
	mixes(t, func(t *testing.T, z *model.Activation, g *model.Affine, iters int) {
		r := rand.New(rand.NewPCG(7, 8))
		a := NewAnalysis(model.Options{DType: tensor.F32}, nil)
		defer a.Close()
		base := a.Sinkhorn(WithErrors(z, func(int) float64 { return spread }), g, iters, 1e-6)
		observed := make([]float64, len(base.Values))
		const samples = 100
		for range samples {
			moved := copied(z)
			for i := range moved.Values {
				moved.Values[i] += float32(spread * r.NormFloat64())
			}
			for i, v := range a.plain.Sinkhorn(moved, g, iters, 1e-6).Values {
				observed[i] += Sq(float64(v)-float64(base.Values[i])) / samples
			}
		}
		var all, predicted float64
		for i, o := range observed {
			all, predicted = all+o, predicted+base.Variance(i)*Unit*Unit
			require.Less(t, math.Sqrt(o), 1.5*Unit*math.Sqrt(base.Variance(i)), "each element")
		}
		ratio := math.Sqrt(predicted / all)
		require.True(t, ratio > 0.9 && ratio < 1.1, "predicted %g of what was observed", ratio)
	})
}

// TestSinkhornsOwnErrors: float32 iterations are off by about as much as is predicted of exact logits, and by less if
// they end soon: divisions by sums of 1 are exact.
func TestSinkhornsOwnErrors(t *testing.T) {
	mixes(t, func(t *testing.T, z *model.Activation, g *model.Affine, iters int) {
		a := NewAnalysis(model.Options{DType: tensor.F32}, nil)
		defer a.Close()
		y := a.Sinkhorn(Exact(z), g, iters, 1e-6)
		c, n := reference32{rand.New(rand.NewPCG(7, 8))}, y.Width()
		var predicted, observed, largest float64
		for row := range z.Rows() {
			for i, v := range c.sinkhorn(g.Of(z.Row(row)), n, iters) {
				i += row * n * n
				d := Sq(float64(v) - float64(y.Values[i]))
				observed, predicted = observed+d, predicted+y.Variance(i)*Unit*Unit
				largest = max(largest, math.Sqrt(d)/(Unit*math.Sqrt(y.Variance(i))))
			}
		}
		ratio := math.Sqrt(predicted / observed)
		t.Logf("predicted %.2f of what was observed, z %.2f", ratio, largest)
		require.True(t, ratio > 1 && ratio < 8, "predicted %g of what was observed", ratio)
		require.Less(t, largest, 3.0)
	})
}

// sinkhorn is Sinkhorn's iteration in float32.
func (c reference32) sinkhorn(logits []float64, n, iters int) (m []float32) {
	const eps = float32(1e-6)
	for r := range n {
		row := make([]float32, n)
		for i := range row {
			row[i] = float32(logits[r*n+i])
		}
		m = append(m, c.softmax(row)...)
	}
	for i := range m {
		m[i] += eps
	}
	divide := func(at func(g, i int) int) {
		for g := range n {
			total := c.sum(n, func(i int) float32 { return m[at(g, i)] }) + eps
			for i := range n {
				m[at(g, i)] /= total
			}
		}
	}
	columns := func(g, i int) int { return i*n + g }
	divide(columns)
	for range iters - 1 {
		divide(func(g, i int) int { return g*n + i })
		divide(columns)
	}
	return m
}

// referenceOf computes in dtype d as a reference does: in float32, each sum in a random order, with roundings to d.
type referenceOf struct {
	reference32
	d tensor.DType
}

// round is a rounding point.
func (c referenceOf) round(x float32) float32 { return float32(PrecisionOf(c.d).Round(float64(x))) }

// TestOwnErrorsInEachDType: of exact operands each operation of V4 predicts the errors of a right evaluation, with
// the roundings of F32 and of BF16. Trained gates differ by more than 1 from slot to slot, and logits of a router lie
// far below 0.
func TestOwnErrorsInEachDType(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	const tokens, hc, width, rate = 26, 4, 24, 13
	kept := func(shape ...int) (w model.Weight, values []float32) {
		w = weight(r, shape...)
		w.InFloat32 = true
		values, err := w.Float32s(nil)
		require.NoError(t, err)
		return w, values
	}
	sinks, sinks32 := kept(2)
	ape, ape32 := kept(rate, width)
	type numbers32 = [][]float32
	for name, test := range map[string]struct {
		shapes [][]int
		f      func(a *Analysis, x []*Value) *Value
		g      func(c referenceOf, x numbers32) []float32
	}{
		"UnitNorm": {[][]int{{tokens, width}}, func(a *Analysis, x []*Value) *Value { return a.UnitNorm(x[0], 1e-6) },
			func(c referenceOf, x numbers32) []float32 {
				return mapRows(x[0], width, func(row []float32) (y []float32) {
					factor := c.round(float32(1 / math.Sqrt(float64(c.dot(row, row)/width+1e-6))))
					for _, v := range row {
						y = append(y, c.round(v*factor))
					}
					return y
				})
			}},
		"SqrtSoftplus": {[][]int{{tokens, width}}, func(a *Analysis, x []*Value) *Value { return a.SqrtSoftplus(x[0]) },
			func(c referenceOf, x numbers32) (y []float32) {
				for _, v := range x[0] {
					softplus := c.round(float32(math.Log1p(float64(c.exp32(v)))))
					y = append(y, c.round(float32(math.Sqrt(float64(softplus)))))
				}
				return y
			}},
		"SinkSoftmax": {[][]int{{1, 2, tokens, width}}, func(a *Analysis, x []*Value) *Value {
			return a.settle(a.SinkSoftmax(x[0], &sinks))
		},
			func(c referenceOf, x numbers32) (y []float32) {
				for i := range 2 * tokens {
					row := append(slices.Clone(x[0][i*width:(i+1)*width]), sinks32[i/tokens])
					for _, p := range c.softmax(row)[:width] {
						y = append(y, c.round(p))
					}
				}
				return y
			}},
		"Pool": {[][]int{{1, tokens, width}, {1, tokens, width}}, func(a *Analysis, x []*Value) *Value {
			return a.Pool(x[0], x[1], &ape, &model.Pooling{Rate: rate, Width: width})
		},
			func(c referenceOf, x numbers32) (y []float32) {
				for i := range tokens / rate * width {
					first, kv, gate := i/width*rate*width+i%width, make([]float32, rate), make([]float32, rate)
					for s := range rate {
						gate[s] = x[1][first+s*width] + ape32[s*width+i%width]
						kv[s] = x[0][first+s*width]
					}
					p := c.softmax(gate)
					y = append(y, c.round(c.sum(rate, func(s int) float32 { return c.round(c.round(p[s]) * kv[s]) })))
				}
				return y
			}},
		"Collapse": {[][]int{{1, tokens, hc}, {1, tokens, hc, width}}, func(a *Analysis, x []*Value) *Value {
			return a.Collapse(x[0], x[1])
		},
			func(c referenceOf, x numbers32) (y []float32) {
				for i := range tokens * width {
					t, column := i/width, i%width
					y = append(y, c.round(c.sum(hc, func(j int) float32 { return x[0][t*hc+j] * x[1][(t*hc+j)*width+column] })))
				}
				return y
			}},
		"Expand": {[][]int{{1, tokens, hc, width}, {1, tokens, width}, {1, tokens, hc}, {1, tokens, hc, hc}},
			func(a *Analysis, x []*Value) *Value { return a.Expand(x[0], x[1], x[2], x[3]) },
			func(c referenceOf, x numbers32) (y []float32) {
				for i := range tokens * hc * width {
					t, k, column := i/width/hc, i/width%hc, i%width
					own := c.round(c.round(x[2][t*hc+k]) * x[1][t*width+column])
					mixed := c.sum(hc, func(j int) float32 { return c.round(x[3][(t*hc+j)*hc+k]) * x[0][(t*hc+j)*width+column] })
					y = append(y, c.round(own+c.round(mixed)))
				}
				return y
			}},
	} {
		for _, d := range []tensor.DType{tensor.F32, tensor.BF16} {
			for _, scale := range []float32{0.1, 1, 8} {
				t.Run(fmt.Sprintf("%s %s, scale %g", name, d, scale), func(t *testing.T) {
					c := referenceOf{reference32{rand.New(rand.NewPCG(7, 8))}, d}
					a := NewAnalysis(model.Options{DType: d}, nil)
					defer a.Close()
					var operands []*Value
					var x numbers32
					for _, shape := range test.shapes {
						v := a.plain.Make(d, shape...)
						for i, n := range numbers(c.r, len(v.Values)) {
							v.Values[i] = c.round(scale * n)
						}
						x, operands = append(x, slices.Clone(v.Values)), append(operands, Exact(v))
					}
					y := test.f(a, operands)
					var predicted, observed, largest, same, elements float64
					for range 5 {
						for i, g := range test.g(c, x) {
							v := float64(y.Values[i])
							observed, predicted = observed+Sq(float64(g)-v), predicted+y.Variance(i)*Unit*Unit
							largest = max(largest, PrecisionOf(d).Z(float64(g), v, Unit*math.Sqrt(y.Variance(i))))
							if elements++; g == y.Rounded(i) {
								same++
							}
						}
					}
					ratio := math.Sqrt(predicted / observed)
					t.Logf("predicted %.2f of what was observed, z %.2f, %.4f equal", ratio, largest, same/elements)
					require.Less(t, largest, 6.0)
					if d == tensor.F32 {
						require.True(t, ratio > 1 && ratio < 7, "predicted %g of what was observed", ratio)
					} else {
						require.Greater(t, same/elements, 0.97)
					}
				})
			}
		}
	}
}
