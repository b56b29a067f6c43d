package inspect

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model/tensor"
)

// in keeps of the findings those of an id.
func in(found []Observation, id string) (kept []Observation) {
	for _, o := range found {
		if o.ID == id {
			kept = append(kept, o)
		}
	}
	return kept
}

// inFloat32 stores the numbers of a tensor in F32.
func (s *stored) inFloat32(t *testing.T, name string) {
	values := s.numbersOf(name)
	retype(t, s.Checkpoint, name, tensor.F32)
	s.data[name] = make([]byte, 4*len(values))
	s.change(name, func(to []float32) { copy(to, values) })
}

// TestLimitsOfObservations: what grows with a factor is told of from its limit on, a
// multiple of the layer's median, and not below it.
func TestLimitsOfObservations(t *testing.T) {
	t.Parallel()
	up, down, layer := expertName(2, 4, "up"), expertName(2, 4, "down"), Selection{Layers: spans(t, "2")}
	experts := func(s *stored) []Observation { return s.examined(t, ExpertsOptions{Selection: layer}).Findings }
	routers := func(s *stored) []Observation { return s.routers(t, RouterOptions{Selection: layer}).Findings }
	for id, c := range map[string]struct {
		fixture string
		plant   func(s *stored, factor float64)
		look    func(s *stored) []Observation
		limit   float64
	}{
		"norm":     {"v1-base", func(s *stored, by float64) { s.change(up, row(0, 1536, times(float32(by)))) }, experts, 4},
		"channel":  {"v1-base", func(s *stored, by float64) { s.change(down, row(5*24, 24, times(float32(by)))) }, experts, 6},
		"neuron":   {"v1-base", func(s *stored, by float64) { s.change(up, row(3*64, 64, times(float32(by)))) }, experts, 6},
		"row-norm": {"v3", func(s *stored, by float64) { s.change(gateOf2, row(3*64, 64, times(float32(by)))) }, routers, 4},
	} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			planted := func(factor float64) []Observation {
				s := filled(t, c.fixture)
				c.plant(s, factor)
				return in(c.look(s), id)
			}
			const far = 24
			found := planted(far)
			require.Len(t, found, 1)
			one := far * *found[0].Expected / *found[0].Value // the factor that gives the median
			require.Len(t, planted(1.03*c.limit*one), 1)
			require.Empty(t, planted(0.97*c.limit*one))
		})
	}
}

// TestLimitOfErrors: an expert's error beside the original is told of from twice its layer's
// median on.
func TestLimitOfErrors(t *testing.T) {
	t.Parallel()
	for noise, want := range map[float64]int{1.94: 0, 2.06: 1} {
		a, b := filled(t, "v1-base"), filled(t, "v1-base")
		for e := range 16 {
			by := float32(1.03125)
			if e == 4 {
				by = float32(1 + 0.03125*noise)
			}
			for _, s := range []*stored{a, b} { // in float32, which holds the products
				s.inFloat32(t, expertName(2, e, "up"))
			}
			a.change(expertName(2, e, "up"), row(0, 1536, times(by)))
		}
		r, err := ExpertsAgainst(t.Context(), a.weights(), b.weights(), Selection{})
		require.NoError(t, err)
		require.Len(t, in(r.Findings, "error"), want, "%v", told(r.Findings))
	}
}

// TestLimitOfCoarseness: magnitudes are coarse where fewer than three quarters of the layer's
// median differ.
func TestLimitOfCoarseness(t *testing.T) {
	t.Parallel()
	least, most := math.Inf(1), 0.0 // shares of the median: of those told of the largest, of others the smallest
	for rows := range 25 {
		s := filled(t, "v1-base")
		s.change(expertName(2, 4, "up"), func(values []float32) { roundTo(64, 7)(values[:rows*64]) })
		r := s.examined(t, ExpertsOptions{Selection: Selection{Layers: spans(t, "2")}})
		var distinct []*float64
		for _, e := range r.Layers[0].Experts {
			distinct = append(distinct, e.Up.Distinct)
		}
		share := *r.Layers[0].Experts[4].Up.Distinct / spreadOf(distinct).Median
		if len(in(r.Findings, "coarse")) > 0 {
			most = max(most, share)
		} else {
			least = min(least, share)
		}
	}
	require.Less(t, most, 0.75)
	require.Greater(t, most, 0.70)
	require.GreaterOrEqual(t, least, 0.75)
	require.Less(t, least, 0.80)
}

// TestLimitOfZeroNeurons: one in a hundred more than in the layer's median.
func TestLimitOfZeroNeurons(t *testing.T) {
	t.Parallel()
	for zeros, want := range map[int]int{2: 0, 3: 1} {
		s := fill(t, override(t, filled(t, "v1-base").Config, "moe_intermediate_size", "300"))
		s.change(expertName(2, 4, "up"), row(0, 64*zeros, times(0)))
		require.Len(t, s.examined(t, ExpertsOptions{}).Findings, want)
	}
}

// TestLeastPeers: of two experts none is the odd one, of three one is.
func TestLeastPeers(t *testing.T) {
	t.Parallel()
	for experts, want := range map[string]int{"4,5": 0, "4-6": 1} {
		s := filled(t, "v1-base")
		s.change(expertName(2, 4, "up"), row(0, 1536, times(8)))
		o := ExpertsOptions{Selection: Selection{Layers: spans(t, "2"), Experts: spans(t, experts)}}
		require.Len(t, s.examined(t, o).Findings, want, experts)
	}
}

// TestFar: 8 robust standard deviations, and a factor.
func TestFar(t *testing.T) {
	v := 5.0
	require.True(t, (&Spread{Median: 1, MAD: 0.337}).far(&v, 4))
	require.False(t, (&Spread{Median: 1, MAD: 0.338}).far(&v, 4))
	require.True(t, (&Spread{Median: 1, MAD: 0.01}).far(&v, 5))
	require.False(t, (&Spread{Median: 1, MAD: 0.01}).far(&v, 5.01))
	v = 0.2
	require.True(t, (&Spread{Median: 1, MAD: 0.01}).far(&v, 5))
	require.False(t, (&Spread{Median: 1, MAD: 0.01}).far(&v, 5.01))
}

// TestLimitsOfRows: rows of a router are nearly equal from a cosine of 0.99 on, if neither norm
// is more than 1.1 times the other.
func TestLimitsOfRows(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cosine, factor float64
		want           int
	}{
		"cosine 0.9905": {0.9905, 1, 1}, "cosine 0.9895": {0.9895, 1, 0}, "norm × 1.09": {0.999, 1.09, 1}, "norm × 1.11": {0.999, 1.11, 0},
	} {
		s := filled(t, "v3")
		s.inFloat32(t, gateOf2)
		s.change(gateOf2, func(values []float32) {
			from, to := values[6*64:7*64], values[3*64:4*64]
			mixRows(to, from, c.cosine)
			times := float32(c.factor)
			for i := range to {
				to[i] *= times
			}
		})
		require.Len(t, in(s.routers(t, RouterOptions{}).Findings, "near-duplicate-row"), c.want, name)
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
