package router

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

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

// TestFallingSpectraFitNoRow: where few singular values count, rows that have nothing to do with an expert have
// energies of every size; no layer of 400 is coupled or permuted.
func TestFallingSpectraFitNoRow(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for rep := range 400 {
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
