package bounds

import (
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// TestRoundsTo: a value is the only one if 8 σ do not reach the middle between it and the next one.
func TestRoundsTo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		sigma float32 // in units of u
		only  bool
	}{{0, true}, {0x1p16 / Lambda * 0.99, true}, {0x1p16 / Lambda * 1.01, false}} {
		x := &Value{Activation: &model.Activation{Shape: []int{1}, Values: []float32{1 + 0x1p-7}, DType: tensor.BF16},
			sigma: &model.Activation{Values: []float32{c.sigma}}}
		y, only := x.RoundsTo(0)
		require.Equal(t, float32(1+0x1p-7), y)
		require.Equal(t, c.only, only, c.sigma)
	}
}

// TestSchedules cut sums in two forms, which are one where K allows only one.
func TestSchedules(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		s       Schedule
		k, part int
		cuts    bool
	}{
		{Schedule{Parts: 4}, 192, 64, false}, {Schedule{Parts: 4}, 256, 64, true}, {Schedule{Parts: 4}, 200, 64, true},
		{Schedule{Parts: 4, Even: true}, 200, 50, true}, {Schedule{Parts: 4, Even: true}, 256, 64, false},
		{Schedule{Parts: 4, Even: true}, 202, 202, false},
		{Schedule{Terms: 8}, 20, 8, true}, {Schedule{Terms: 8}, 8, 8, false},
	} {
		if c.cuts {
			require.Equal(t, c.part, c.s.part(c.k), c)
		}
		require.Equal(t, c.cuts, c.s.Cuts(c.k), c)
	}
}
