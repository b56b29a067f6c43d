package inspect

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
)

// filled returns synthetic weights for the config of a fixture.
func filled(t *testing.T, fixture string) *stored {
	return fill(t, configtest.Fixture(t, fixture+"/checkpoint"))
}

// numbersOf decodes a BF16 or F32 tensor.
func (s *stored) numbersOf(name string) []float32 {
	data, values := s.data[name], []float32(nil)
	if s.dtype(name) == tensor.F32 {
		for i := 0; i < len(data); i += 4 {
			values = append(values, math.Float32frombits(binary.LittleEndian.Uint32(data[i:])))
		}
		return values
	}
	for i := 0; i < len(data); i += 2 {
		values = append(values, math.Float32frombits(uint32(binary.LittleEndian.Uint16(data[i:]))<<16))
	}
	return values
}

// dtype is that of a tensor.
func (s *stored) dtype(name string) tensor.DType {
	for _, x := range s.tensors() {
		if x.Name == name {
			return x.DType
		}
	}
	panic(name)
}

// change lets f change the numbers of a BF16 or F32 tensor.
func (s *stored) change(name string, f func(values []float32)) {
	values, d := s.numbersOf(name), s.dtype(name)
	f(values)
	s.data[name] = nil
	for _, v := range values {
		b := math.Float32bits(v)
		if d == tensor.F32 {
			s.data[name] = binary.LittleEndian.AppendUint32(s.data[name], b)
			continue
		}
		if v == v {
			b += 0x7fff + b>>16&1
		}
		s.data[name] = binary.LittleEndian.AppendUint16(s.data[name], uint16(b>>16))
	}
}

// expertName is the name of a matrix.
func expertName(layer, expert int, matrix string) string {
	return fmt.Sprintf("model.layers.%d.mlp.experts.%d.%s_proj.weight", layer, expert, matrix)
}

// copyExpert writes expert a of a layer over b of another, neuron i in place order[i], with noise.
func (s *stored) copyExpert(layer, a, to, b int, order []int, noise float64) {
	r := rand.New(rand.NewPCG(1, 2))
	n := len(order)
	for _, m := range []string{"gate", "up", "down"} {
		from := s.numbersOf(expertName(layer, a, m))
		width := len(from) / n
		s.change(expertName(to, b, m), func(values []float32) {
			for i, v := range from {
				k := order[i/width]*width + i%width
				if m == "down" {
					k = i/n*n + order[i%n]
				}
				values[k] = v + float32(noise*0.1*r.NormFloat64())
			}
		})
	}
}

// examined looks at the experts of a checkpoint.
func (s *stored) examined(t *testing.T, o ExpertsOptions) *ExpertsReport {
	t.Helper()
	r, err := ExamineExperts(t.Context(), s.weights(), o)
	require.NoError(t, err)
	return r
}

// told are the findings without their numbers: "duplicate 2 [3 7]".
func told(found []Observation) (all []string) {
	for _, o := range found {
		all = append(all, fmt.Sprint(o.ID, " ", o.Layer, " ", o.Experts))
	}
	return all
}

// row returns n numbers from at on.
func row(at, n int, f func(v float32) float32) func(values []float32) {
	return func(values []float32) {
		for i := range values[at : at+n] {
			values[at+i] = f(values[at+i])
		}
	}
}

func times(factor float32) func(float32) float32 {
	return func(v float32) float32 { return v * factor }
}

// roundTo rounds each of rows to so many steps.
func roundTo(width int, steps float64) func(values []float32) {
	return func(values []float32) {
		for r := range slices.Chunk(values, width) {
			most := 0.0
			for _, v := range r {
				most = max(most, math.Abs(float64(v)))
			}
			for i, v := range r {
				r[i] = float32(math.Round(float64(v)*steps/most) * most / steps)
			}
		}
	}
}

// TestPlantedExperts: each fault is found, and nothing else is told of.
func TestPlantedExperts(t *testing.T) {
	t.Parallel()
	order := rand.New(rand.NewPCG(3, 4)).Perm(24) // neurons of v1-base
	same := make([]int, 24)
	for i := range same {
		same[i] = i
	}
	zero := times(0)
	for name, c := range map[string]struct {
		plant func(s *stored)
		want  []string
		said  string
	}{
		"copy":                 {func(s *stored) { s.copyExpert(2, 3, 2, 7, same, 0) }, []string{"duplicate 2 [3 7]"}, "has the numbers of model.layers.2.mlp.experts.7"},
		"neurons moved":        {func(s *stored) { s.copyExpert(2, 3, 2, 7, order, 0) }, []string{"duplicate 2 [3 7]"}, "neurons in another order"},
		"another layer":        {func(s *stored) { s.copyExpert(2, 3, 1, 5, order, 0) }, []string{"duplicate 1 [5]", "duplicate 2 [3]"}, "has the numbers of model.layers.2.mlp.experts.3, neurons"},
		"three":                {func(s *stored) { s.copyExpert(2, 3, 2, 7, order, 0); s.copyExpert(2, 3, 2, 1, same, 0) }, []string{"duplicate 2 [1 3 7]"}, "experts.3, model.layers.2.mlp.experts.7"},
		"noise":                {func(s *stored) { s.copyExpert(2, 3, 2, 7, same, 0.02) }, []string{"near-duplicate 2 [3 7]"}, "cosine of all numbers is at least 0.99"},
		"noise, neurons moved": {func(s *stored) { s.copyExpert(2, 3, 2, 7, order, 0.1) }, []string{"near-duplicate 2 [3 7]"}, "equals expert 7 but for noise"},
		"noise and a copy": {func(s *stored) { s.copyExpert(2, 3, 2, 7, order, 0.1); s.copyExpert(2, 3, 2, 9, order, 0) },
			[]string{"near-duplicate 2 [3 7]", "duplicate 2 [3 9]"}, ""},
		"other signs": {func(s *stored) {
			s.copyExpert(2, 3, 2, 7, order, 0)
			s.change(expertName(2, 7, "up"), row(0, 1536, times(-1)))
			s.change(expertName(2, 7, "down"), row(0, 1536, times(-1)))
		}, []string{"same-function 2 [3 7]", "duplicate-matrix 2 [3 7]"}, "computes what expert 7 does, on 8 inputs"},
		"one matrix": {func(s *stored) {
			copy(s.data[expertName(2, 4, "up")], s.data[expertName(2, 4, "gate")])
		}, []string{"duplicate-matrix 2 [4]"}, "has the numbers of model.layers.2.mlp.experts.4.up_proj.weight"},
		"one matrix, nearly": {func(s *stored) {
			copy(s.data[expertName(2, 4, "up")], s.data[expertName(2, 6, "up")])
			s.change(expertName(2, 4, "up"), row(0, 64, times(1.5)))
		}, []string{"similar-matrix 2 [4 6]"}, "its cosine with that of expert 4 is 0.9"},
		"zeroed": {func(s *stored) {
			s.zero(expertName(2, 4, "gate"), expertName(2, 4, "up"), expertName(2, 4, "down"))
		}, []string{"zeroed 2 [4]"}, "all weights are zero: it adds nothing"},
		"two zeroed": {func(s *stored) { s.zero(expertName(2, 4, "gate"), expertName(2, 5, "gate")) },
			[]string{"zeroed 2 [4]", "zeroed 2 [5]"}, "all numbers of gate_proj are zero"},
		"zeroed by halves": {func(s *stored) {
			s.change(expertName(2, 4, "gate"), row(0, 12*64, zero))
			s.change(expertName(2, 4, "up"), row(12*64, 12*64, zero))
		}, []string{"zeroed 2 [4]"}, "a vector of every neuron"},
		"zeroed and NaN": {func(s *stored) {
			s.zero(expertName(2, 4, "gate"))
			s.put(expertName(2, 4, "up"), 9, 0x7fc0)
		}, []string{"nan 2 [4]", "norm 2 [4]"}, "1 of 1,536"},
		"zero neurons":      {func(s *stored) { s.change(expertName(2, 4, "up"), row(64, 128, zero)) }, []string{"zeroed-neurons 2 [4]"}, "2 of 24 neurons add nothing"},
		"zeroed shared":     {func(s *stored) { s.zero("model.layers.1.mlp.shared_experts.down_proj.weight") }, []string{"zeroed 1 []"}, "all numbers of down_proj"},
		"channel of output": {func(s *stored) { s.change(expertName(2, 4, "down"), row(5*24, 24, times(20))) }, []string{"channel 2 [4]"}, "channel 5 has "},
		"channel of input": {func(s *stored) {
			s.change(expertName(2, 4, "gate"), func(values []float32) {
				for i := 9; i < len(values); i += 64 {
					values[i] *= 20
				}
			})
		}, []string{"channel 2 [4]"}, "channel 9 has "},
		"neuron":   {func(s *stored) { s.change(expertName(2, 4, "gate"), row(3*64, 64, times(20))) }, []string{"neuron 2 [4]"}, "neuron 3 has "},
		"NaN":      {func(s *stored) { s.put(expertName(2, 4, "gate"), 9, 0x7fc0) }, []string{"nan 2 [4]"}, "1 of 1,536 numbers are NaN"},
		"infinite": {func(s *stored) { s.put(expertName(2, 4, "down"), 9, 0xff80, 0x7f80) }, []string{"infinite 2 [4]"}, "2 of 1,536 numbers are infinite"},
		"scaled":   {func(s *stored) { s.change(expertName(2, 4, "up"), row(0, 1536, times(8))) }, []string{"norm 2 [4]"}, "the layer's median is"},
		"nearly gone": {func(s *stored) { s.change(expertName(2, 4, "up"), row(0, 1536, times(0.01))) },
			[]string{"norm 2 [4]"}, ""},
		"4 bits": {func(s *stored) { s.change(expertName(2, 4, "up"), roundTo(64, 7)) }, []string{"coarse 2 [4]"}, "as rounding to few bits leaves behind"},
	} {
		t.Run(name, func(t *testing.T) {
			s := filled(t, "v1-base")
			c.plant(s)
			layers := "2"
			if strings.Contains(strings.Join(c.want, " "), " 1 [") {
				layers = "1-2"
			}
			r := s.examined(t, ExpertsOptions{Selection: Selection{Layers: spans(t, layers)}})
			require.Equal(t, c.want, told(r.Findings))
			assert.Contains(t, r.Findings[0].Text, c.said)
			assert.NotContains(t, printed(t, r), "safe")
			assert.Contains(t, printed(t, r), r.Findings[0].ID+": "+r.Findings[0].Tensor+": ")
		})
	}
}

// mix makes the numbers of one matrix those of a cosine with another's.
func (s *stored) mix(name, with string, c float64) {
	from := s.numbersOf(with)
	s.change(name, func(values []float32) { mixRows(values, from, c) })
}

// mixRows makes values c times from, beside numbers at right angles to it, of its norm in all.
func mixRows(values, from []float32, c float64) {
	product := func(a, b []float32) (sum float64) {
		for i, v := range a {
			sum += float64(v) * float64(b[i])
		}
		return sum
	}
	share := product(values, from) / product(from, from)
	for i, v := range from {
		values[i] -= float32(share * float64(v))
	}
	size := math.Sqrt((1 - c*c) * product(from, from) / product(values, values))
	for i, v := range from {
		values[i] = float32(c*float64(v) + size*float64(values[i]))
	}
}

// TestLimitsOfLikeness: each limit just reached, and just missed.
func TestLimitsOfLikeness(t *testing.T) {
	t.Parallel()
	same := make([]int, 24)
	for i := range same {
		same[i] = i
	}
	expert := func(c float64) func(s *stored) {
		return func(s *stored) {
			for _, m := range []string{"gate", "up", "down"} {
				s.mix(expertName(2, 7, m), expertName(2, 3, m), c)
			}
		}
	}
	matrix := func(c float64) func(s *stored) {
		return func(s *stored) { s.mix(expertName(2, 4, "up"), expertName(2, 6, "up"), c) }
	}
	// The same function by other signs, but for noise in down_proj of so much of its RMS.
	function := func(noise float64) func(s *stored) {
		return func(s *stored) {
			s.copyExpert(2, 3, 2, 7, same, 0)
			s.change(expertName(2, 7, "up"), row(0, 1536, times(-1)))
			r := rand.New(rand.NewPCG(9, 9))
			s.change(expertName(2, 7, "down"), func(values []float32) {
				for i, v := range values {
					values[i] = -v + float32(noise/math.Sqrt(24)*r.NormFloat64())
				}
			})
		}
	}
	signs := []string{"similar-matrix 2 [3 7]", "similar-matrix 2 [3 7]", "duplicate-matrix 2 [3 7]"}
	for name, c := range map[string]struct {
		plant func(s *stored)
		want  []string
	}{
		"experts of cosine 0.903":           {expert(0.903), []string{"near-duplicate 2 [3 7]"}},
		"experts of cosine 0.897":           {expert(0.897), nil},
		"matrices of cosine 0.903":          {matrix(0.903), []string{"similar-matrix 2 [4 6]"}},
		"matrices of cosine 0.897":          {matrix(0.897), nil},
		"functions of cosine about 0.9992":  {function(0.040), append([]string{"same-function 2 [3 7]"}, signs...)},
		"functions of cosine about 0.99875": {function(0.050), signs},
	} {
		t.Run(name, func(t *testing.T) {
			s := filled(t, "v1-base")
			c.plant(s)
			require.Equal(t, c.want, told(s.examined(t, ExpertsOptions{Selection: Selection{Layers: spans(t, "2")}}).Findings))
		})
	}
}

// TestPlantedFP8: the same through the scales, which are part of the numbers.
func TestPlantedFP8(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		plant func(s *stored, gate, up, down string)
		want  []string
	}{
		"copy with its scales": {func(s *stored, gate, up, down string) {
			for _, m := range []string{"gate", "up", "down"} {
				for _, suffix := range []string{"", "_scale_inv"} {
					s.data[expertName(1, 6, m)+suffix] = s.data[expertName(1, 2, m)+suffix]
				}
			}
		}, []string{"duplicate 1 [2 6]"}},
		"codes are not numbers": {func(s *stored, gate, up, down string) {
			s.data[expertName(1, 6, "up")] = s.data[up] // the scales are others
		}, []string{"similar-matrix 1 [2 6]"}},
		"scales": {func(s *stored, gate, up, down string) {
			s.change(gate+"_scale_inv", func(values []float32) {
				for i := range values {
					values[i] *= 16
				}
			})
		}, []string{"norm 1 [2]"}},
		"NaN": {func(s *stored, gate, up, down string) { s.data[down][7] = 0x7f }, []string{"nan 1 [2]"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := filled(t, "v3-fp8")
			c.plant(s, expertName(1, 2, "gate"), expertName(1, 2, "up"), expertName(1, 2, "down"))
			require.Equal(t, c.want, told(s.examined(t, ExpertsOptions{}).Findings))
		})
	}
}

// TestRandomExpertsAreFine: nothing is told of random weights, whatever the family, and what they are
// held against is what they are.
func TestRandomExpertsAreFine(t *testing.T) {
	t.Parallel()
	for _, fixture := range []string{"v1-base", "v1-top1-noshared", "v2-group-yarn", "v3", "v3-fp8"} {
		s := filled(t, fixture)
		r := s.examined(t, ExpertsOptions{})
		require.Empty(t, r.Findings, fixture)
		require.NotEmpty(t, r.Layers)
		for _, l := range r.Layers {
			assert.InEpsilon(t, l.Gate.NullStableRank, l.Gate.StableRank.Median, 0.25)
			if l.Gate.Pairs.Pairs > 100 {
				assert.InEpsilon(t, math.Sqrt(2/math.Pi)*l.Gate.Pairs.NullStd, l.Gate.Pairs.MeanAbs, 0.25)
				assert.InEpsilon(t, math.Sqrt(2/math.Pi)*l.Function.NullStd, l.Function.MeanAbs, 0.25)
			}
		}
		routers, err := ExamineRouters(t.Context(), s.weights(), RouterOptions{Coupling: true})
		require.NoError(t, err)
		require.Empty(t, routers.Findings, fixture)
	}
}

// TestHeavyTailsAreFine: nor of weights with the tails of trained ones: norms that differ by a factor,
// neurons by ten, channels of the hidden state that all experts share and that are 50 times the others.
func TestHeavyTailsAreFine(t *testing.T) {
	s := filled(t, "v1-base")
	r := rand.New(rand.NewPCG(8, 9))
	for e := range 16 {
		size := math.Exp(0.25 * r.NormFloat64())
		neurons := make([]float64, 24)
		for i := range neurons {
			neurons[i] = size * math.Exp(0.6*r.NormFloat64())
		}
		for _, m := range []string{"gate", "up", "down"} {
			s.change(expertName(2, e, m), func(values []float32) {
				for i := range values {
					n, c := i/64, i%64
					if m == "down" {
						n, c = i%24, i/24
					}
					f := neurons[n] * math.Exp(0.1*r.NormFloat64())
					if c == 17 || c == 40 {
						f *= 50
					}
					values[i] = float32(f * float64(values[i]))
				}
			})
		}
	}
	require.Empty(t, s.examined(t, ExpertsOptions{}).Findings)
}

// TestSparseExpertsAreFine: where most neurons of most experts are zero, there is no median neuron to hold
// others against.
func TestSparseExpertsAreFine(t *testing.T) {
	s := filled(t, "v1-base")
	for e := range 15 {
		s.change(expertName(2, e, "gate"), row(0, 20*64, times(0)))
	}
	require.Empty(t, s.examined(t, ExpertsOptions{Selection: Selection{Layers: spans(t, "2")}}).Findings)
}

// TestExpertsDoNotDependOnThreads, nor on the layout.
func TestExpertsDoNotDependOnThreads(t *testing.T) {
	s := filled(t, "v3")
	s.copyExpert(2, 3, 2, 7, rand.New(rand.NewPCG(3, 4)).Perm(24), 0.05)
	var documents []string
	for _, threads := range []int{1, 2, 5} {
		w := s.weights()
		w.Threads = threads
		last, calls := int64(0), 0
		w.Progress = func(done, total int64) {
			assert.LessOrEqual(t, done, total)
			assert.Greater(t, done, last)
			last, calls = done, calls+1
			if done == total {
				calls = -1
			}
		}
		r, err := ExamineExperts(t.Context(), w, ExpertsOptions{Similarities: true})
		require.NoError(t, err)
		assert.Equal(t, -1, calls, "progress reaches its end, and that is the last")
		document, err := json.Marshal(r)
		require.NoError(t, err)
		documents = append(documents, string(document))
	}
	require.Equal(t, documents[0], documents[1])
	require.Equal(t, documents[0], documents[2])
	require.Contains(t, documents[0], "near-duplicate")
}

// TestSimilarities: a matrix of cosines per kind, of routed experts, and of the shared ones in what
// they compute.
func TestSimilarities(t *testing.T) {
	s := filled(t, "v1-base")
	s.put(expertName(1, 2, "gate"), 0, 0x7fc0)
	r := s.examined(t, ExpertsOptions{Similarities: true})
	c := r.Layers[0].Similarity
	require.Len(t, c.Gate, 16)
	require.Len(t, c.Function, 17)
	require.Equal(t, 1.0, c.Up[3][3])
	require.Equal(t, c.Up[3][5], c.Up[5][3])
	require.True(t, math.IsNaN(c.Gate[2][4]), "of a matrix with NaN")
	require.False(t, math.IsNaN(c.Gate[3][4]))
	document, err := json.Marshal(r)
	require.NoError(t, err)
	require.Contains(t, string(document), `[null,null,null,`)
	require.Nil(t, r.Layers[0].Experts[2].Gate.Nearest)
	require.Nil(t, r.Layers[0].Experts[2].Gate.Norm)
	require.Nil(t, s.examined(t, ExpertsOptions{}).Layers[0].Similarity)
}

// TestSelectedExperts: what is selected is looked at, beside each other.
func TestSelectedExperts(t *testing.T) {
	s := filled(t, "v1-base")
	r := s.examined(t, ExpertsOptions{Selection: Selection{Layers: spans(t, "2-3"), Experts: spans(t, "1,4-6"), Match: []string{"*.up_proj.weight"}}})
	require.Len(t, r.Layers, 2)
	require.Len(t, r.Layers[0].Experts, 4)
	e := r.Layers[0].Experts[1]
	require.Equal(t, 4, e.Expert)
	require.Nil(t, e.Gate)
	require.Nil(t, e.Function)
	require.NotNil(t, e.Up.Nearest)
	require.Nil(t, r.Layers[0].Gate)
	require.Nil(t, r.Layers[0].Shared)
	one := s.examined(t, ExpertsOptions{Selection: Selection{Layers: spans(t, "2"), Experts: spans(t, "1")}})
	require.Nil(t, one.Layers[0].Gate.Pairs)
	require.Nil(t, one.Layers[0].Function)
	require.Empty(t, one.Findings)
	require.Contains(t, printed(t, one), "layer 2: 1 routed expert: too few for one to be the odd one\nno finding")
}

// TestExpertsThatCannotBe: all that cannot be read is named, and what has no numbers.
func TestExpertsThatCannotBe(t *testing.T) {
	s := filled(t, "v1-base")
	s.broken[expertName(1, 2, "up")], s.broken[expertName(1, 5, "down")] = true, true
	_, err := ExamineExperts(t.Context(), s.weights(), ExpertsOptions{})
	require.ErrorContains(t, err, expertName(1, 2, "up")+": disk on fire")
	require.ErrorContains(t, err, expertName(1, 5, "down")+": disk on fire")
	_, err = ExpertsAgainst(t.Context(), s.weights(), filled(t, "v1-base").weights(), Selection{})
	require.ErrorContains(t, err, expertName(1, 5, "down")+": disk on fire")
	_, err = ExpertsAgainst(t.Context(), filled(t, "v1-base").weights(), s.weights(), Selection{})
	require.ErrorContains(t, err, expertName(1, 5, "down")+": in the original: disk on fire")
	_, err = ExpertsAgainst(t.Context(), s.weights(), filled(t, "v3").weights(), Selection{})
	require.ErrorContains(t, err, "missing: model.layers.1.mlp.experts.{0..15}.down_proj.weight (16 tensors): the original does not have it")
	_, err = ExpertsAgainst(t.Context(), filled(t, "v3-fp8").weights(), filled(t, "v3").weights(), Selection{})
	require.ErrorContains(t, err, "[72 192], but the original's is [24 64]")
	_, err = ExamineExperts(t.Context(), filled(t, "v1-dense").weights(), ExpertsOptions{})
	require.ErrorContains(t, err, "no expert is selected, or there is none")

	delete(s.broken, expertName(1, 2, "up"))
	delete(s.broken, expertName(1, 5, "down"))
	retype(t, s.Checkpoint, expertName(1, 5, "down"), tensor.I16)
	r := s.examined(t, ExpertsOptions{})
	require.Len(t, r.NotCounted, 1)
	require.Contains(t, printed(t, r), "not counted: "+expertName(1, 5, "down")+": dtype I16 has no numbers")
	require.Nil(t, r.Layers[0].Experts[5].Down)
	require.Empty(t, r.Findings)
}

// TestExpertsAreCancelled: an interruption is an error, whatever was being done.
func TestExpertsAreCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := filled(t, "v3")
	w := s.weights()
	w.Progress = func(done, total int64) {
		if 2*done > total {
			cancel()
		}
	}
	_, err := ExamineExperts(ctx, w, ExpertsOptions{})
	require.ErrorIs(t, err, context.Canceled)
	_, err = ExamineRouters(ctx, w, RouterOptions{Coupling: true})
	require.ErrorIs(t, err, context.Canceled)
	_, err = ExpertsAgainst(ctx, w, w, Selection{})
	require.ErrorIs(t, err, context.Canceled)
}

// TestExpertsAgainst: relative errors are those of the definition, and the expert that is off is named.
func TestExpertsAgainst(t *testing.T) {
	a, b := filled(t, "v1-base"), filled(t, "v1-base")
	for e := range 16 {
		a.change(expertName(2, e, "up"), roundTo(64, 127))
	}
	a.change(expertName(2, 4, "up"), roundTo(64, 7))
	a.change(expertName(3, 9, "down"), row(0, 1, times(2)))
	a.put(expertName(1, 0, "gate"), 3, 0x7f80)
	a.put(expertName(1, 1, "gate"), 3, 0x7f80, 0x7fc0)
	b.put(expertName(1, 1, "gate"), 3, 0xff80, 0x7fc0)
	a.put(expertName(1, 2, "gate"), 3, 0x7f80, 0x7fc0)
	b.put(expertName(1, 2, "gate"), 3, 0x7f80, 0x7fc1)
	r, err := ExpertsAgainst(t.Context(), a.weights(), b.weights(), Selection{})
	require.NoError(t, err)
	require.Equal(t, []string{"not-finite 1 [0]", "not-finite 1 [1]", "error 2 [4]", "error 3 [9]"}, told(r.Findings))
	require.Equal(t, expertName(2, 4, "up"), r.Findings[2].Tensor)
	var squares, off float64
	x, y := a.numbersOf(expertName(2, 4, "up")), b.numbersOf(expertName(2, 4, "up"))
	for i := range x {
		squares += float64(y[i]) * float64(y[i])
		off += (float64(x[i]) - float64(y[i])) * (float64(x[i]) - float64(y[i]))
	}
	m := r.Layers[1].Experts[4].Up
	require.InEpsilon(t, math.Sqrt(off/squares), *m.RelativeRMS, 1e-13)
	require.Equal(t, 0.0, *r.Layers[1].Experts[4].Gate.RelativeRMS)
	require.Nil(t, r.Layers[0].Experts[0].Gate.RelativeRMS)
	require.Equal(t, int64(1), r.Layers[0].Experts[0].Gate.NotFinite)
	require.Equal(t, -1, r.Layers[1].Experts[16].Expert)
	require.Contains(t, printed(t, r), "error: "+expertName(2, 4, "up")+": relative RMS error")

	equal, err := ExpertsAgainst(t.Context(), b.weights(), b.weights(), Selection{})
	require.NoError(t, err)
	require.Empty(t, equal.Findings)
	a.zero(expertName(2, 4, "up"))
	zeroed, err := ExpertsAgainst(t.Context(), b.weights(), a.weights(), Selection{Layers: spans(t, "2")})
	require.NoError(t, err)
	require.Equal(t, []string{"error 2 [4]"}, told(zeroed.Findings))
	require.Contains(t, zeroed.Findings[0].Text, "the original is all zero")
}

// TestExpertsAgainstLayouts: fused experts, FP8 with scales and what they were dequantised to.
func TestExpertsAgainstLayouts(t *testing.T) {
	a := filled(t, "v3-fp8")
	plain := only(t, nil)
	for _, w := range a.weights().List {
		if strings.Contains(w.Name, ".mlp.experts.") && !w.IsScales() {
			all, err := weights.NewReading(t.Context(), 1, nil).All(a, w, nil)
			require.NoError(t, err)
			f := floats(tensor.F32, w.Shape, func(i int) float32 { return all[i] })
			plain.store(w.Name, f.DType, f.Shape, f.Data)
		}
	}
	r, err := ExpertsAgainst(t.Context(), a.weights(), plain.weights(), Selection{Match: []string{"*.experts.*"}})
	require.NoError(t, err)
	for _, l := range r.Layers {
		for _, e := range l.Experts {
			require.Equal(t, 0.0, *e.Gate.RelativeRMS)
			require.Equal(t, int64(0), e.Down.Different)
			require.Equal(t, tensor.F8E4M3, e.Down.DType)
			require.Equal(t, tensor.F32, e.Down.Against)
		}
	}
}

// spans reads numbers.
func spans(t *testing.T, list string) text.Spans {
	t.Helper()
	s, err := text.ParseSpans(list, "numbers")
	require.NoError(t, err)
	return s
}
