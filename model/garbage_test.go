//go:build !race

package model_test

import (
	"context"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/synth"
)

// The race detector makes sync.Pool forget at random, so this is not for it.

// TestForwardMakesNoGarbage holds what a token costs in memory, once there was a pass of the same size, at its logits and
// one activation.
func TestForwardMakesNoGarbage(t *testing.T) {
	c, err := config.Parse(strings.NewReader(benchConfig))
	require.NoError(t, err)
	m, err := model.Load(c, held(t, synth.New(c, 1)))
	require.NoError(t, err)
	runtime.GC()                                     // buffers that other tests left could serve one of the passes below
	runtime.GC()                                     // pools keep what they hold for one collection
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it empties pools
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))  // each processor has its own
	allocated := func(tokens int) float64 {
		in := &model.Input{Batch: 1, Seq: tokens, InputIDs: make([]int, tokens)}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := m.Forward(context.Background(), in, model.Options{Accumulate: model.Float32, Parallelism: 1})
		runtime.ReadMemStats(&after)
		require.NoError(t, err)
		return float64(after.TotalAlloc - before.TotalAlloc)
	}
	const few, many = 8, 32
	allocated(many)
	most := allocated(many)
	allocated(few)
	perToken := (most - allocated(few)) / (many - few)
	require.Less(t, perToken, float64(4*c.VocabSize+4*c.HiddenSize))
}
