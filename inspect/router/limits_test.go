package router

import (
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
	inspecttest.Limit(t, "v3", "row-norm", 4, func(s *inspecttest.Stored, by float64) {
		s.Change(gateOf2, inspecttest.Row(3*64, 64, inspecttest.Times(float32(by))))
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

// TestCouplingLimits: rows fit from 6 standard deviations on; with another row than its own an
// expert is told of if its own stays below 3; half of the experts must fit.
func TestCouplingLimits(t *testing.T) {
	z := func(own, other float64, fit int) string {
		const n = 16
		q := make([][]float64, n)
		for e := range q {
			q[e] = make([]float64, n)
			for f := range q[e] {
				q[e][f] = 1
			}
			if e < fit {
				q[e][e] += own
				q[e][(e+1)%fit] += other
			}
		}
		c := couplingOf(q, 1)
		return strings.Fields(c.Verdict)[0]
	}
	require.Equal(t, "own", z(6.1, 0, 8))
	require.Equal(t, "not", z(5.9, 0, 8))
	require.Equal(t, "not", z(6.1, 0, 7))
	require.Equal(t, "permuted", z(2.9, 6.1, 16))
	require.NotEqual(t, "permuted", z(3.1, 6.1, 16))
	require.NotEqual(t, "permuted", z(2.9, 5.9, 16))
}
