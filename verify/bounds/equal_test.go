package bounds

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
)

// changed is a float32 weight whose element of row r and column c is at(r, c, its number).
func changed(w model.Weight, at func(r, c int, v float32) float32) model.Weight {
	values, _ := w.Float32s(nil)
	w.Data = nil
	for i, v := range values {
		w.Data = binary.LittleEndian.AppendUint32(w.Data, math.Float32bits(at(i/w.Shape[1], i%w.Shape[1], v)))
	}
	return w
}

// cloned has each neuron of an expert's first n in place of others, with down_proj's columns as they are or all alike.
func cloned(expert [3]model.Weight, n int, share bool) [3]model.Weight {
	first, _ := expert[2].Float32s(nil)
	for i := range 2 {
		values, _ := expert[i].Float32s(nil)
		expert[i] = changed(expert[i], func(r, c int, _ float32) float32 { return values[r%n*moeHidden+c] })
	}
	if share {
		expert[2] = changed(expert[2], func(r, c int, _ float32) float32 { return first[r*moeNeurons+c%n] })
	}
	return expert
}

// TestEqualErrorsAddUp: a right float32 evaluation of copies of an expert, of copies with other down_proj, and of
// cloned neurons. The RMS of z is the same as in a usual layer.
func TestEqualErrorsAddUp(t *testing.T) {
	measured := func(m *moe) (*Distances, float64) {
		a, x := m.analysed(false)
		defer a.Close()
		want := m.reference()
		_, z := a.Neurons(x, want, allRows(want, x), 1)
		return Measure(x, want, allRows(want, x), 1), z
	}
	usual, _ := measured(newMoE(0))
	r := rand.New(rand.NewPCG(5, 6))
	for name, change := range map[string]func(m *moe, e int){
		"upcycled": func(m *moe, e int) { m.experts[e] = m.experts[0] },
		"upcycled, other down_proj": func(m *moe, e int) {
			m.experts[e][0], m.experts[e][1] = m.experts[0][0], m.experts[0][1]
		},
		"upcycled, down_proj with noise": func(m *moe, e int) {
			if e > 0 {
				m.experts[e] = m.experts[0]
				m.experts[e][2] = changed(m.experts[0][2], func(_, _ int, v float32) float32 { return v * (1 + 0.05*r.Float32()) })
			}
		},
		"upcycled, half of the neurons": func(m *moe, e int) {
			for i := range 2 {
				of, _ := m.experts[0][i].Float32s(nil)
				m.experts[e][i] = changed(m.experts[e][i], func(r, c int, v float32) float32 {
					if r%2 == 0 {
						return of[r*moeHidden+c]
					}
					return v
				})
			}
			of, _ := m.experts[0][2].Float32s(nil)
			m.experts[e][2] = changed(m.experts[e][2], func(r, c int, v float32) float32 {
				if c%2 == 0 {
					return of[r*moeNeurons+c]
				}
				return v
			})
		},
		"neurons 4 times":                 func(m *moe, e int) { m.experts[e] = cloned(m.experts[e], moeNeurons/4, true) },
		"neurons 16 times":                func(m *moe, e int) { m.experts[e] = cloned(m.experts[e], moeNeurons/16, true) },
		"neurons 16 times, other columns": func(m *moe, e int) { m.experts[e] = cloned(m.experts[e], moeNeurons/16, false) },
		"upcycled and neurons 8 times":    func(m *moe, e int) { m.experts[e] = cloned(m.experts[0], moeNeurons/8, true) },
		"two experts alike, two that aren't": func(m *moe, e int) {
			if e == 2 {
				m.experts[2] = m.experts[1]
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMoE(0)
			for e := range m.experts {
				change(m, e)
			}
			d, z := measured(m)
			t.Logf("RMS %.2f, usually %.2f; z %.1f, of a neuron %.1f", d.Rms, usual.Rms, d.Largest, z)
			require.InDelta(t, 1, d.Rms/usual.Rms, 0.3)
			require.LessOrEqual(t, z, 4.7)
		})
	}
}

// TestOneErrorOfEqualNeurons: an error of 5 standard deviations of a neuron that copies of an expert, or clones, have
// in common is no more than that; it is also what the simulation estimates.
func TestOneErrorOfEqualNeurons(t *testing.T) {
	const token, clones = 7, 8
	for name, test := range map[string]struct {
		build    func(m *moe, e int) [3]model.Weight
		distinct int // neurons
	}{
		"experts": {func(m *moe, _ int) [3]model.Weight { return m.experts[0] }, moeNeurons},
		"neurons": {func(m *moe, e int) [3]model.Weight { return cloned(m.experts[e], moeNeurons/clones, true) },
			moeNeurons / clones},
	} {
		m := newMoE(0)
		for e := range m.experts {
			m.experts[e] = test.build(m, e)
		}
		a, x := m.analysed(false)
		defer a.Close()
		want := slices.Clone(x.Values)
		f := filterOf(a, x, want)
		terms := f.terms[token]
		if name == "neurons" {
			terms = terms[:1]
		}
		most := slices.Max(terms[0].deviations())
		neuron := slices.Index(terms[0].deviations(), most)
		for _, of := range terms {
			for k, s := range of.deviations() {
				if k%test.distinct == neuron {
					for o, d := range a.errors.Column(&of.down.Weight, k) {
						want[token*moeHidden+o] += float32(5 * Unit * of.weight() * float64(s) * float64(d))
					}
				}
			}
		}
		all := suspect{Neuron{Expert: terms[0].expert, Index: neuron, Token: token}, terms[0]}
		exactly := []suspect{all}
		f.examineExactly(exactly)
		require.Less(t, exactly[0].Z, 5.0, name)
		if name == "experts" {
			require.Greater(t, exactly[0].Z, 2.5)
		} else {
			require.InEpsilon(t, f.explicitZ(terms[0], neuron), exactly[0].Z, 0.01)
		}
		f.crowded[token], f.factor = true, 1e-6
		f.simulate()
		i := slices.IndexFunc(f.suspects[token], func(s suspect) bool { return s.key() == all.key() })
		require.InDelta(t, 0, math.Log(f.suspects[token][i].Z*1e-6/exactly[0].Z), 0.4, name)
	}
}

// TestWrongAmongEqual: a weight of one copy of an expert, or of one clone of a neuron, that is off by 2^-8 is beyond
// the limit.
func TestWrongAmongEqual(t *testing.T) {
	for name, build := range map[string]func(e [3]model.Weight) [3]model.Weight{
		"experts": func(e [3]model.Weight) [3]model.Weight { return e },
		"neurons": func(e [3]model.Weight) [3]model.Weight { return cloned(e, moeNeurons/8, true) },
	} {
		for i, of := range []string{"gate_proj", "up_proj", "down_proj"} {
			m := newMoE(0)
			for e := range m.experts {
				m.experts[e] = build(m.experts[0])
			}
			want := m.reference()
			m.experts[2][i] = changed(m.experts[2][i], func(r, c int, v float32) float32 {
				if r == 3 && c == 5 {
					v += 0x1p-8
				}
				return v
			})
			a, x := m.analysed(false)
			named, z := a.Neurons(x, want, allRows(want, x), 1)
			require.Greater(t, max(z/NeuronLimit, Measure(x, want, allRows(want, x), 1).Largest/Lambda), 2.0, "%s, %s", name, of)
			if i < 2 {
				require.Equal(t, 3, named.Index, "%s, %s", name, of)
			}
			a.Close()
		}
	}
}

// line returns the outputs of an MLP in dtype d with parallel columns of down_proj. The neurons have the relative
// standard deviation s and add up to sum. Each output is a number of 8 bits times sum.
func line(d tensor.DType, tokens int, sum, s float64) (*Analysis, *Value) {
	const outputs, neurons = 64, 16
	h := &model.Activation{DType: d, Shape: []int{tokens, neurons}, Values: make([]float32, tokens*neurons)}
	for i := range h.Values {
		h.Values[i] = float32(sum / neurons)
	}
	down := model.Weight{Name: "down_proj", Tensor: tensor.Tensor{DType: tensor.F32, Shape: []int{outputs, neurons}}}
	for o := range outputs {
		for k := range neurons {
			down.Data = binary.LittleEndian.AppendUint32(down.Data, math.Float32bits((1+float32(o)/128)*float32(k%2)*2))
		}
	}
	a := NewAnalysis(model.Options{DType: d}, nil)
	deviation := func(i int) float64 { return s * math.Abs(float64(h.Values[i])) }
	return a, a.Linear(WithErrors(h, deviation), &model.Linear{Weight: down})
}

// TestRoundingOfALine: rounding may move all outputs along one direction the same way, and no neuron is wrong. A neuron
// is wrong where certain outputs round to another number.
func TestRoundingOfALine(t *testing.T) {
	for _, d := range []tensor.DType{tensor.BF16, tensor.F16} {
		nearly := 1 + 0.35*PrecisionOf(d).Ulp(1) // rounded to 1 in each product
		a, x := line(d, 1, nearly, 0x1p-22)
		defer a.Close()
		want := make([]float32, len(x.Values))
		for i := range want {
			want[i] = x.Rounded(i)
		}
		f := filterOf(a, x, want)
		require.Greater(t, f.screenedZ(), 6.0, "the residual lies on each neuron")
		_, z := a.Neurons(x, want, allRows(want, x), 1)
		require.LessOrEqual(t, z, 4.0)
		off := slices.Clone(want)
		for i := range off { // as if the sum were a whole spacing more
			off[i] = tensor.Rounded(x.Values[i]*float32(1+PrecisionOf(d).Ulp(1)), d)
		}
		_, z = a.Neurons(x, off, allRows(off, x), 1)
		require.Greater(t, z, 6.0)
	}
}

// TestIndependentErrors: outputs along one direction have one error if the neurons' errors are large, and one error
// each if the sums' own errors are larger.
func TestIndependentErrors(t *testing.T) {
	a, x := line(tensor.F32, 2, 1, 0x1p-16)
	defer a.Close()
	require.Equal(t, 1, a.Independent(x, x.Values, 1))
	sums, y := line(tensor.F32, 2, 1, 0x1p-40)
	defer sums.Close()
	require.InDelta(t, 64, sums.Independent(y, y.Values, 1), 8)
	require.Equal(t, 64, sums.Independent(Exact(y.Activation), y.Values, 1))
}

// TestGatesAtTheirLimit: silu of a limit is one number, of one error, in all neurons and experts that reach it.
func TestGatesAtTheirLimit(t *testing.T) {
	const tokens, hidden, neurons, out, limit = 12, 16, 24, 512, 7
	r := rand.New(rand.NewPCG(3, 4))
	weight := func(rows, cols int, shift float32) model.Weight {
		w := model.Weight{Tensor: tensor.Tensor{DType: tensor.F32, Shape: []int{rows, cols}}}
		for _, v := range numbers(r, rows*cols) {
			w.Data = binary.LittleEndian.AppendUint32(w.Data, math.Float32bits(v+shift))
		}
		return w
	}
	x := &model.Activation{DType: tensor.F32, Shape: []int{tokens, hidden}, Values: numbers(r, tokens*hidden)}
	for i, v := range x.Values {
		x.Values[i] = float32(math.Abs(float64(v)))
	}
	a := NewAnalysis(model.Options{DType: tensor.F32}, nil)
	defer a.Close()
	var parts []model.Part[*Value]
	off := make([]float64, tokens*out) // what an error of 1.4 units of silu(limit) does
	weights := &model.Activation{DType: tensor.F32, Shape: []int{tokens, 3}}
	for e := range 3 {
		gate, up, down := weight(neurons, hidden, 2), weight(neurons, hidden, 0.5), weight(out, neurons, 1)
		g := a.Clamp(a.Linear(Exact(x), &model.Linear{Weight: gate}), float32(math.Inf(-1)), limit)
		u := a.Linear(Exact(x), &model.Linear{Weight: up})
		part := model.Part[*Value]{Expert: e}
		for token := range tokens {
			part.Slots, weights.Values = append(part.Slots, token*3+e), append(weights.Values, 0.5)
			for o := range out {
				row, _ := down.Row(o).Float32s(nil)
				for k, d := range row {
					if g.Values[token*neurons+k] == limit {
						off[token*out+o] += 0.5 * 1.4 * Unit * limit * float64(u.Values[token*neurons+k]) * float64(d)
					}
				}
			}
		}
		part.Out = a.Linear(a.SwiGLU(g, u), &model.Linear{Weight: down})
		parts = append(parts, part)
	}
	y := a.Combine(Exact(weights), parts, config.ByExpert)
	want := slices.Clone(y.Values)
	for i := range want {
		want[i] += float32(off[i])
	}
	d := Measure(y, want, allRows(want, y), 1)
	_, z := a.Neurons(y, want, allRows(want, y), 1)
	t.Logf("z %.2f, RMS %.2f, of a neuron %.2f, of its screen %.2f", d.Largest, d.Rms, z, filterOf(a, y, want).screenedZ())
	require.Less(t, d.Rms, 0.35)
	require.Less(t, z, 2.0)
}

// TestCopiesOfKnownNeurons: the sums of down_proj have equal errors in copies of an expert, although the pack holds
// their neurons.
func TestCopiesOfKnownNeurons(t *testing.T) {
	m := newMoE(0)
	a := NewAnalysis(model.Options{DType: tensor.F32}, nil)
	defer a.Close()
	down := &model.Linear{Weight: m.experts[0][2]}
	weights := &model.Activation{DType: tensor.F32, Shape: []int{1, 3}, Values: []float32{1, 1, 1}}
	h := &model.Activation{DType: tensor.F32, Shape: []int{1, moeNeurons}, Values: m.x.Values[:moeNeurons]}
	for _, order := range []config.RoutedSum{config.ByExpert, config.ByChoice} {
		var parts []model.Part[*Value]
		for e := range 3 {
			parts = append(parts, model.Part[*Value]{Expert: e, Slots: []int{e}, Out: a.Linear(Exact(h), down)})
		}
		want := slices.Clone(parts[0].Out.Values)
		for o, s := range parts[0].Out.deviations() {
			want[o] = 3 * (want[o] + float32(5*Unit*float64(s)))
		}
		y := a.Combine(Exact(weights), parts, order)
		d := Measure(y, want, allRows(want, y), 1)
		require.Less(t, d.Largest, 5.5)
		require.Greater(t, d.Rms, 4.0)
	}
}
