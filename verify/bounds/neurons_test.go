package bounds

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
)

// orthogonal returns n orthonormal rows of k numbers, n ≤ k.
func orthogonal(r *rand.Rand, n, k int) [][]float64 {
	rows := make([][]float64, n)
	for i := range rows {
		rows[i] = make([]float64, k)
		for c := range rows[i] {
			rows[i][c] = r.NormFloat64()
		}
		for _, other := range rows[:i] {
			along := dot(rows[i], other)
			for c := range rows[i] {
				rows[i][c] -= along * other[c]
			}
		}
		length := math.Sqrt(dot(rows[i], rows[i]))
		for c := range rows[i] {
			rows[i][c] /= length
		}
	}
	return rows
}

func dot(a, b []float64) (sum float64) {
	for i := range a {
		sum += float64(a[i] * b[i])
	}
	return sum
}

// coloured returns a float32 weight [out, in] of RMS 1/√in whose k-th singular value is in
// proportion to k^-decay; outputs lie along directions.
func coloured(r *rand.Rand, name string, directions [][]float64, in int, decay float64) model.Weight {
	n := min(len(directions), in)
	out, inputs := len(directions[0]), orthogonal(r, n, in)
	values, sum := make([]float64, out*in), 0.0
	for k := range n {
		s := math.Pow(float64(k+1), -decay)
		sum += Sq(s)
		for o := range out {
			for i := range in {
				values[o*in+i] += s * directions[k][o] * inputs[k][i]
			}
		}
	}
	w := model.Weight{Name: name, Tensor: tensor.Tensor{DType: tensor.F32, Shape: []int{out, in}}}
	for _, v := range values {
		w.Data = binary.LittleEndian.AppendUint32(w.Data, math.Float32bits(float32(v*math.Sqrt(float64(out)/sum))))
	}
	return w
}

// inBF16 returns a float32 weight rounded to BF16.
func inBF16(w model.Weight) model.Weight {
	values, _ := w.Float32s(nil)
	w.DType, w.Data = tensor.BF16, nil
	for _, v := range values {
		w.Data = binary.LittleEndian.AppendUint16(w.Data, uint16(math.Float32bits(tensor.Rounded(v, tensor.BF16))>>16))
	}
	return w
}

// moe is a layer of routed experts, with the tokens that reach it.
type moe struct {
	experts [][3]model.Weight // gate_proj, up_proj, down_proj
	x       *model.Activation
	weights *model.Activation // topk_weight
	slots   [][]int           // of each expert, its places in topk_idx
}

const (
	moeHidden, moeNeurons, moeExperts = 192, 96, 4
	moeTokens, moeChosen              = 24, 3
)

// moes are the layers that newMoE made, by their decay.
var moes sync.Map

// newMoE returns experts whose weights have decaying singular values, and which write into the
// same directions. A test may put other experts into it.
func newMoE(decay float64) *moe {
	made, found := moes.Load(decay)
	if !found {
		made, _ = moes.LoadOrStore(decay, makeMoE(decay))
	}
	m := *made.(*moe)
	m.experts = slices.Clone(m.experts)
	return &m
}

func makeMoE(decay float64) *moe {
	r := rand.New(rand.NewPCG(11, uint64(100*decay)))
	x := &model.Activation{DType: tensor.F32, Shape: []int{moeTokens, moeHidden}}
	x.Values = numbers(r, moeTokens*moeHidden)
	m := &moe{x: x}
	directions, neurons := orthogonal(r, moeHidden, moeHidden), orthogonal(r, moeNeurons, moeNeurons)
	for e := range moeExperts {
		name := fmt.Sprintf("experts.%d.", e)
		m.experts = append(m.experts, [3]model.Weight{
			coloured(r, name+"gate_proj", neurons, moeHidden, decay),
			coloured(r, name+"up_proj", neurons, moeHidden, decay),
			coloured(r, name+"down_proj", directions, moeNeurons, decay)})
	}
	m.slots = make([][]int, moeExperts)
	m.weights = &model.Activation{DType: tensor.F32, Shape: []int{moeTokens, moeChosen}}
	for t := range moeTokens {
		for i, e := range r.Perm(moeExperts)[:moeChosen] {
			m.slots[e] = append(m.slots[e], t*moeChosen+i)
			m.weights.Values = append(m.weights.Values, 0.1+r.Float32())
		}
	}
	return m
}

// compute computes the layer with an arithmetic; of makes its values of activations.
func compute[V any](m *moe, a model.Arithmetic[V], of func(*model.Activation) V) V {
	var parts []model.Part[V]
	for e, w := range m.experts {
		rows := &model.Activation{DType: tensor.F32, Shape: []int{len(m.slots[e]), moeHidden}}
		for _, slot := range m.slots[e] {
			rows.Values = append(rows.Values, m.x.Row(slot/moeChosen)...)
		}
		x := of(rows)
		gate, up := a.Linear(x, &model.Linear{Weight: w[0]}), a.Linear(x, &model.Linear{Weight: w[1]})
		out := a.Linear(a.SwiGLU(gate, up), &model.Linear{Weight: w[2]})
		parts = append(parts, model.Part[V]{Expert: e, Slots: m.slots[e], Out: out})
	}
	return a.Combine(of(m.weights), parts, config.ByExpert)
}

// reference computes the layer in float32.
func (m *moe) reference() []float32 {
	p := model.NewPlain(model.Options{DType: tensor.F32, Accumulate: model.Float32})
	return compute(m, p, func(x *model.Activation) *model.Activation { return x }).Values
}

// analysed computes the layer with variances, of its weights rounded to BF16 or as they are.
func (m *moe) analysed(rounded bool) (*Analysis, *Value) {
	names, copied := Roundings{}, *m
	if rounded {
		copied.experts = slices.Clone(m.experts)
		for e := range copied.experts {
			for i, w := range copied.experts[e] {
				copied.experts[e][i] = inBF16(w)
				names[w.Name] = AllRounded("cast BF16")
			}
		}
	}
	a := NewAnalysis(model.Options{DType: tensor.F32}, names)
	return a, compute(&copied, a, Exact)
}

// filterOf returns a filter of x's neurons that has examined nothing.
func filterOf(a *Analysis, x *Value, want []float32) *filter {
	f := a.filter(x, want)
	f.selected, f.factor, f.named = allRows(want, x), 1, &Neuron{Expert: -1}
	return f
}

// screenedZ returns the largest z of the screen.
func (f *filter) screenedZ() float64 {
	for i := range f.x.Products {
		f.screen(&f.x.Products[i])
	}
	z := f.z
	for _, s := range f.sorted() {
		z = max(z, s.Z)
	}
	return z
}

// explicitZ is the z of a neuron by the formula, with loops; equal neurons of an expert are one.
func (f *filter) explicitZ(t term, index int) float64 {
	token, width := t.tokens[t.row], f.x.Width()
	columns := func(t term) func(o, k int) float64 {
		d := f.errors.Values(&t.down.Weight)
		return func(o, k int) float64 { return t.weight() * float64(d[o*t.down.Weight.Shape[1]+k]) }
	}
	s2, own, di := f.variances(token), make([]float64, width), columns(t)
	v := func(t term, k int) float64 { return Sq(Unit * float64(t.deviations()[k])) }
	variance, sum := 0.0, 0.0
	for _, other := range f.terms[token] {
		d := columns(other)
		for k := range other.deviations() {
			equal := []int{k}
			if c := other.equal; c != nil {
				if c.first[c.class[k]] < k {
					continue
				}
				equal = slices.DeleteFunc(ascending(len(c.class)), func(i int) bool { return c.class[i] != c.class[k] })
			}
			m := 0.0
			for o := range width {
				sum := 0.0
				for _, i := range equal {
					sum += d(o, i)
				}
				m += di(o, index) * sum / s2[o]
				own[o] += Sq(sum) * v(other, k)
			}
			variance += Sq(m) * v(other, k)
		}
	}
	for o := range width {
		i := token*width + o
		sum += di(o, index) * (float64(f.want[i]) - float64(f.x.Values[i])) / s2[o]
		golden := s2[o] - f.x.Variance(i)*Unit*Unit
		variance += Sq(di(o, index)/s2[o]) * (max(0, s2[o]-golden-own[o]) + golden)
	}
	return math.Abs(sum) / math.Sqrt(variance)
}

// TestRightNeuronsOfDecayingWeights: a right float32 evaluation of weights whose singular values
// decay, as those of trained models do, and of the same before they were rounded. The screen,
// which takes outputs for independent, is far beyond the limit; no neuron is.
func TestRightNeuronsOfDecayingWeights(t *testing.T) {
	for _, test := range []struct {
		decay   float64
		rounded bool
		screen  float64 // at least
	}{{0, false, 0}, {0, true, 0}, {0.8, false, 0}, {0.5, true, 7}, {0.8, true, 12}} {
		t.Run(fmt.Sprintf("%g %v", test.decay, test.rounded), func(t *testing.T) {
			m := newMoE(test.decay)
			a, x := m.analysed(test.rounded)
			defer a.Close()
			want := m.reference()
			require.Less(t, Measure(x, want, allRows(want, x), 1).Largest, 8.0)
			screen := filterOf(a, x, want).screenedZ()
			_, z := a.Neurons(x, want, allRows(want, x), 1)
			t.Logf("screen %.1f, z %.1f", screen, z)
			require.GreaterOrEqual(t, screen, test.screen)
			require.LessOrEqual(t, z, 4.7)
			require.Positive(t, z)
		})
	}
}

// TestNeuronsHaveTheVarianceOfTheFormula: z as examined, and as simulated.
func TestNeuronsHaveTheVarianceOfTheFormula(t *testing.T) {
	for _, decay := range []float64{0, 0.8} {
		m := newMoE(decay)
		a, x := m.analysed(true)
		defer a.Close()
		f := filterOf(a, x, m.reference())
		f.crowded[3], f.crowded[20], f.factor = true, true, 1e-6 // nearly all neurons are suspects
		f.simulate()
		f.factor = 1
		simulated := f.sorted()
		require.Greater(t, len(simulated), mostSuspects)
		off := 0.0
		for _, s := range simulated {
			examined := []suspect{s}
			f.examineExactly(examined)
			z := f.explicitZ(s.term, s.Index)
			require.InEpsilon(t, z, examined[0].Z, 1e-3)
			require.InDelta(t, 0, math.Log(s.Z*1e-6/z), 0.6)
			off += math.Log(s.Z*1e-6/z) / float64(len(simulated))
		}
		require.InDelta(t, 0.05, off, 0.1, "these are the neurons of largest estimates")
	}
}

// TestNeuronsJustBeyondTheLimit: the golden is off by what a wrong neuron does, of such a size
// that its z is just below, and just above, the limit.
func TestNeuronsJustBeyondTheLimit(t *testing.T) {
	for _, decay := range []float64{0, 0.8} {
		for _, rounded := range []bool{false, true} {
			m := newMoE(decay)
			a, x := m.analysed(rounded)
			defer a.Close()
			right := slices.Clone(x.Values)
			f := filterOf(a, x, right)
			wrong := suspect{Neuron{Index: 41, Token: 7}, f.terms[7][1]}
			wrong.Expert = wrong.product.expert
			column := a.errors.Column(&wrong.down.Weight, wrong.Index)
			golden := func(size float64) []float32 {
				want := slices.Clone(right)
				for o, d := range column {
					want[7*moeHidden+o] += float32(size * float64(d))
				}
				return want
			}
			f.want = golden(0.01)
			perSize := f.explicitZ(wrong.term, wrong.Index) / 0.01
			for _, z := range []float64{5.95, 6.05} {
				named, largest := a.Neurons(x, golden(z/perSize), allRows(x.Values, x), 1)
				require.InDelta(t, z, largest, 0.04)
				require.Equal(t, [3]int{wrong.Expert, 41, 7}, [3]int{named.Expert, named.Index, named.Token})
				require.Equal(t, z > 6, largest > NeuronLimit)
				require.GreaterOrEqual(t, named.Share, Certain)
			}
		}
	}
}

// TestWrongNeuronsAmongErrors: beside the errors of a right reference, a wrong neuron of twice
// the limit fails, and is named.
func TestWrongNeuronsAmongErrors(t *testing.T) {
	for _, decay := range []float64{0, 0.8} {
		for _, rounded := range []bool{false, true} {
			m := newMoE(decay)
			a, x := m.analysed(rounded)
			defer a.Close()
			want := m.reference()
			f := filterOf(a, x, slices.Clone(x.Values))
			wrong := suspect{Neuron{Index: 5, Token: 20}, f.terms[20][2]}
			column := a.errors.Column(&wrong.down.Weight, wrong.Index)
			for o, d := range column {
				f.want[20*moeHidden+o] += 0.01 * d
			}
			size := 12 * 0.01 / f.explicitZ(wrong.term, wrong.Index)
			for o, d := range column {
				want[20*moeHidden+o] += float32(size * float64(d))
			}
			named, z := a.Neurons(x, want, allRows(want, x), 1)
			t.Logf("decay %g, rounded %v: z %.1f, share %.2f", decay, rounded, z, named.Share)
			require.InDelta(t, 12, z, 4.5)
			require.Equal(t, [3]int{wrong.product.expert, 5, 20}, [3]int{named.Expert, named.Index, named.Token})
		}
	}
}

// TestNeuronsJustBeyondTheScreen: up to 4 the screen's z stands; what is beyond is examined.
func TestNeuronsJustBeyondTheScreen(t *testing.T) {
	m := newMoE(0.8)
	a, x := m.analysed(false)
	defer a.Close()
	right, wrong := slices.Clone(x.Values), filterOf(a, x, x.Values).terms[7][1]
	golden := func(size float64) []float32 {
		want := slices.Clone(right)
		for o, d := range a.errors.Column(&wrong.down.Weight, 41) {
			want[7*moeHidden+o] += float32(size * float64(d))
		}
		return want
	}
	const size = 1e-4
	screen, exact := filterOf(a, x, golden(size)).screenedZ()/size, 0.0
	for _, z := range []float64{3.95, 4.05} {
		f := filterOf(a, x, golden(z/screen))
		exact = f.explicitZ(wrong, 41)
		_, largest := a.Neurons(x, f.want, allRows(f.want, x), 1)
		if z < 4 {
			require.InDelta(t, z, largest, 0.02)
		} else {
			require.Less(t, exact, 3.0)
			require.Less(t, largest, 3.999, "other neurons are up to 4 in the screen")
		}
	}
}
