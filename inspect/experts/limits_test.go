package experts

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/inspect"
	"dsmoe/inspect/inspecttest"
)

// TestLimitsOfObservations: what grows with a factor is a finding from its limit on, a multiple of the layer's median,
// and not below it.
func TestLimitsOfObservations(t *testing.T) {
	t.Parallel()
	up, layer := inspecttest.ExpertName(2, 4, "up"), inspect.Selection{Layers: inspecttest.Spans(t, "2")}
	wide := inspecttest.Override(t, inspecttest.Filled(t, "v1-base").Config, "moe_intermediate_size", "96")
	for id, c := range map[string]struct {
		limit  float64
		change func(values []float32, by float32)
	}{
		"norm": {2, func(values []float32, by float32) { inspecttest.Row(0, len(values), inspecttest.Times(by))(values) }},
		"channel": {6, func(values []float32, by float32) {
			for i := 5; i < len(values); i += 64 {
				values[i] *= by
			}
		}},
		"neuron": {6, func(values []float32, by float32) { inspecttest.Row(3*64, 64, inspecttest.Times(by))(values) }},
	} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			inspecttest.Limit(t, wide, id, c.limit, func(s *inspecttest.Stored, by float64) {
				s.Change(up, func(values []float32) { c.change(values, float32(by)) })
			}, func(s *inspecttest.Stored) []inspect.Observation {
				return examined(t, s, Options{Selection: layer}).Findings
			})
		})
	}
}

// TestLimitOfErrors: an expert's error beside the original is told of from twice its layer's
// median on.
func TestLimitOfErrors(t *testing.T) {
	t.Parallel()
	for noise, want := range map[float64]int{1.94: 0, 2.06: 1} {
		a, b := inspecttest.Filled(t, "v1-base"), inspecttest.Filled(t, "v1-base")
		for e := range 16 {
			by := float32(1.03125)
			if e == 4 {
				by = float32(1 + 0.03125*noise)
			}
			for _, s := range []*inspecttest.Stored{a, b} { // in float32, which holds the products
				s.InFloat32(t, inspecttest.ExpertName(2, e, "up"))
			}
			a.Change(inspecttest.ExpertName(2, e, "up"), inspecttest.Row(0, 1536, inspecttest.Times(by)))
		}
		r, err := Against(t.Context(), a.Weights(), b.Weights(), Options{})
		require.NoError(t, err)
		require.Len(t, inspecttest.With(r.Findings, "conversion-error"), want, "%v", inspecttest.Kinds(r.Findings))
	}
}

// TestLimitOfCoarseness_every: magnitudes are coarse where fewer than three quarters of the layer's
// median differ.
func TestLimitOfCoarseness_every(t *testing.T) {
	t.Parallel()
	least, most := math.Inf(1), 0.0 // shares of the median: of those told of the largest, of others the smallest
	for rows := range 24 {          // all 24 are low-bits
		if (rows < 3 || rows > 9) && !configtest.Every(t) {
			continue
		}
		s := inspecttest.Filled(t, "v1-base")
		s.Change(inspecttest.ExpertName(2, 4, "up"), func(values []float32) { roundTo(64, 7)(values[:rows*64]) })
		r := examined(t, s, Options{Selection: inspect.Selection{Layers: inspecttest.Spans(t, "2")}})
		var distinct []*float64
		for _, e := range r.Layers[0].Experts {
			distinct = append(distinct, e.Up.Distinct)
		}
		share := *r.Layers[0].Experts[4].Up.Distinct / inspect.SpreadOf(distinct).Median
		if len(inspecttest.With(r.Findings, "coarse")) > 0 {
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
		s := inspecttest.Fill(t, inspecttest.Override(t, inspecttest.Filled(t, "v1-base").Config, "moe_intermediate_size",
			"300"))
		s.Change(inspecttest.ExpertName(2, 4, "up"), inspecttest.Row(0, 64*zeros, inspecttest.Times(0)))
		require.Len(t, examined(t, s, Options{}).Findings, want)
	}
}

// TestLeastPeers: of seven experts none is the odd one, of eight one is.
func TestLeastPeers(t *testing.T) {
	t.Parallel()
	for experts, want := range map[string]int{"0-6": 0, "0-7": 1} {
		s := inspecttest.Filled(t, "v1-base")
		s.Change(inspecttest.ExpertName(2, 4, "up"), inspecttest.Row(0, 1536, inspecttest.Times(8)))
		o := Options{Selection: inspect.Selection{Layers: inspecttest.Spans(t, "2"), Experts: inspecttest.Spans(t, experts)}}
		require.Len(t, examined(t, s, o).Findings, want, experts)
	}
}
