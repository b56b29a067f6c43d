package experts

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/inspect"
)

// TestLimitsOfDrawnNumbers: RMS and kurtosis of the initial distributions, on both sides of their limits.
func TestLimitsOfDrawnNumbers(t *testing.T) {
	t.Parallel()
	const rows, cols, n = 32, 160, 32 * 160
	expert := func(rms, kurtosis [3]float64) *Expert {
		e := &Expert{facts: &facts{}}
		for i, role := range roles {
			*e.Of(role) = &MatrixNumbers{Shape: []int{rows, cols}, RMS: inspect.Finite(rms[i])}
			e.facts.matrices.Of(role).fourth = kurtosis[i] * n * math.Pow(rms[i], 4)
		}
		return e
	}
	for _, c := range []struct{ rms, kurtosis float64 }{{0.02, 3}, {0.02 / math.Sqrt(3), 1.8}} {
		offRMS := 0.01 + 6*math.Sqrt((c.kurtosis-1)/4/n)
		offKurtosis := 0.05 + 6*math.Sqrt(24.0/n)
		for _, side := range []float64{-1, 1} {
			for share, want := range map[float64]bool{0.97: true, 1.03: false} {
				for at := range 3 { // one matrix is enough
					r, k := [3]float64{c.rms, c.rms, c.rms}, [3]float64{c.kurtosis, c.kurtosis, c.kurtosis}
					r[at] *= 1 + side*share*offRMS
					require.Equal(t, want, expert(r, k).drawn(0.02), "RMS × %g", 1+side*share*offRMS)
					r[at] = c.rms
					k[at] += side * share * offKurtosis
					require.Equal(t, want, expert(r, k).drawn(0.02), "kurtosis + %g", side*share*offKurtosis)
				}
			}
		}
	}
	require.False(t, expert([3]float64{0, 0, 0}, [3]float64{3, 3, 3}).drawn(0), "no initializer_range")

	// Of many draws, one in 10⁷ or fewer is beyond the limits; numbers with somewhat heavier tails are none.
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var rms, kurtosis, heavy [3]float64
		for at := range 3 {
			var sum, tails [2]float64
			for range n {
				v := 0.02 * random.NormFloat64()
				w := v * math.Exp(0.3*random.NormFloat64()-0.09) // of the same RMS
				sum[0], sum[1] = sum[0]+v*v, sum[1]+v*v*v*v
				tails[0], tails[1] = tails[0]+w*w, tails[1]+w*w*w*w
			}
			rms[at], kurtosis[at] = math.Sqrt(sum[0]/n), sum[1]/sum[0]/sum[0]*n
			heavy[at] = tails[1] / tails[0] / tails[0] * n
		}
		require.True(t, expert(rms, kurtosis).drawn(0.02))
		require.False(t, expert(rms, heavy).drawn(0.02))
	}
}

// TestLimitsOfRandomRanks: an expert looks random from 0.85 of the rank of random numbers on, if the layer's median
// expert has less than 0.6; if it is drawn from the initial distribution, if that has less than 0.85.
func TestLimitsOfRandomRanks(t *testing.T) {
	t.Parallel()
	found := func(own, others float64, drawn bool) int {
		r := &Layer{}
		for _, role := range roles {
			*r.Of(role) = &MatrixSpread{NullStableRank: 10}
		}
		for i := range 12 {
			e := Expert{Expert: i, Module: "m", facts: &facts{}}
			rank, fourth := others*(1+0.002*float64(i%3)), 9.0 // not of initial numbers
			if i == 4 {
				if rank = own; drawn {
					fourth = 3
				}
			}
			for _, role := range roles {
				*e.Of(role) = &MatrixNumbers{Shape: []int{100, 100}, RMS: inspect.Finite(0.02), StableRank: inspect.Finite(10 * rank)}
				e.facts.matrices.Of(role).fourth = fourth * 1e4 * math.Pow(0.02, 4)
			}
			r.Experts = append(r.Experts, e)
		}
		return len(r.untrained(1, 0.02))
	}
	for _, drawn := range []bool{false, true} {
		require.Equal(t, 1, found(0.86, 0.3, drawn))
		require.Equal(t, 0, found(0.84, 0.3, drawn))
		require.Equal(t, 1, found(0.95, 0.58, drawn))
	}
	require.Equal(t, 0, found(0.95, 0.61, false))
	require.Equal(t, 1, found(0.95, 0.83, true))
	require.Equal(t, 0, found(0.95, 0.86, true))
}

// TestLimitsOfUntrainedLayers: every expert of the layer from 0.85 on, no other layer's, and their median below 0.6.
func TestLimitsOfUntrainedLayers(t *testing.T) {
	t.Parallel()
	layer := func(ranks ...float64) (r Layer) {
		for _, role := range roles {
			*r.Of(role) = &MatrixSpread{NullStableRank: 10}
		}
		for i := range 8 {
			e := Expert{Expert: i, Module: "m", facts: &facts{}}
			for _, role := range roles {
				*e.Of(role) = &MatrixNumbers{Shape: []int{9, 9}, StableRank: inspect.Finite(10 * ranks[i%len(ranks)])}
			}
			r.Experts = append(r.Experts, e)
		}
		return r
	}
	found := func(layers ...Layer) int { return len(untrainedLayers(layers)) }
	trained := layer(0.3)
	require.Equal(t, 1, found(layer(0.86), trained, trained))
	require.Equal(t, 0, found(layer(0.86, 0.84), trained, trained))
	require.Equal(t, 0, found(layer(0.86), trained), "too few layers")
	require.Equal(t, 1, found(layer(0.95), layer(0.3, 0.84), trained))
	require.Equal(t, 0, found(layer(0.95), layer(0.3, 0.86), trained))
	require.Equal(t, 1, found(layer(0.95), layer(0.58), layer(0.58)))
	require.Equal(t, 0, found(layer(0.95), layer(0.61), layer(0.61)))
}
