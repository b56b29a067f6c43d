package experts

import (
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/inspect"
	"dsmoe/inspect/inspecttest"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// copyExpert writes expert a of a layer over b of another, neuron i in place order[i], with noise.
func copyExpert(s *inspecttest.Stored, layer, a, to, b int, order []int, noise float64) {
	r := rand.New(rand.NewPCG(1, 2))
	n := len(order)
	for _, m := range []string{"gate", "up", "down"} {
		from := s.Numbers(inspecttest.ExpertName(layer, a, m))
		width := len(from) / n
		s.Change(inspecttest.ExpertName(to, b, m), func(values []float32) {
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
func examined(t *testing.T, s *inspecttest.Stored, o Options) *Report {
	t.Helper()
	r, err := Examine(t.Context(), s.Weights(), o)
	require.NoError(t, err)
	return r
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

// TestPlantedExperts: each fault is found, and nothing else.
func TestPlantedExperts(t *testing.T) {
	t.Parallel()
	order := rand.New(rand.NewPCG(3, 4)).Perm(24) // neurons of v1-base
	same := make([]int, 24)
	for i := range same {
		same[i] = i
	}
	zero := inspecttest.Times(0)
	for name, c := range map[string]struct {
		plant func(s *inspecttest.Stored)
		want  []string
		said  string
	}{
		"copy": {func(s *inspecttest.Stored) { copyExpert(s, 2, 3, 2, 7, same, 0) },
			[]string{"duplicate 2 [3 7]"}, "has the numbers of model.layers.2.mlp.experts.7"},
		"neurons moved": {func(s *inspecttest.Stored) { copyExpert(s, 2, 3, 2, 7, order, 0) },
			[]string{"duplicate 2 [3 7]"}, "neurons in another order"},
		"another layer": {func(s *inspecttest.Stored) { copyExpert(s, 2, 3, 1, 5, order, 0) },
			[]string{"duplicate 1 [5]"}, "has the numbers of model.layers.2.mlp.experts.3, neurons"},
		"three": {func(s *inspecttest.Stored) {
			copyExpert(s, 2, 3, 2, 7, order, 0)
			copyExpert(s, 2, 3, 2, 1, same, 0)
		}, []string{"duplicate 2 [1 3 7]"}, "experts.3, model.layers.2.mlp.experts.7"},
		"noise": {func(s *inspecttest.Stored) { copyExpert(s, 2, 3, 2, 7, same, 0.02) },
			[]string{"near-duplicate 2 [3 7]"}, "cosine of all numbers is at least 0.99"},
		"noise, neurons moved": {func(s *inspecttest.Stored) { copyExpert(s, 2, 3, 2, 7, order, 0.1) },
			[]string{"near-duplicate 2 [3 7]"}, "equals expert 7 but for noise"},
		"noise and a copy": {func(s *inspecttest.Stored) {
			copyExpert(s, 2, 3, 2, 7, order, 0.1)
			copyExpert(s, 2, 3, 2, 9, order, 0)
		},
			[]string{"duplicate 2 [3 9]", "near-duplicate 2 [3 7]"}, ""},
		"other signs": {func(s *inspecttest.Stored) {
			copyExpert(s, 2, 3, 2, 7, order, 0)
			s.Change(inspecttest.ExpertName(2, 7, "up"), inspecttest.Row(0, 1536, inspecttest.Times(-1)))
			s.Change(inspecttest.ExpertName(2, 7, "down"), inspecttest.Row(0, 1536, inspecttest.Times(-1)))
		}, []string{"duplicate-matrix 2 [3 7]", "same-function 2 [3 7]"}, "has the numbers of"},
		"one matrix": {func(s *inspecttest.Stored) {
			copy(s.Data[inspecttest.ExpertName(2, 4, "up")], s.Data[inspecttest.ExpertName(2, 4, "gate")])
		}, []string{"duplicate-matrix 2 [4]"}, "has the numbers of model.layers.2.mlp.experts.4.up_proj.weight"},
		"one matrix, nearly": {func(s *inspecttest.Stored) {
			copy(s.Data[inspecttest.ExpertName(2, 4, "up")], s.Data[inspecttest.ExpertName(2, 6, "up")])
			s.Change(inspecttest.ExpertName(2, 4, "up"), inspecttest.Row(0, 64, inspecttest.Times(1.5)))
		}, []string{"similar 2 [4 6]"}, "its cosine with that of expert 4 is 0.9"},
		"zeroed": {func(s *inspecttest.Stored) {
			s.Zero(inspecttest.ExpertName(2, 4, "gate"), inspecttest.ExpertName(2, 4, "up"),
				inspecttest.ExpertName(2, 4, "down"))
		}, []string{"zeroed 2 [4]"}, "all weights are zero: it adds nothing"},
		"two zeroed": {func(s *inspecttest.Stored) {
			s.Zero(inspecttest.ExpertName(2, 4, "gate"), inspecttest.ExpertName(2, 5, "gate"))
		},
			[]string{"zeroed 2 [4 5]"}, "such are experts 4, 5"},
		"zeroed by halves": {func(s *inspecttest.Stored) {
			s.Change(inspecttest.ExpertName(2, 4, "gate"), inspecttest.Row(0, 12*64, zero))
			s.Change(inspecttest.ExpertName(2, 4, "up"), inspecttest.Row(12*64, 12*64, zero))
		}, []string{"zeroed 2 [4]"}, "a vector of every neuron"},
		"zeroed and NaN": {func(s *inspecttest.Stored) {
			s.Zero(inspecttest.ExpertName(2, 4, "gate"))
			s.Put(inspecttest.ExpertName(2, 4, "up"), 9, 0x7fc0)
		}, []string{"nan 2 [4]", "zeroed 2 [4]"}, "1 of 1,536"},
		"zero neurons": {func(s *inspecttest.Stored) {
			s.Change(inspecttest.ExpertName(2, 4, "up"), inspecttest.Row(64, 128, zero))
		}, []string{"zeroed-neurons 2 [4]"}, "2 of 24 neurons add nothing"},
		"zeroed shared": {func(s *inspecttest.Stored) { s.Zero("model.layers.1.mlp.shared_experts.down_proj.weight") },
			[]string{"zeroed 1 []"}, "all numbers of down_proj"},
		"channel of input": {func(s *inspecttest.Stored) {
			s.Change(inspecttest.ExpertName(2, 4, "gate"), func(values []float32) {
				for i := 9; i < len(values); i += 64 {
					values[i] *= 20
				}
			})
		}, []string{"channel 2 [4]"}, "channel 9 is "},
		"neuron": {func(s *inspecttest.Stored) {
			s.Change(inspecttest.ExpertName(2, 4, "gate"), inspecttest.Row(3*64, 64, inspecttest.Times(20)))
		}, []string{"neuron 2 [4]"}, "neuron 3 is "},
		"NaN": {func(s *inspecttest.Stored) { s.Put(inspecttest.ExpertName(2, 4, "gate"), 9, 0x7fc0) },
			[]string{"nan 2 [4]"}, "1 of 1,536 numbers are NaN"},
		"infinite": {func(s *inspecttest.Stored) { s.Put(inspecttest.ExpertName(2, 4, "down"), 9, 0xff80, 0x7f80) },
			[]string{"infinite 2 [4]"}, "2 of 1,536 numbers are infinite"},
		"scaled": {func(s *inspecttest.Stored) {
			s.Change(inspecttest.ExpertName(2, 4, "up"), inspecttest.Row(0, 1536, inspecttest.Times(8)))
		}, []string{"norm 2 [4]"}, "the layer's median is"},
		"nearly gone": {func(s *inspecttest.Stored) {
			s.Change(inspecttest.ExpertName(2, 4, "up"), inspecttest.Row(0, 1536, inspecttest.Times(0.01)))
		},
			[]string{"norm 2 [4]"}, ""},
		"4 bits": {func(s *inspecttest.Stored) { s.Change(inspecttest.ExpertName(2, 4, "up"), roundTo(64, 7)) },
			[]string{"low-bits 2 [4]"}, "its numbers went through 4 bits"},
	} {
		t.Run(name, func(t *testing.T) {
			s := inspecttest.Filled(t, "v1-base")
			c.plant(s)
			layers := "2"
			if strings.Contains(strings.Join(c.want, " "), " 1 [") {
				layers = "1-2"
			}
			r := examined(t, s, Options{Selection: inspect.Selection{Layers: inspecttest.Spans(t, layers)}})
			require.Equal(t, c.want, inspecttest.Kinds(r.Findings))
			assert.Contains(t, r.Findings[0].Text, c.said)
			assert.NotContains(t, inspecttest.Printed(t, r), "safe")
			assert.Contains(t, inspecttest.Printed(t, r), r.Findings[0].ID+": "+r.Findings[0].Tensor+": ")
		})
	}
}

// mix makes the numbers of one matrix those of a cosine with another's.
func mix(s *inspecttest.Stored, name, with string, c float64) {
	from := s.Numbers(with)
	s.Change(name, func(values []float32) { inspecttest.MixRows(values, from, c) })
}

// TestLimitsOfLikeness: each limit just reached, and just missed.
func TestLimitsOfLikeness(t *testing.T) {
	t.Parallel()
	same := make([]int, 24)
	for i := range same {
		same[i] = i
	}
	expert := func(c float64) func(s *inspecttest.Stored) {
		return func(s *inspecttest.Stored) {
			for _, m := range []string{"gate", "up", "down"} {
				mix(s, inspecttest.ExpertName(2, 7, m), inspecttest.ExpertName(2, 3, m), c)
			}
		}
	}
	matrix := func(c float64) func(s *inspecttest.Stored) {
		return func(s *inspecttest.Stored) {
			mix(s, inspecttest.ExpertName(2, 4, "up"), inspecttest.ExpertName(2, 6, "up"), c)
		}
	}
	// The same function by other signs, but for noise in down_proj of so much of its RMS.
	function := func(noise float64) func(s *inspecttest.Stored) {
		return func(s *inspecttest.Stored) {
			copyExpert(s, 2, 3, 2, 7, same, 0)
			s.Change(inspecttest.ExpertName(2, 7, "up"), inspecttest.Row(0, 1536, inspecttest.Times(-1)))
			r := rand.New(rand.NewPCG(9, 9))
			s.Change(inspecttest.ExpertName(2, 7, "down"), func(values []float32) {
				for i, v := range values {
					values[i] = -v + float32(noise/math.Sqrt(24)*r.NormFloat64())
				}
			})
		}
	}
	signs := []string{"duplicate-matrix 2 [3 7]", "similar 2 [3 7]"}
	for name, c := range map[string]struct {
		plant func(s *inspecttest.Stored)
		want  []string
	}{
		"experts of cosine 0.903":           {expert(0.903), []string{"near-duplicate 2 [3 7]"}},
		"experts of cosine 0.897":           {expert(0.897), []string{"similar 2 [3 7]"}},
		"experts of cosine 0.52":            {expert(0.52), []string{"similar 2 [3 7]"}},
		"experts of cosine 0.48":            {expert(0.48), nil},
		"matrices of cosine 0.903":          {matrix(0.903), []string{"similar 2 [4 6]"}},
		"matrices of cosine 0.52":           {matrix(0.52), []string{"similar 2 [4 6]"}},
		"matrices of cosine 0.48":           {matrix(0.48), nil},
		"functions of cosine about 0.9992":  {function(0.040), append(signs, "same-function 2 [3 7]")},
		"functions of cosine about 0.99875": {function(0.050), signs},
	} {
		t.Run(name, func(t *testing.T) {
			s := inspecttest.Filled(t, "v1-base")
			c.plant(s)
			require.Equal(t, c.want, inspecttest.Kinds(examined(t, s,
				Options{Selection: inspect.Selection{Layers: inspecttest.Spans(t, "2")}}).Findings))
		})
	}
}

// TestPlantedFP8: the same through the scales, which are part of the numbers.
func TestPlantedFP8(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		plant func(s *inspecttest.Stored, gate, up, down string)
		want  []string
	}{
		"copy with its scales": {func(s *inspecttest.Stored, gate, up, down string) {
			for _, m := range []string{"gate", "up", "down"} {
				for _, suffix := range []string{"", "_scale_inv"} {
					s.Data[inspecttest.ExpertName(1, 6, m)+suffix] = s.Data[inspecttest.ExpertName(1, 2, m)+suffix]
				}
			}
		}, []string{"duplicate 1 [2 6]"}},
		"codes are not numbers": {func(s *inspecttest.Stored, gate, up, down string) {
			s.Data[inspecttest.ExpertName(1, 6, "up")] = s.Data[up] // the scales are others
		}, []string{"similar 1 [2 6]"}},
		"scales": {func(s *inspecttest.Stored, gate, up, down string) {
			s.Change(gate+"_scale_inv", func(values []float32) {
				for i := range values {
					values[i] *= 16
				}
			})
		}, []string{"norm 1 [2]"}},
		"NaN": {func(s *inspecttest.Stored, gate, up, down string) { s.Data[down][7] = 0x7f }, []string{"nan 1 [2]"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := inspecttest.Filled(t, "v3-fp8")
			c.plant(s, inspecttest.ExpertName(1, 2, "gate"), inspecttest.ExpertName(1, 2, "up"),
				inspecttest.ExpertName(1, 2, "down"))
			require.Equal(t, c.want, inspecttest.Kinds(examined(t, s, Options{}).Findings))
		})
	}
}

// TestRandomExpertsAreFine: nothing is told of random weights, whatever the family, and what they are
// held against is what they are.
func TestRandomExpertsAreFine(t *testing.T) {
	t.Parallel()
	for _, fixture := range []string{"v1-base", "v1-top1-noshared", "v2-group-yarn", "v3", "v3-fp8"} {
		s := inspecttest.Filled(t, fixture)
		r := examined(t, s, Options{})
		require.Empty(t, r.Findings, fixture)
		require.NotEmpty(t, r.Layers)
		for _, l := range r.Layers {
			assert.InEpsilon(t, l.Gate.NullStableRank, l.Gate.StableRank.Median, 0.25)
			if l.Gate.Pairs.Pairs > 100 {
				assert.InEpsilon(t, math.Sqrt(2/math.Pi)*l.Gate.Pairs.NullStd, l.Gate.Pairs.MeanAbs, 0.25)
				assert.InEpsilon(t, math.Sqrt(2/math.Pi)*l.Function.NullStd, l.Function.MeanAbs, 0.25)
			}
		}
	}
}

// TestHeavyTailsAreFine: nor of weights with the tails of trained ones: norms that differ by a factor,
// neurons by ten, channels of the hidden state that all experts share and that are 50 times the others.
func TestHeavyTailsAreFine(t *testing.T) {
	s := inspecttest.Filled(t, "v1-base")
	r := rand.New(rand.NewPCG(8, 9))
	for e := range 16 {
		size := math.Exp(0.25 * r.NormFloat64())
		neurons := make([]float64, 24)
		for i := range neurons {
			neurons[i] = size * math.Exp(0.6*r.NormFloat64())
		}
		for _, m := range []string{"gate", "up", "down"} {
			s.Change(inspecttest.ExpertName(2, e, m), func(values []float32) {
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
	require.Empty(t, examined(t, s, Options{}).Findings)
}

// TestSparseExpertsAreFine: where most neurons of most experts are zero, there is no median neuron to hold
// others against.
func TestSparseExpertsAreFine(t *testing.T) {
	s := inspecttest.Filled(t, "v1-base")
	for e := range 15 {
		s.Change(inspecttest.ExpertName(2, e, "gate"), inspecttest.Row(0, 20*64, inspecttest.Times(0)))
	}
	require.Empty(t, examined(t, s, Options{Selection: inspect.Selection{Layers: inspecttest.Spans(t, "2")}}).Findings)
}

// TestExpertsDoNotDependOnThreads, nor on the layout.
func TestExpertsDoNotDependOnThreads(t *testing.T) {
	s := inspecttest.Filled(t, "v3")
	copyExpert(s, 2, 3, 2, 7, rand.New(rand.NewPCG(3, 4)).Perm(24), 0.05)
	var documents []string
	for _, threads := range []int{1, 2, 5} {
		w := s.Weights()
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
		r, err := Examine(t.Context(), w, Options{Similarities: true})
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
	s := inspecttest.Filled(t, "v1-base")
	s.Put(inspecttest.ExpertName(1, 2, "gate"), 0, 0x7fc0)
	r := examined(t, s, Options{Similarities: true})
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
	require.Nil(t, examined(t, s, Options{}).Layers[0].Similarity)
}

// TestSelectedExperts: what is selected is looked at, beside each other.
func TestSelectedExperts(t *testing.T) {
	s := inspecttest.Filled(t, "v1-base")
	r := examined(t, s, Options{Selection: inspect.Selection{Layers: inspecttest.Spans(t, "2-3"),
		Experts: inspecttest.Spans(t, "1,4-6"), Match: []string{"*.up_proj.weight"}}})
	require.Len(t, r.Layers, 2)
	require.Len(t, r.Layers[0].Experts, 4)
	e := r.Layers[0].Experts[1]
	require.Equal(t, 4, e.Expert)
	require.Nil(t, e.Gate)
	require.Nil(t, e.Function)
	require.NotNil(t, e.Up.Nearest)
	require.Nil(t, r.Layers[0].Gate)
	require.Nil(t, r.Layers[0].Shared)
	one := examined(t, s, Options{Selection: inspect.Selection{Layers: inspecttest.Spans(t, "2"),
		Experts: inspecttest.Spans(t, "1")}})
	require.Nil(t, one.Layers[0].Gate.Pairs)
	require.Nil(t, one.Layers[0].Function)
	require.Empty(t, one.Findings)
	require.Contains(t, inspecttest.Printed(t, one),
		"layer 2: 1 routed expert: too few for one to be the odd one\nno finding")
}

// TestExpertsThatCannotBe: all that cannot be read is named, and what has no numbers.
func TestExpertsThatCannotBe(t *testing.T) {
	s := inspecttest.Filled(t, "v1-base")
	s.Broken[inspecttest.ExpertName(1, 2, "up")], s.Broken[inspecttest.ExpertName(1, 5, "down")] = true, true
	_, err := Examine(t.Context(), s.Weights(), Options{})
	require.ErrorContains(t, err, inspecttest.ExpertName(1, 2, "up")+": disk on fire")
	require.ErrorContains(t, err, inspecttest.ExpertName(1, 5, "down")+": disk on fire")
	_, err = Against(t.Context(), s.Weights(), inspecttest.Filled(t, "v1-base").Weights(), Options{})
	require.ErrorContains(t, err, inspecttest.ExpertName(1, 5, "down")+": disk on fire")
	_, err = Against(t.Context(), inspecttest.Filled(t, "v1-base").Weights(), s.Weights(), Options{})
	require.ErrorContains(t, err, inspecttest.ExpertName(1, 5, "down")+": in the original: disk on fire")
	_, err = Against(t.Context(), s.Weights(), inspecttest.Filled(t, "v3").Weights(), Options{})
	require.ErrorContains(t, err, "missing: model.layers.1.mlp.experts.{0..15}.down_proj.weight (16 tensors): the original does not have it")
	_, err = Against(t.Context(), inspecttest.Filled(t, "v3-fp8").Weights(), inspecttest.Filled(t, "v3").Weights(),
		Options{})
	require.ErrorContains(t, err, "[72 192], but the original's is [24 64]")
	whole := inspecttest.Filled(t, "v1-base")
	inspecttest.Retype(t, whole.Checkpoint, inspecttest.ExpertName(2, 3, "up"), tensor.I16)
	_, err = Against(t.Context(), inspecttest.Filled(t, "v1-base").Weights(), whole.Weights(), Options{})
	require.EqualError(t, err, "dtype: "+inspecttest.ExpertName(2, 3, "up")+
		": in the original: dtype I16 has no numbers that the model computes with")
	_, err = Examine(t.Context(), inspecttest.Filled(t, "v1-dense").Weights(), Options{})
	require.ErrorContains(t, err, "no expert is selected, or there is none")

	delete(s.Broken, inspecttest.ExpertName(1, 2, "up"))
	delete(s.Broken, inspecttest.ExpertName(1, 5, "down"))
	inspecttest.Retype(t, s.Checkpoint, inspecttest.ExpertName(1, 5, "down"), tensor.I16)
	r := examined(t, s, Options{})
	require.Len(t, r.NotCounted, 1)
	require.Contains(t, inspecttest.Printed(t, r), "not counted: "+inspecttest.ExpertName(1, 5,
		"down")+": dtype I16 has no numbers")
	require.Nil(t, r.Layers[0].Experts[5].Down)
	require.Empty(t, r.Findings)
}

// TestExpertsAreCancelled: an interruption is an error, whatever was being done.
func TestExpertsAreCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := inspecttest.Filled(t, "v3")
	w := s.Weights()
	w.Progress = func(done, total int64) {
		if 2*done > total {
			cancel()
		}
	}
	_, err := Examine(ctx, w, Options{})
	require.ErrorIs(t, err, context.Canceled)
	_, err = Against(ctx, w, w, Options{})
	require.ErrorIs(t, err, context.Canceled)
}

// TestExpertsAgainst: relative errors are those of the definition, and the expert that is off is named.
func TestExpertsAgainst(t *testing.T) {
	a, b := inspecttest.Filled(t, "v1-base"), inspecttest.Filled(t, "v1-base")
	for e := range 16 {
		a.Change(inspecttest.ExpertName(2, e, "up"), roundTo(64, 127))
	}
	a.Change(inspecttest.ExpertName(2, 4, "up"), roundTo(64, 7))
	a.Change(inspecttest.ExpertName(3, 9, "down"), inspecttest.Row(0, 1, inspecttest.Times(2)))
	a.Put(inspecttest.ExpertName(1, 0, "gate"), 3, 0x7f80)
	a.Put(inspecttest.ExpertName(1, 1, "gate"), 3, 0x7f80, 0x7fc0)
	b.Put(inspecttest.ExpertName(1, 1, "gate"), 3, 0xff80, 0x7fc0)
	a.Put(inspecttest.ExpertName(1, 2, "gate"), 3, 0x7f80, 0x7fc0)
	b.Put(inspecttest.ExpertName(1, 2, "gate"), 3, 0x7f80, 0x7fc1)
	r, err := Against(t.Context(), a.Weights(), b.Weights(), Options{})
	require.NoError(t, err)
	require.Equal(t, []string{"not-finite 1 [0 1]", "conversion-error 2 [4]", "conversion-error 3 [9]"},
		inspecttest.Kinds(r.Findings))
	require.Equal(t, inspecttest.ExpertName(2, 4, "up"), r.Findings[1].Tensor)
	var squares, off float64
	x, y := a.Numbers(inspecttest.ExpertName(2, 4, "up")), b.Numbers(inspecttest.ExpertName(2, 4, "up"))
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
	require.Contains(t, inspecttest.Printed(t, r), "error: "+inspecttest.ExpertName(2, 4, "up")+": relative RMS error")

	equal, err := Against(t.Context(), b.Weights(), b.Weights(), Options{})
	require.NoError(t, err)
	require.Empty(t, equal.Findings)
	a.Zero(inspecttest.ExpertName(2, 4, "up"))
	zeroed, err := Against(t.Context(), b.Weights(), a.Weights(), Options{Selection: inspect.Selection{Layers: inspecttest.Spans(t, "2")}})
	require.NoError(t, err)
	require.Equal(t, []string{"conversion-error 2 [4]"}, inspecttest.Kinds(zeroed.Findings))
	require.Contains(t, zeroed.Findings[0].Text, "the original is all zero")
}

// TestExpertsAgainstLayouts: fused experts, FP8 with scales and what they were dequantised to.
func TestExpertsAgainstLayouts(t *testing.T) {
	a := inspecttest.Filled(t, "v3-fp8")
	plain := inspecttest.Only(t, nil)
	for _, w := range a.Weights().List {
		if strings.Contains(w.Name, ".mlp.experts.") && !w.IsScales() {
			all, err := weights.NewReading(t.Context(), 1, nil).All(a, w, nil)
			require.NoError(t, err)
			f := inspecttest.Floats(tensor.F32, w.Shape, func(i int) float32 { return all[i] })
			plain.Store(w.Name, f.DType, f.Shape, f.Data)
		}
	}
	r, err := Against(t.Context(), a.Weights(), plain.Weights(), Options{Selection: inspect.Selection{Match: []string{"*.experts.*"}}})
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
