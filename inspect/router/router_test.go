package router

import (
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/inspect"
	"dsmoe/inspect/inspecttest"
	"dsmoe/model/weights"
)

const (
	gateOf2 = "model.layers.2.mlp.gate.weight"
	biasOf2 = "model.layers.2.mlp.gate.e_score_correction_bias"
)

// routers looks at the routers of a checkpoint.
func routers(t *testing.T, s *inspecttest.Stored, o Options) *Report {
	t.Helper()
	r, err := Examine(t.Context(), s.Weights(), o)
	require.NoError(t, err)
	return r
}

// TestPlantedRouters: each fault is found, and nothing else is told of.
func TestPlantedRouters(t *testing.T) {
	scaled := func(to, from int, factor float32) func(values []float32) {
		return func(values []float32) {
			for i := range 64 {
				values[to*64+i] = factor * values[from*64+i]
			}
		}
	}
	at := func(e int, v float32) func(values []float32) { return func(values []float32) { values[e] = v } }
	for name, c := range map[string]struct {
		tensor string
		change func(values []float32)
		want   []string
		said   string
	}{
		"dead": {gateOf2, scaled(3, 3, 0), []string{"dead-row 2 [3]"},
			"row 3 is all zero: the logit of expert 3 is 0"},
		"twice": {gateOf2, scaled(3, 6, 1), []string{"duplicate-row 2 [3 6]"}, "rows 3, 6 are equal"},
		"three times": {gateOf2, func(v []float32) { scaled(3, 6, 1)(v); scaled(9, 6, 1)(v) },
			[]string{"duplicate-row 2 [3 6 9]"}, "rows 3, 6, 9"},
		"nearly":  {gateOf2, scaled(3, 6, 1.01), []string{"near-duplicate-row 2 [3 6]"}, "rows 3, 6 are alike: the smallest cosine of two is 1.0000"},
		"massive": {gateOf2, scaled(3, 6, 10), []string{"row-norm 2 [3]"}, "row 3 has typical magnitude"},
		"faint":   {gateOf2, scaled(3, 6, 0.01), []string{"row-norm 2 [3]"}, ""},
		"NaN":     {gateOf2, at(70, float32(math.NaN())), []string{"not-finite 2 [1]"}, "row 1 has numbers"},
		"bias NaN": {biasOf2, at(1, float32(math.Inf(1))), []string{"not-finite 2 [1]"},
			"e_score_correction_bias of expert 1"},
		"low bias":  {biasOf2, at(3, -5), []string{"never-chosen 2 [3]"}, "expert 3 is never chosen, whatever the token"},
		"high bias": {biasOf2, at(3, 5), []string{"always-chosen 2 [3]"}, "expert 3 is always chosen"},
	} {
		t.Run(name, func(t *testing.T) {
			s := inspecttest.Filled(t, "v3")
			s.Change(c.tensor, c.change)
			r := routers(t, s, Options{Coupling: true})
			require.Equal(t, c.want, inspecttest.Kinds(r.Findings))
			assert.Equal(t, gateOf2, r.Findings[0].Tensor)
			assert.Contains(t, r.Findings[0].Text, c.said)
			assert.Contains(t, inspecttest.Printed(t, r), r.Findings[0].ID+": ")
		})
	}
}

// TestProvenChoices: what is said to be never chosen, or always, is, for very many tokens and every
// kind of bias; and something is proven.
func TestProvenChoices(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	proven := map[string]int{}
	for range 300 {
		groups := []int{1, 2, 4}[r.IntN(3)]
		p := &gatePlan{k: 1 + r.IntN(3), groups: groups, chosen: 1 + r.IntN(max(1, groups-1))}
		experts := groups * (2 + r.IntN(3))
		if groups == 1 {
			experts += 3
		}
		if p.chosen*experts/groups <= p.k {
			continue
		}
		bias, size := make([]float64, experts), make([]float64, experts)
		for e := range experts {
			bias[e], size[e] = 2*r.NormFloat64(), 3*r.Float64()
			low := 1 / (1 + math.Exp(size[e]))
			p.experts = append(p.experts, limits{low + bias[e], 1 - low + bias[e]})
		}
		chosen := make([]int, experts)
		const tokens = 400
		for range tokens {
			scores := make([]float64, experts)
			for e := range scores { // any logits within the bounds, often at them
				scores[e] = 1/(1+math.Exp(-size[e]*math.Max(-1, math.Min(1, 2*r.NormFloat64())))) + bias[e]
			}
			for _, e := range chosenBy(p, scores) {
				chosen[e]++
			}
		}
		for e, n := range chosen {
			if p.never(e) {
				require.Zero(t, n)
				proven["never"]++
			}
			if p.always(e) {
				require.Equal(t, tokens, n)
				proven["always"]++
			}
		}
	}
	require.Greater(t, proven["never"], 100)
	require.Greater(t, proven["always"], 100)
}

// TestLimitsOfRootsOfSoftplus: DeepSeek-V4's scores lie within their limits, logits and scores rounded to BF16 too, and
// the limits are no wider than that.
func TestLimitsOfRootsOfSoftplus(t *testing.T) {
	c := configtest.Fixture(t, "v4/checkpoint")
	for _, most := range []float64{0.1, 1, 8.7, 30, 200} {
		r := router{bias: make([]float32, c.MoE.NRoutedExperts)}
		zero := 0.0
		for e := range c.MoE.NRoutedExperts {
			r.Rows = append(r.Rows, row{Expert: e, Norm: &most, MaxLogit: &most, Bias: &zero})
		}
		l := r.plan(c).experts[0]
		score := func(x float64) float64 { return math.Sqrt(math.Max(x, 0) + math.Log1p(math.Exp(-math.Abs(x)))) }
		for step := -100.0; step <= 100; step++ {
			for _, s := range []float64{score(step / 100 * most * 257 / 256), score(step / 100 * most * 255 / 256)} {
				require.LessOrEqual(t, l.low, s*255/256)
				require.GreaterOrEqual(t, l.high, s*257/256)
			}
		}
		require.Less(t, l.high, 1.02*score(most))
		require.Greater(t, l.low, 0.97*score(-1.016*most))
	}
}

// chosenBy is noaux_tc: the k best of the best groups, by the sums of their two best.
func chosenBy(p *gatePlan, scores []float64) (chosen []int) {
	size := len(scores) / p.groups
	worth := make([]float64, p.groups)
	for g := range worth {
		worth[g] = bestTwo(slices.Clone(scores[g*size : (g+1)*size]))
	}
	order := ranked(worth)[:p.chosen]
	for _, e := range ranked(scores) {
		if len(chosen) < p.k && slices.Contains(order, e/size) {
			chosen = append(chosen, e)
		}
	}
	return chosen
}

// ranked returns the indexes, those of the largest numbers first.
func ranked(values []float64) []int {
	order := make([]int, len(values))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		if values[a] > values[b] {
			return -1
		}
		return 1
	})
	return order
}

// TestLogitsStayBelowTheBound, and come near it: for the hidden state along r∘w.
func TestLogitsStayBelowTheBound(t *testing.T) {
	s := inspecttest.Filled(t, "v3")
	rows, norm := s.Numbers(gateOf2), s.Numbers("model.layers.2.post_attention_layernorm.weight")
	bound := *routers(t, s, Options{Selection: inspect.Selection{Layers: inspecttest.Spans(t,
		"2")}}).Layers[0].Rows[5].MaxLogit
	logit := func(h []float64) float64 {
		mean, sum := 0.0, 0.0
		for _, v := range h {
			mean += v * v / 64
		}
		for i, v := range h {
			sum += v / math.Sqrt(mean+1e-6) * float64(norm[i]) * float64(rows[5*64+i])
		}
		return sum
	}
	r := rand.New(rand.NewPCG(1, 1))
	h, along := make([]float64, 64), make([]float64, 64)
	for range 1000 {
		for i := range h {
			h[i] = r.NormFloat64() * math.Exp(3*r.NormFloat64())
			along[i] = 1e3 * float64(norm[i]) * float64(rows[5*64+i])
		}
		require.LessOrEqual(t, math.Abs(logit(h)), bound)
	}
	require.InEpsilon(t, bound, logit(along), 1e-6)
}

// TestNothingIsProvenWithoutABias: -n is a token if n is.
func TestNothingIsProvenWithoutABias(t *testing.T) {
	s := inspecttest.Filled(t, "v2-group-yarn")
	for _, l := range routers(t, s, Options{}).Layers {
		s.Change(l.Tensor, func(values []float32) { clear(values[:64]) })
	}
	for _, l := range routers(t, s, Options{}).Layers {
		for _, row := range l.Rows {
			require.Empty(t, row.Proven)
		}
	}
}

// TestCoupling: rows that their experts were trained along are seen, also if they are numbered
// otherwise; random ones are not.
func TestCoupling(t *testing.T) {
	order := []int{0, 1, 5, 3, 4, 2, 6, 9, 8, 7, 10, 11, 12, 13, 14, 15}
	for name, c := range map[string]struct {
		strength float32
		row      func(e int) int
		verdict  string
		findings []string
	}{
		"own":      {0.5, func(e int) int { return e }, CoupledOwn, []string{}},
		"permuted": {0.5, func(e int) int { return order[e] }, CoupledPermuted, []string{"permuted 2 [2 5 7 9]"}},
		"none":     {0, func(e int) int { return e }, NotMeasurable, []string{}},
	} {
		s := inspecttest.Filled(t, "v3")
		rows := s.Numbers(gateOf2)
		r := rand.New(rand.NewPCG(7, 7))
		for e := range 16 {
			s.Change(inspecttest.ExpertName(2, e, "gate"), func(values []float32) {
				for n := range 24 {
					by := c.strength * float32(r.NormFloat64())
					for i := range 64 {
						values[n*64+i] += by * rows[c.row(e)*64+i]
					}
				}
			})
		}
		report := routers(t, s, Options{Coupling: true, Selection: inspect.Selection{Layers: inspecttest.Spans(t, "2")}})
		require.Equal(t, c.verdict, report.Layers[0].Coupling.Verdict, name)
		require.Equal(t, c.findings, append([]string{}, inspecttest.Kinds(report.Findings)...), name)
		if name == "permuted" {
			require.Equal(t, order, report.Layers[0].Coupling.Rows)
			require.Contains(t, report.Findings[0].Text, "gate_proj of experts 2, 5, 7, 9 fit the rows 5, 2, 9, 7")
		}
	}
	require.Nil(t, routers(t, inspecttest.Filled(t, "v3-fp8"), Options{}).Layers[0].Coupling)
	w := inspecttest.Filled(t, "v3").Weights()
	w.List = slices.DeleteFunc(w.List, func(x *weights.Weight) bool {
		return x.Name == inspecttest.ExpertName(2, 3,
			"gate")
	})
	lacking, err := Examine(t.Context(), w, Options{Coupling: true})
	require.NoError(t, err)
	require.Equal(t, NotChecked, lacking.Layers[0].Coupling.Verdict)
	require.Contains(t, inspecttest.Printed(t, lacking), "coupling to gate_proj: not checked")
}

// TestRoutersDoNotDependOnThreads.
func TestRoutersDoNotDependOnThreads(t *testing.T) {
	s := inspecttest.Filled(t, "v3")
	var documents []string
	for _, threads := range []int{1, 3} {
		w := s.Weights()
		w.Threads = threads
		r, err := Examine(t.Context(), w, Options{Coupling: true})
		require.NoError(t, err)
		document, err := json.Marshal(r)
		require.NoError(t, err)
		documents = append(documents, string(document))
	}
	require.Equal(t, documents[0], documents[1])
}

// TestRoutersAreCancelled: no report comes of reading that was called off.
func TestRoutersAreCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Examine(ctx, inspecttest.Filled(t, "v3").Weights(), Options{Coupling: true})
	require.ErrorIs(t, err, context.Canceled)
}

// TestRoutersThatCannotBe.
func TestRoutersThatCannotBe(t *testing.T) {
	s := inspecttest.Filled(t, "v3")
	_, err := Examine(t.Context(), s.Weights(), Options{Selection: inspect.Selection{Experts: inspecttest.Spans(t, "1")}})
	require.ErrorContains(t, err, "a router's rows are compared with each other")
	_, err = Examine(t.Context(), inspecttest.Filled(t, "v1-dense").Weights(), Options{})
	require.ErrorContains(t, err, "no router is selected, or there is none")
	s.Broken[gateOf2] = true
	_, err = Examine(t.Context(), s.Weights(), Options{})
	require.ErrorContains(t, err, gateOf2+": disk on fire")
	delete(s.Broken, gateOf2)
	s.Broken[inspecttest.ExpertName(2, 3, "gate")] = true
	_, err = Examine(t.Context(), s.Weights(), Options{Coupling: true})
	require.ErrorContains(t, err, inspecttest.ExpertName(2, 3, "gate")+": disk on fire")
}
