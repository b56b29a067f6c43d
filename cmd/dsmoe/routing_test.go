package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/inspect/routing"
)

// recordedRouting is what numpy makes of the stages of a layer's gate.
type recordedRouting struct {
	Tokens              int
	Counts              []int
	Entropy, MaxVio, CV float64
	Mass                []float64
	Pairs               [][3]int
	Margins             struct {
		Tokens, Ties          int
		Min, Q01, Q10, Median float64
	}
}

// TestInspectedRouting: the numbers of golden packs are those that numpy gives
// (scripts/inspect_values.py), by layer, expert and pair, groups, biases, padding, ties and
// prediction layers among them.
func TestInspectedRouting(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(filepath.Join("testdata", "inspect_routing.json"))
	require.NoError(t, err)
	var fixtures map[string]map[string]recordedRouting
	require.NoError(t, json.Unmarshal(data, &fixtures))
	require.Len(t, fixtures, 6)
	for name, layers := range fixtures {
		dir := filepath.Join("..", "..", "fixtures", name)
		var r routing.Report
		document(t, &r, "inspect", "routing", filepath.Join(dir, "golden-f32"), "--config", filepath.Join(dir, "checkpoint"), "--by", "pair", "--json")
		require.Len(t, r.Layers, len(layers), name)
		assert.Empty(t, r.Missing, name)
		for _, l := range r.Layers {
			sameRouting(t, layers[strconv.Itoa(l.Layer)], l)
		}
	}
}

func sameRouting(t *testing.T, want recordedRouting, l routing.Layer) {
	t.Helper()
	const near = 1e-12
	require.Equal(t, want.Tokens, l.Tokens)
	assert.InDelta(t, want.Entropy, l.Entropy, near)
	assert.InDelta(t, want.MaxVio, l.MaxVio, near)
	assert.InDelta(t, want.CV, l.CV, near)
	total := 0.0
	for i, e := range l.Experts {
		assert.Equal(t, want.Counts[e.Expert], e.Tokens)
		assert.Equal(t, i, e.Expert)
		assert.InDelta(t, want.Mass[e.Expert], *e.Mass, near)
		assert.InDelta(t, want.Mass[e.Expert]/float64(l.Tokens), *e.MeanWeight, near)
		total += *e.Mass
	}
	assert.Len(t, l.Experts, len(want.Counts))
	assert.InDelta(t, total/float64(l.Tokens), *l.Mass, near)
	pairs := [][3]int{}
	for _, p := range l.Pairs {
		a, b := p.Experts[0], p.Experts[1]
		pairs = append(pairs, [3]int{a, b, p.Tokens})
		assert.InDelta(t, float64(want.Counts[a]*want.Counts[b])/float64(want.Tokens), p.Expected, near)
		assert.InDelta(t, float64(p.Tokens)/float64(want.Counts[a]), p.Second, near)
		assert.InDelta(t, float64(p.Tokens)/float64(want.Counts[b]), p.First, near)
	}
	assert.Equal(t, want.Pairs, pairs)
	m := l.Margins
	assert.Equal(t, []int{want.Margins.Tokens, want.Margins.Ties, 0}, []int{m.Tokens, m.Ties, m.Below})
	const ulps = 2e-7 // of scores that are rounded to float32
	assert.InDelta(t, want.Margins.Min, *m.Min, ulps)
	assert.InDelta(t, want.Margins.Q01, *m.Q01, ulps)
	assert.InDelta(t, want.Margins.Q10, *m.Q10, ulps)
	assert.InDelta(t, want.Margins.Median, *m.Median, ulps)
}

// TestForwardRouting: our own forward pass routes a pack's tokens as the reference did, whatever
// the form of the checkpoint.
func TestForwardRouting(t *testing.T) {
	t.Parallel()
	for checkpoint, golden := range map[string]string{
		"v1-base/checkpoint": "v1-base/golden-f32", "v2-group-yarn/checkpoint": "v2-group-yarn/golden-f32", "v3/checkpoint-fused": "v3/golden-f32",
		"v3-fp8/checkpoint": "v3-fp8/golden-f32",
	} {
		dir := filepath.Join("..", "..", "fixtures")
		var ours, recorded routing.Report
		document(t, &ours, "inspect", "routing", filepath.Join(dir, checkpoint), "--tokens", filepath.Join(dir, golden, "inputs.safetensors"), "--by", "pair", "--json")
		document(t, &recorded, "inspect", "routing", filepath.Join(dir, golden), "--config", filepath.Join(dir, checkpoint), "--by", "pair", "--json")
		require.Len(t, ours.Layers, len(recorded.Layers))
		for i, l := range ours.Layers {
			want := recorded.Layers[i]
			assert.Equal(t, want.Pairs, l.Pairs)
			assert.Equal(t, want.Entropy, l.Entropy)
			assert.Equal(t, want.Unreached, l.Unreached)
			assert.InDelta(t, *want.Mass, *l.Mass, 1e-5)
			assert.InDelta(t, *want.Margins.Median, *l.Margins.Median, 1e-5)
		}
		assert.Equal(t, []int{recorded.Tokens, recorded.Padding, recorded.Sequences}, []int{ours.Tokens, ours.Padding, ours.Sequences})
	}
}
