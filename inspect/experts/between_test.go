package experts

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/inspect"
	"dsmoe/inspect/inspecttest"
	"dsmoe/model/weights"
)

// TestCompareLayers: an expert that is another layer's with its neurons in another order, a noisy copy, and a shared
// expert that begins with a routed one, are found among experts that are not alike.
func TestCompareLayers(t *testing.T) {
	s := inspecttest.Filled(t, "v1-base")
	const hidden = 64
	width := s.Weights().List[slices.IndexFunc(s.Weights().List, func(w *weights.Weight) bool { return w.Name == inspecttest.ExpertName(1, 0, "gate") })].Shape[0]
	copied := func(layer, expert, toLayer, toExpert int, change func(v float32) float32) {
		for _, matrix := range []string{"gate", "up", "down"} {
			from := s.Numbers(inspecttest.ExpertName(layer, expert, matrix))
			s.Change(inspecttest.ExpertName(toLayer, toExpert, matrix), func(values []float32) {
				for n := range width {
					for c := range hidden {
						at, to := n*hidden+c, (n+5)%width*hidden+c
						if matrix == "down" {
							at, to = c*width+n, c*width+(n+5)%width
						}
						values[to] = change(from[at])
					}
				}
			})
		}
	}
	copied(1, 3, 3, 7, func(v float32) float32 { return v })
	flip := 0
	copied(1, 4, 2, 9, func(v float32) float32 { flip++; return v * (1 + 0.2*float32(flip%3-1)) })
	sharedWidth := 0
	for _, matrix := range []string{"gate", "up", "down"} {
		from := s.Numbers(inspecttest.ExpertName(2, 11, matrix))
		s.Change("model.layers.2.mlp.shared_experts."+matrix+"_proj.weight", func(values []float32) {
			clear(values)
			sharedWidth = len(values) / hidden
			if matrix != "down" {
				copy(values, from)
				return
			}
			for c := range hidden {
				copy(values[c*sharedWidth:], from[c*width:(c+1)*width])
			}
		})
	}
	require.Greater(t, sharedWidth, width)

	r, err := CompareLayers(t.Context(), s.Weights(), inspect.Selection{})
	require.NoError(t, err)
	require.Len(t, r.Pairs, 3)
	same := r.Pairs[1]
	assert.Equal(t, [2][2]int{{1, 3}, {3, 7}}, [2][2]int{same.Layers, same.Experts})
	assert.InDelta(t, 1, same.Function, 1e-5)
	assert.InDelta(t, 1, *same.Weights, 1e-9)
	assert.True(t, same.Equal)
	near := r.Pairs[0]
	assert.Equal(t, [2][2]int{{1, 2}, {4, 9}}, [2][2]int{near.Layers, near.Experts})
	assert.Greater(t, near.Function, 2*r.Chance)
	assert.InDelta(t, 0.98, *near.Weights, 0.02)
	assert.False(t, near.Equal)
	unlike := r.Pairs[2]
	assert.Equal(t, [2]int{2, 3}, unlike.Layers)
	assert.Less(t, inspect.Magnitude(unlike.Function), 1.5*r.Chance)
	assert.Less(t, inspect.Magnitude(*unlike.Weights), 0.4)

	require.Len(t, r.Shared, 3)
	assert.Equal(t, []int{2, 11}, []int{r.Shared[1].Layer, r.Shared[1].Expert})
	assert.InDelta(t, 1, r.Shared[1].Function, 1e-5)
	assert.Less(t, inspect.Magnitude(r.Shared[0].Function), 1.5*r.Chance)
	rows := r.Sheet(2).Rows()
	require.Len(t, rows, 2)
	assert.Equal(t, []string{"1", "3", "3", "7"}, []string{rows[0][0].Exact, rows[0][1].Exact, rows[0][2].Exact, rows[0][3].Exact})
	assert.Len(t, r.SharedSheet().Rows(), 3)
	assert.NotNil(t, r.Figure())

	one := s.Weights()
	one.Threads = 1
	again, err := CompareLayers(t.Context(), one, inspect.Selection{})
	require.NoError(t, err)
	assert.Equal(t, r, again)
}

// TestCompareLayersOfFew: one layer has no pairs, experts that are zero or not whole are left out, and the context ends it.
func TestCompareLayersOfFew(t *testing.T) {
	s := inspecttest.Filled(t, "v1-base")
	r, err := CompareLayers(t.Context(), s.Weights(), inspect.Selection{Layers: inspecttest.Spans(t, "2")})
	require.NoError(t, err)
	assert.Empty(t, r.Pairs)
	assert.Nil(t, r.Figure())

	for e := range 16 {
		s.Zero(inspecttest.ExpertName(2, e, "down"))
	}
	r, err = CompareLayers(t.Context(), s.Weights(), inspect.Selection{Layers: inspecttest.Spans(t, "1-2")})
	require.NoError(t, err)
	assert.Empty(t, r.Pairs)
	r, err = CompareLayers(t.Context(), s.Weights(), inspect.Selection{Match: []string{"*.up_proj.weight"}})
	require.NoError(t, err)
	assert.Empty(t, r.Pairs)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = CompareLayers(ctx, s.Weights(), inspect.Selection{})
	assert.ErrorIs(t, err, context.Canceled)
}

// TestSummedUp: long functions are shortened without losing what cosines say.
func TestSummedUp(t *testing.T) {
	long, scaled := make([]float32, 3*sketchSize), make([]float32, 3*sketchSize)
	for i := range long {
		long[i] = float32(i%17) - 8
		scaled[i] = -3 * long[i]
	}
	a, b := summedUp(long), summedUp(scaled)
	require.Len(t, a, sketchSize)
	_, _, cosine := largest(a, b, sketchSize)
	assert.InDelta(t, -1, cosine, 1e-5)
	assert.Nil(t, summedUp(make([]float32, 8)))
}
