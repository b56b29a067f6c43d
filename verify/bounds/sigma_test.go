package bounds

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
)

// reference32 computes in float32, as a reference does, each sum in a random order.
type reference32 struct{ r *rand.Rand }

// sum adds terms in a random order.
func (c reference32) sum(n int, term func(i int) float32) (s float32) {
	for _, i := range c.r.Perm(n) {
		s += term(i)
	}
	return s
}

// dot is the product of two rows.
func (c reference32) dot(a, b []float32) float32 {
	return c.sum(len(a), func(i int) float32 { return a[i] * b[i] })
}

// exp32 is the exponential of a float32 library: within a unit in the last place.
func (c reference32) exp32(x float32) float32 {
	y := float32(math.Exp(float64(x)))
	if c.r.IntN(8) == 0 {
		return math.Nextafter32(y, float32(math.Inf(2*c.r.IntN(2)-1)))
	}
	return y
}

func (c reference32) silu(x float32) float32 { return x / (1 + c.exp32(-x)) }

// softmax returns a row's probabilities.
func (c reference32) softmax(row []float32) []float32 {
	top := row[0]
	for _, v := range row {
		top = max(top, v)
	}
	p := make([]float32, len(row))
	for i, v := range row {
		p[i] = c.exp32(v - top)
	}
	var lanes [16]float32 // as vectors add up a row
	for i, v := range p {
		lanes[i%16] += v
	}
	total := c.sum(16, func(i int) float32 { return lanes[i] })
	for i := range p {
		p[i] /= total
	}
	return p
}

// mapRows gives f the rows of x one by one, and returns what it makes of them.
func mapRows(x []float32, n int, f func(row []float32) []float32) (y []float32) {
	for row := range slices.Chunk(x, n) {
		y = append(y, f(row)...)
	}
	return y
}

// TestOwnErrors: of exact operands each operation predicts the errors of a float32 evaluation:
// neither fewer than there are, nor so many that wrong numbers would be among them. Single
// correctly rounded operations are reproduced: their errors are predicted to be 0, and are.
func TestOwnErrors(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	const width, rows = 64, 32
	linear, scale, bias := &model.Linear{Weight: weight(r, 24, width)}, weight(r, width), weight(r, width)
	values := func(w *model.Weight) []float32 {
		v, err := w.Float32s(nil)
		require.NoError(t, err)
		return v
	}
	part := func(e int, x *Value, slots ...int) model.Part[*Value] {
		return model.Part[*Value]{Expert: e, Slots: slots, Out: x}
	}
	type values32 = [][]float32
	rotary := &model.Rotary{Factor: 1, DType: tensor.F32, Half: 8}
	for position := range 12 {
		for i := range 8 {
			freq := float32(math.Pow(10000, -float64(i)/8))
			rotary.Angles = append(rotary.Angles, float32(position)*freq)
			if i == 3 { // of the reference this may be the neighbour
				freq = math.Nextafter32(freq, 1)
			}
			rotary.Others = append(rotary.Others, float32(position)*freq)
		}
	}
	for name, test := range map[string]struct {
		shapes      [][]int
		f           func(a *Analysis, x []*Value) *Value
		g           func(c reference32, x values32) []float32
		least, most float64 // predicted over observed, RMS; 0: both are 0
	}{
		"Linear": {[][]int{{rows, width}}, func(a *Analysis, x []*Value) *Value { return a.Linear(x[0], linear) },
			func(c reference32, x values32) []float32 {
				return mapRows(x[0], width, func(row []float32) (y []float32) {
					for w := range slices.Chunk(values(&linear.Weight), width) {
						y = append(y, c.dot(row, w))
					}
					return y
				})
			}, 1, 3},
		"RMSNorm": {[][]int{{rows, width}}, func(a *Analysis, x []*Value) *Value { return a.RMSNorm(x[0], &scale, 1e-6) },
			func(c reference32, x values32) []float32 {
				return mapRows(x[0], width, func(row []float32) (y []float32) {
					inverse := float32(1 / math.Sqrt(float64(c.dot(row, row)/width+1e-6)))
					for i, v := range row {
						y = append(y, v*inverse*values(&scale)[i])
					}
					return y
				})
			}, 1, 3},
		"LayerNorm": {[][]int{{rows, width}}, func(a *Analysis, x []*Value) *Value {
			return a.LayerNorm(x[0], &model.LayerNorm{Weight: scale, Bias: bias}, 1e-6)
		},
			func(c reference32, x values32) []float32 {
				return mapRows(x[0], width, func(row []float32) (y []float32) {
					mean := c.sum(width, func(i int) float32 { return row[i] }) / width
					square := c.sum(width, func(i int) float32 { return (row[i] - mean) * (row[i] - mean) })
					inverse := float32(1 / math.Sqrt(float64(square/width+1e-6)))
					for i, v := range row {
						y = append(y, (v-mean)*inverse*values(&scale)[i]+values(&bias)[i])
					}
					return y
				})
			}, 1, 3},
		"IndexScores": {[][]int{{1, rows, 12}, {1, 12, rows - 20, 20}}, func(a *Analysis, x []*Value) *Value {
			return a.IndexScores(x[0], x[1], 20, &model.Mask{In: &model.Input{}})
		},
			func(c reference32, x values32) (y []float32) {
				for i := range (rows - 20) * 20 {
					query, key := i/20, i%20
					y = append(y, c.sum(12, func(h int) float32 { return x[0][(20+query)*12+h] * x[1][(h*(rows-20)+query)*20+key] }))
				}
				return y
			}, 1, 3},
		"SwiGLU": {[][]int{{rows, width}, {rows, width}}, func(a *Analysis, x []*Value) *Value { return a.SwiGLU(x[0], x[1]) },
			func(c reference32, x values32) (y []float32) {
				for i, g := range x[0] {
					y = append(y, c.silu(g)*x[1][i])
				}
				return y
			}, 1, 3},
		"Softmax": {[][]int{{rows, width}}, func(a *Analysis, x []*Value) *Value { return a.settle(a.Softmax(x[0])) },
			func(c reference32, x values32) []float32 { return mapRows(x[0], width, c.softmax) }, 1, 3},
		"Sigmoid": {[][]int{{rows, width}}, func(a *Analysis, x []*Value) *Value { return a.Sigmoid(x[0]) },
			func(c reference32, x values32) (y []float32) {
				for _, v := range x[0] {
					y = append(y, 1/(1+c.exp32(-v)))
				}
				return y
			}, 1, 3},
		"Normalise": {[][]int{{rows, 6}}, func(a *Analysis, x []*Value) *Value { return a.Normalise(x[0], model.Divisor{Eps: 1e-20}) },
			func(c reference32, x values32) []float32 {
				return mapRows(x[0], 6, func(row []float32) (y []float32) {
					total := c.sum(6, func(i int) float32 { return row[i] }) + 1e-20
					for _, v := range row {
						y = append(y, v/total)
					}
					return y
				})
			}, 1, 3},
		"Scores": {[][]int{{1, 1, 16, width}, {1, 1, 16, width}}, func(a *Analysis, x []*Value) *Value {
			return a.Scores(x[0], x[1], 0, 16, &model.Scoring{By: 8, Divides: true})
		}, func(c reference32, x values32) []float32 {
			return mapRows(x[0], width, func(q []float32) (y []float32) {
				for k := range slices.Chunk(x[1], width) {
					y = append(y, c.dot(q, k)/8)
				}
				return y
			})
		}, 1, 3},
		"Context": {[][]int{{1, 1, 16, 32}, {1, 1, 24, 32}}, func(a *Analysis, x []*Value) *Value { return a.Context(a.Softmax(x[0]), x[1]) },
			func(c reference32, x values32) []float32 {
				return mapRows(x[0], 32, func(row []float32) (y []float32) {
					p := c.softmax(row)
					for v := range slices.Chunk(x[1], 32) {
						y = append(y, c.dot(p, v))
					}
					return y
				})
			}, 1, 3},
		"Worth": {[][]int{{rows, 8}}, func(a *Analysis, x []*Value) *Value { return a.GroupWorth(x[0], 1, 2) },
			func(c reference32, x values32) []float32 {
				return mapRows(x[0], 8, func(row []float32) []float32 {
					best := model.TopK(row, 2)
					return []float32{row[best[1]] + row[best[0]]}
				})
			}, 0, 0},
		"Combine by choice": {[][]int{{rows, 4}, {rows, 16}, {rows, 16}, {rows, 16}, {rows, 16}}, func(a *Analysis, x []*Value) *Value {
			var parts []model.Part[*Value]
			for e := range 4 {
				var slots []int
				for i := range rows {
					slots = append(slots, 4*i+e)
				}
				parts = append(parts, part(e, x[1+e], slots...))
			}
			return a.Combine(x[0], parts, config.ByChoice)
		}, func(c reference32, x values32) (y []float32) {
			for i := range x[1] {
				w := x[0][4*(i/16):]
				y = append(y, c.sum(4, func(k int) float32 { return w[k] * x[1+k][i] }))
			}
			return y
		}, 1, 3},
		"RoPE": {[][]int{{1, 4, 12, 16}}, func(a *Analysis, x []*Value) *Value {
			cos, sin := a.Tables(rotary)
			return a.RoPE(x[0], cos, sin, rotary)
		}, func(c reference32, x values32) (y []float32) {
			near := func(v float64) float32 { // a table is off by a unit in one of twenty numbers
				w := float32(v)
				if c.r.IntN(20) == 0 {
					w = math.Nextafter32(w, float32(math.Inf(2*c.r.IntN(2)-1)))
				}
				return w
			}
			for t := range 4 * 12 {
				row := x[0][16*t:]
				out := make([]float32, 16)
				for i := range 8 {
					angle := rotary.Angles[t%12*8+i]
					if c.r.IntN(2) == 0 {
						angle = rotary.Others[t%12*8+i]
					}
					sine, cosine := math.Sincos(float64(angle))
					cos, sin := near(cosine), near(sine)
					out[i], out[i+8] = row[i]*cos-row[i+8]*sin, row[i+8]*cos+row[i]*sin
				}
				y = append(y, out...)
			}
			return y
		}, 1, 5}, // each table counts as off by a unit in all numbers
		"Add": {[][]int{{rows, width}, {rows, width}}, func(a *Analysis, x []*Value) *Value { return a.Add(x[0], x[1]) },
			func(c reference32, x values32) (y []float32) {
				for i, v := range x[0] {
					y = append(y, v+x[1][i])
				}
				return y
			}, 0, 0},
		"AddBias": {[][]int{{rows, width}}, func(a *Analysis, x []*Value) *Value { return a.AddBias(x[0], &bias) },
			func(c reference32, x values32) (y []float32) {
				for i, v := range x[0] {
					y = append(y, v+values(&bias)[i%width])
				}
				return y
			}, 0, 0},
		"Scale": {[][]int{{rows, width}}, func(a *Analysis, x []*Value) *Value { return a.Scale(x[0], 2.3) },
			func(c reference32, x values32) (y []float32) {
				for _, v := range x[0] {
					y = append(y, v*2.3)
				}
				return y
			}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := reference32{rand.New(rand.NewPCG(7, 8))}
			a := NewAnalysis(model.Options{DType: tensor.F32}, nil)
			defer a.Close()
			var operands []*Value
			var x values32
			for _, shape := range test.shapes {
				v := a.plain.Make(tensor.F32, shape...)
				copy(v.Values, numbers(c.r, len(v.Values)))
				if name == "Normalise" { // weights are positive
					for i := range v.Values {
						v.Values[i] = float32(math.Abs(float64(v.Values[i])))
					}
				}
				x = append(x, append([]float32(nil), v.Values...))
				operands = append(operands, Exact(v))
			}
			y := test.f(a, operands)
			var predicted, observed float64
			const samples = 20
			for range samples {
				for i, v := range test.g(c, x) {
					observed += Sq(float64(v)-float64(y.Values[i])) / samples
				}
			}
			for i := range y.Values {
				predicted += y.Variance(i) * Unit * Unit
			}
			if test.most == 0 {
				require.Zero(t, observed)
				require.LessOrEqual(t, predicted, 2*float64(len(y.Values))*Sq(Unit*4), "the operation is exact, or nearly")
				return
			}
			ratio := math.Sqrt(predicted / observed)
			t.Logf("predicted %.2f of what was observed", ratio)
			require.True(t, ratio >= test.least && ratio <= test.most, "predicted %g of what was observed", ratio)
		})
	}
}
