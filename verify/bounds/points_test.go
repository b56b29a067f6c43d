package bounds

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/model"
	"dsmoe/model/tensor"
)

// to16 rounds to BF16.
func to16(v float32) float32 { return tensor.Rounded(v, tensor.BF16) }

// numbers16 are n normally distributed numbers of BF16.
func numbers16(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = to16(float32(r.NormFloat64()))
	}
	return x
}

// value16 is an exact value of BF16.
func value16(x []float32, shape ...int) *Value {
	return Exact(&model.Activation{Shape: shape, Values: append([]float32(nil), x...), DType: tensor.BF16})
}

// weight16 is a weight of BF16 with a name.
func weight16(name string, x []float32, shape ...int) model.Weight {
	w := model.Weight{Name: name, Tensor: tensor.Tensor{DType: tensor.BF16, Shape: shape}}
	for _, v := range x {
		bits := math.Float32bits(v)
		w.Data = append(w.Data, byte(bits>>16), byte(bits>>24))
	}
	return w
}

// TestPoints_every: an engine rounds in one way. No element of its results is further than 8 σ from the analysis of that
// way, and some are further from the analysis of each other way. Without -every the next way alone is the other.
func TestPoints_every(t *testing.T) {
	t.Parallel()
	const rows, width, experts = 24, 96, 4
	r := rand.New(rand.NewPCG(1, 2))
	a, b, w := numbers16(r, rows*width), numbers16(r, rows*width), numbers16(r, width)
	norm := weight16("norm", w, width)
	down := weight16("down", numbers16(r, width*width), width, width)
	up := weight16("up", numbers16(r, width*width), width, width)
	topk := make([]float32, rows*experts)
	for i := range topk {
		topk[i] = float32(r.Float64())
	}
	const factor = 2.5
	rms := func(row []float32) float32 {
		sum := 0.0
		for _, v := range row {
			sum += float64(v) * float64(v)
		}
		return float32(1 / math.Sqrt(sum/width+1e-6))
	}
	silu := func(g float32) float32 { return float32(float64(g) / (1 + math.Exp(-float64(g)))) }
	product := func(x []float32, m *model.Weight) []float32 {
		values, _ := m.Float32s(nil)
		y := make([]float32, rows*width)
		for t := range rows {
			for o := range width {
				sum := 0.0
				for k := range width {
					sum += float64(x[t*width+k]) * float64(values[o*width+k])
				}
				y[t*width+o] = float32(sum)
			}
		}
		return y
	}
	type result struct {
		operations []string
		ways       [][]string
		engine     func(ways []string) []float32
		analysis   func(a *Analysis) *Value
	}
	all := []string{}
	for name, test := range map[string]result{
		"norm": {[]string{Norm}, [][]string{{twice}, {Once}, {rstd16}}, func(ways []string) (y []float32) {
			return mapRows(a, width, func(row []float32) (y []float32) {
				inverse := rms(row)
				if ways[0] == rstd16 {
					inverse = to16(inverse)
				}
				for i, v := range row {
					n := v * inverse
					if ways[0] != Once {
						n = to16(n)
					}
					y = append(y, to16(n*w[i]))
				}
				return y
			})
		}, func(analysis *Analysis) *Value { return analysis.RMSNorm(value16(a, rows, width), &norm, 1e-6) }},
		"add and norm": {[]string{InputAddNorm}, [][]string{{"rounded, twice"}, {"rounded, once"}, {"unrounded, once"}, {"unrounded, twice"}},
			func(ways []string) []float32 {
				sums := make([]float32, len(a))
				for i := range a {
					if sums[i] = a[i] + b[i]; ways[0][0] == 'r' {
						sums[i] = to16(sums[i])
					}
				}
				return mapRows(sums, width, func(row []float32) (y []float32) {
					inverse := rms(row)
					for i, v := range row {
						n := v * inverse
						if ways[0][len(ways[0])-5:] == twice {
							n = to16(n)
						}
						y = append(y, to16(n*w[i]))
					}
					return y
				})
			}, func(analysis *Analysis) *Value {
				of := norm
				of.Name = "add-norm"
				sum := analysis.Add(value16(a, rows, width), value16(b, rows, width))
				golden := make([]float32, len(a))
				for i := range a {
					golden[i] = to16(a[i] + b[i])
				}
				sum.Replace(golden)
				return analysis.RMSNorm(sum, &of, 1e-6)
			}},
		"attention": {[]string{Scores, Probs}, [][]string{{"R,R", "R"}, {"R", "R"}, {InF32, "R"}, {InF32, InF32}, {InF32, ofExponentials}},
			func(ways []string) (y []float32) {
				for q := range rows {
					p, most, total := make([]float64, rows), math.Inf(-1), 0.0
					for k := range rows {
						for i := range width {
							p[k] += float64(a[q*width+i]) * float64(b[k*width+i])
						}
						if ways[0] == "R,R" {
							p[k] = float64(to16(float32(p[k])))
						}
						if p[k] = float64(float32(p[k] * float64(float32(0.13)))); ways[0] != InF32 {
							p[k] = float64(to16(float32(p[k])))
						}
						most = max(most, p[k])
					}
					for k := range p {
						p[k] = math.Exp(p[k] - most)
						total += p[k]
					}
					for k := range p {
						if ways[1] == ofExponentials {
							p[k] = float64(to16(float32(p[k])))
						}
						if p[k] /= total; ways[1] == "R" {
							p[k] = float64(to16(float32(p[k])))
						}
					}
					for i := range width {
						sum := 0.0
						for k := range rows {
							sum += p[k] * float64(a[k*width+i])
						}
						y = append(y, to16(float32(sum)))
					}
				}
				return y
			}, func(analysis *Analysis) *Value {
				turned := make([]float32, len(a))
				for i, v := range a {
					turned[i%width*rows+i/width] = v
				}
				scores := analysis.Scores(value16(a, 1, 1, rows, width), value16(b, 1, 1, rows, width), 0, rows, &model.Scoring{By: 0.13})
				return analysis.Context(analysis.Softmax(scores), value16(turned, 1, 1, width, rows))
			}},
		"swiglu": {[]string{SwiGLU}, [][]string{{twice}, {Once}}, func(ways []string) []float32 {
			y := make([]float32, len(a))
			for i := range a {
				s := silu(a[i])
				if ways[0] == twice {
					s = to16(s)
				}
				y[i] = to16(s * b[i])
			}
			return y
		}, func(analysis *Analysis) *Value {
			analysis.last = SwiGLU
			return analysis.SwiGLU(value16(a, rows, width), value16(b, rows, width))
		}},
		"experts": {[]string{ExpertsGLU, ExpertsWeight, ExpertsW, ExpertsSum, ExpertsFactor}, [][]string{
			{twice, ofRounded, InF32, byExpert, inWeight}, {twice, ofRounded, InF32, InF32, inWeight},
			{twice, roundedOfSum, InF32, InF32, inWeight}, {Once, roundedOfSum, InF32, InF32, inWeight},
			{Once, ofRounded, InF32, InF32, inWeight}, {unrounded, ofSum, InF32, InF32, inWeight},
			{Once, beforeOnce, InF32, InF32, inWeight}, {twice, beforeRounded, InF32, InF32, inWeight},
			{twice, beforeRounded, InF32, byExpert, inWeight}, {twice, ofRounded, InT, InF32, inWeight},
			{twice, roundedOf, InF32, InF32, inWeight}, {twice, ofSum, InF32, InF32, inWeight},
			{twice, ofRounded, InF32, InF32, afterRounded}, {Once, beforeOnce, InF32, InF32, afterRounded},
			{twice, roundedOfSum, InF32, bySlot, inWeight},
		}, func(ways []string) []float32 {
			glu, with, of, sum, scale := ways[0], ways[1], ways[2], ways[3], ways[4]
			y := make([]float32, rows*width)
			for e := range experts {
				h := make([]float32, len(a))
				gate, ups := product(b, &down), product(b, &up)
				for i := range h {
					weight := topk[i/width*experts+e]
					if scale != inWeight {
						weight /= factor
					}
					g, u := gate[i]/float32(int(1)<<e), ups[i]
					if glu != unrounded {
						g, u = to16(g), to16(u)
					}
					s := silu(g)
					if glu == twice {
						s = to16(s)
					}
					s *= u
					if with == beforeRounded {
						s = to16(s)
					}
					if with == beforeRounded || with == beforeOnce {
						s *= weight
					}
					h[i] = to16(s)
				}
				for i, out := range product(h, &down) {
					weight := topk[i/width*experts+e]
					if scale != inWeight {
						weight /= factor
					}
					if of == InT {
						weight = to16(weight)
					}
					if with != ofSum && with != roundedOfSum {
						out = to16(out)
					}
					if with != beforeRounded && with != beforeOnce {
						out *= weight
					}
					if with == roundedOf || with == roundedOfSum || sum == byExpert || sum == bySlot {
						out = to16(out)
					}
					if y[i] += out; sum == byExpert || sum == bySlot {
						y[i] = to16(y[i])
					}
				}
			}
			for i := range y {
				if scale == afterRounded {
					y[i] = to16(y[i])
				}
				if scale != inWeight {
					y[i] *= factor
				}
				y[i] = to16(y[i])
			}
			return y
		}, func(analysis *Analysis) *Value {
			var parts []model.Part[*Value]
			for e := range experts {
				slots := make([]int, rows)
				for t := range slots {
					slots[t] = t*experts + e
				}
				gates, _ := down.Float32s(nil)
				for i := range gates {
					gates[i] /= float32(int(1) << e)
				}
				gateWeight := model.Weight{Name: "gate", Tensor: tensor.Tensor{DType: tensor.F32, Shape: down.Shape}}
				for _, v := range gates {
					bits := math.Float32bits(v)
					gateWeight.Data = append(gateWeight.Data, byte(bits), byte(bits>>8), byte(bits>>16), byte(bits>>24))
				}
				x := value16(b, rows, width)
				analysis.points.Weights = func(*model.Weight) []float32 {
					w := make([]float32, rows)
					for t := range w {
						w[t] = topk[t*experts+e]
					}
					return w
				}
				of := up
				of.Name = "expert.up"
				g := analysis.Linear(x, &model.Linear{Weight: gateWeight})
				h := analysis.SwiGLU(g, analysis.Linear(x, &model.Linear{Weight: of}))
				parts = append(parts, model.Part[*Value]{Expert: e, Slots: slots, Out: analysis.Linear(h, &model.Linear{Weight: down})})
			}
			weight := Exact(&model.Activation{Shape: []int{rows, experts}, Values: append([]float32(nil), topk...), DType: tensor.F32})
			return analysis.Combine(weight, parts, config.ByExpert)
		}},
	} {
		for i, right := range test.ways {
			golden := test.engine(right)
			for j, tried := range test.ways {
				if j != i && j != (i+1)%len(test.ways) && !configtest.Every(t) {
					continue
				}
				analysis := NewAnalysis(model.Options{DType: tensor.BF16}, nil)
				points := Points{Ways: map[string]string{}, Factor: factor, Of: func(w *model.Weight) (string, int) {
					return map[string]string{"norm": Norm, "add-norm": InputAddNorm, "expert.up": ExpertsGLU}[w.Name], 0
				}}
				for k, operation := range test.operations {
					points.Ways[operation] = tried[k]
				}
				analysis.SetPoints(points)
				x := test.analysis(analysis)
				d := Measure(x, golden, SelectRows(golden, width, nil), 1)
				if i == j {
					require.LessOrEqual(t, d.Largest, float64(Lambda), "%s: %v, %d beyond", name, right, d.Beyond)
				} else {
					all = append(all, fmt.Sprintf("%s: %v as %v: %d", name, right, tried, d.Beyond))
					require.Positive(t, d.Beyond, "%s: %v as %v", name, right, tried)
				}
				analysis.Close()
			}
		}
	}
	t.Log(all)
}

// TestPointsOfNeurons: neurons that have their expert's weight already are not weighed again, and a factor on the sum is
// theirs, too; rows that did not choose the expert have no weight.
func TestPointsOfNeurons(t *testing.T) {
	t.Parallel()
	const rows, width = 3, 32
	r := rand.New(rand.NewPCG(3, 4))
	up := weight16("up", numbers16(r, width*width), width, width)
	down := weight16("", numbers16(r, width*width), width, width)
	chosen := []float32{0.5, 0.25, 1}
	for with, want := range map[string][]float32{beforeOnce: {1, 1, 1}, ofRounded: chosen} {
		for _, scale := range []string{inWeight, "R(sum·s)"} {
			a := NewAnalysis(model.Options{DType: tensor.BF16}, nil)
			a.SetPoints(Points{Ways: map[string]string{ExpertsWeight: with, ExpertsFactor: scale, ExpertsSum: InF32}, Factor: 2,
				Of:      func(w *model.Weight) (string, int) { return map[string]string{"up": ExpertsGLU}[w.Name], 0 },
				Weights: func(*model.Weight) []float32 { return chosen }})
			mlp := func(n int) *Value {
				x := value16(numbers16(r, n*width), n, width)
				gate := a.Linear(x, &model.Linear{Weight: down})
				return a.Linear(a.SwiGLU(gate, a.Linear(x, &model.Linear{Weight: up})), &model.Linear{Weight: down})
			}
			weight := Exact(&model.Activation{Shape: []int{rows, 1}, Values: chosen, DType: tensor.F32})
			y := a.Combine(weight, []model.Part[*Value]{{Slots: []int{0, 1, 2}, Out: mlp(rows)}}, config.ByExpert)
			require.Len(t, y.Products, 1)
			for i, w := range want {
				if with == beforeOnce && scale != inWeight { // neurons have half of the weight
					w *= 2
				}
				require.Equal(t, w, y.Products[0].weights[i], "%s, %s", with, scale)
			}
			require.NotPanics(t, func() { mlp(rows + 1) })
			a.Close()
		}
	}
}
