package router

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/inspect"
	"dsmoe/inspect/inspecttest"
)

// TestLimitsOfRows: rows of a router are nearly equal from a cosine of 0.99 on, if neither norm
// is more than 1.1 times the other.
func TestLimitsOfRows(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cosine, factor float64
		want           int
	}{
		"cosine 0.9905": {0.9905, 1, 1}, "cosine 0.9895": {0.9895, 1, 0}, "norm × 1.09": {0.999, 1.09,
			1}, "norm × 1.11": {0.999, 1.11, 0},
	} {
		s := inspecttest.Filled(t, "v3")
		s.InFloat32(t, gateOf2)
		s.Change(gateOf2, func(values []float32) {
			from, to := values[6*64:7*64], values[3*64:4*64]
			inspecttest.MixRows(to, from, c.cosine)
			times := float32(c.factor)
			for i := range to {
				to[i] *= times
			}
		})
		require.Len(t, inspecttest.With(routers(t, s, Options{}).Findings, "near-duplicate-row"), c.want, name)
	}
}

// TestLimitOfNorms: a row's norm is a finding from 4 times the layer's median on.
func TestLimitOfNorms(t *testing.T) {
	t.Parallel()
	wide := inspecttest.Override(t, inspecttest.Filled(t, "v3").Config, "hidden_size", "256")
	inspecttest.Limit(t, wide, "row-norm", 4, func(s *inspecttest.Stored, by float64) {
		s.Change(gateOf2, inspecttest.Row(3*256, 256, inspecttest.Times(float32(by))))
	}, func(s *inspecttest.Stored) []inspect.Observation {
		return routers(t, s, Options{Selection: inspect.Selection{Layers: inspecttest.Spans(t, "2")}}).Findings
	})
}

// TestRandomRoutersAreFine: random weights have no finding, whatever the family.
func TestRandomRoutersAreFine(t *testing.T) {
	t.Parallel()
	for _, fixture := range []string{"v1-base", "v1-top1-noshared", "v2-group-yarn", "v3", "v3-fp8"} {
		require.Empty(t, routers(t, inspecttest.Filled(t, fixture), Options{Coupling: true}).Findings, fixture)
	}
}

// TestCouplingLimits: rows fit from inspect.Peers.Limit on, here 5.9 units; with another row than its own an expert is
// told of if its own stays below 3, and so does that row's own expert; half of the experts must fit.
func TestCouplingLimits(t *testing.T) {
	z := func(own, other float64, fit int) string {
		const n = 16
		r := rand.New(rand.NewPCG(1, 2))
		q := make([][]float64, n)
		for e := range q {
			q[e] = make([]float64, n)
			for f := range q[e] {
				q[e][f] = 1 + 0.1*r.NormFloat64()
			}
		}
		for e := range fit {
			q[e][e] = 1 + 0.1*own
			if other > 0 {
				q[e][(e+1)%fit] = 1 + 0.1*other
			}
		}
		for e := range q { // z is that of the cube root
			for f := range q[e] {
				q[e][f] = math.Pow(q[e][f], 3)
			}
		}
		return strings.Fields(couplingOf(q, 1).Verdict)[0]
	}
	require.Equal(t, "own", z(7, 0, 8))
	require.Equal(t, "not", z(5, 0, 8))
	require.Equal(t, "not", z(7, 0, 7))
	require.Equal(t, "permuted", z(2, 7, 16))
	require.NotEqual(t, "permuted", z(4, 7, 16))
	require.NotEqual(t, "permuted", z(2, 5, 16))
}

// TestCopiesAreNotPermuted: an expert with the weights of another fits that one's row, and so does that one.
func TestCopiesAreNotPermuted(t *testing.T) {
	s := inspecttest.Model(t, inspecttest.Kind{Coupling: 0.5}, 1)
	for _, pair := range [][2]int{{2, 5}, {7, 9}, {11, 3}} {
		for _, m := range []string{"gate", "up", "down"} {
			s.Data[inspecttest.ExpertName(3, pair[0], m)] = s.Data[inspecttest.ExpertName(3, pair[1], m)]
		}
	}
	r := routers(t, s, Options{Coupling: true})
	require.Empty(t, r.Findings)
	require.Equal(t, CoupledOwn, r.Layers[1].Coupling.Verdict)
}

// TestFallingSpectraFitNoRow_every: where few singular values count, rows that have nothing to do with an expert have
// energies of every size; no layer of 400 is coupled or permuted.
func TestFallingSpectraFitNoRow_every(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	layers := 100
	if configtest.Every(t) {
		layers = 400
	}
	for rep := range layers {
		n := 16 << (rep % 2)
		power := 0.5 + float64(rep%7)/2
		q := make([][]float64, n)
		for e := range q {
			q[e] = make([]float64, n)
			for f := range q[e] {
				for k := range 30 {
					v := r.NormFloat64() * math.Pow(float64(k+1), -power)
					q[e][f] += v * v
				}
			}
		}
		require.Equal(t, NotMeasurable, couplingOf(relative(q), 1).Verdict)
	}
}

// TestLimitsOfExchangedMatrices: up_proj that answers to its row as gate_proj of the others does is told of where these
// answer e^0.4 times as much in the median, and it that much less, half of it aside.
func TestLimitsOfExchangedMatrices(t *testing.T) {
	found := func(median, own float64) int {
		r := &router{layers: 1}
		for e := range 16 {
			r.excess = append(r.excess, median+0.01*float64(e%3-1))
		}
		r.excess[4] = own
		return len(r.exchangedMatrices())
	}
	require.Equal(t, 1, found(0.42, -0.42))
	require.Equal(t, 0, found(0.38, -0.38))
	require.Equal(t, 1, found(1, -0.52))
	require.Equal(t, 0, found(1, -0.48))
}

// TestLimitOfChoices: an expert is above another from 1e-4 on, which the sums of scores in float32 may be off by.
func TestLimitOfChoices(t *testing.T) {
	plan := func(by float64) *gatePlan {
		return &gatePlan{k: 1, groups: 1, chosen: 1, experts: []limits{{1 + by, 2}, {0, 1}}}
	}
	for by, proven := range map[float64]bool{1.03e-4: true, 0.97e-4: false} {
		require.Equal(t, proven, plan(by).always(0), by)
		require.Equal(t, proven, plan(by).never(1), by)
		require.False(t, plan(by).never(0) || plan(by).always(1))
	}
}

// TestCouplingOfMassiveChannels: rows of one norm or of many, channels that are massive in all weights that read the
// hidden state: the coupling shows, and with it whether rows belong to other experts. Without a coupling nothing shows.
func TestCouplingOfMassiveChannels(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ coupling, norms, channels float64 }{{0.3, 0, 1}, {0.3, 0.5, 8}, {0.2, 1, 30}, {0, 0.5, 8}, {0, 1, 30}} {
		for _, turned := range []bool{false, true} {
			s := inspecttest.Model(t, inspecttest.Kind{Coupling: c.coupling}, 3)
			r := rand.New(rand.NewPCG(4, 5))
			channels := func(values []float32) {
				for i := range values {
					if at := i % 96; at == 17 || at == 40 {
						values[i] *= float32(c.channels)
					}
				}
			}
			for layer := 2; layer < 8; layer++ {
				s.Change(fmt.Sprintf("model.layers.%d.mlp.gate.weight", layer), func(values []float32) {
					channels(values)
					for row := range slices.Chunk(values, 96) {
						inspecttest.Row(0, 96, inspecttest.Times(float32(math.Exp(c.norms*r.NormFloat64()))))(row)
					}
					if turned {
						copy(values, append(slices.Clone(values[96:]), values[:96]...))
					}
				})
				for e := range 16 {
					s.Change(inspecttest.ExpertName(layer, e, "gate"), channels)
				}
			}
			want := map[bool]string{false: CoupledOwn, true: CoupledPermuted}[turned]
			if c.coupling == 0 {
				want = NotMeasurable
			}
			for _, l := range routers(t, s, Options{Coupling: true}).Layers {
				require.Equal(t, want, l.Coupling.Verdict, "%v, layer %d", c, l.Layer)
			}
		}
	}
}

// TestDeadRowsHideNoCoupling: a row that is zero, and an expert that is, fit nothing, and the others still fit.
func TestDeadRowsHideNoCoupling(t *testing.T) {
	s := inspecttest.Model(t, inspecttest.Kind{Coupling: 0.5}, 1)
	s.Change("model.layers.4.mlp.gate.weight", inspecttest.Row(3*96, 96, inspecttest.Times(0)))
	s.Zero(inspecttest.ExpertName(5, 7, "gate"))
	r := routers(t, s, Options{Coupling: true})
	require.Equal(t, []string{"dead-row 4 [3]"}, inspecttest.Kinds(r.Findings))
	for _, l := range r.Layers {
		require.Equal(t, CoupledOwn, l.Coupling.Verdict, l.Layer)
	}
	require.Equal(t, -1, r.Layers[2].Coupling.Rows[3])
	require.Equal(t, -1, r.Layers[3].Coupling.Rows[7])
}
