package model_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
)

// expertStage is the name of a stage of expert e in layer l.
func expertStage(l, e int, stage string) string {
	return fmt.Sprintf("model.layers.%d.mlp.experts.%d.%s", l, e, stage)
}

// choosing returns the tokens that chose expert e, by topk_idx [tokens, k].
func choosing(idx []int, k, e int) (tokens []int) {
	for slot, chosen := range idx {
		if chosen == e {
			tokens = append(tokens, slot/k)
		}
	}
	return tokens
}

// TestProbes: an expert gives for a row of a probe what it gives for the token that is this row
// and chose it, in the decoder and in a prediction layer; nothing else changes, and the pages of
// each expert are let go when it has run.
func TestProbes(t *testing.T) {
	c, src := predicting(t)
	m, err := model.Load(c, src)
	require.NoError(t, err)
	course := model.WholeCourse[*model.Activation](m, 2)
	plain, err := during(m, course, model.Options{})
	require.NoError(t, err)

	all := make([]int, c.MoE.NRoutedExperts)
	for e := range all {
		all[e] = e
	}
	p := &pages{map[*byte]int{}, map[*byte]int{}}
	probes := map[int]model.Probe{1: {Rows: []int{0, 2}, Experts: all}, 2: {Rows: []int{1}, Experts: all}}
	probed, err := during(m, course, model.Options{Probes: probes, Pages: p})
	require.NoError(t, err)
	for stage, x := range plain.stages {
		require.Equal(t, x, probed.stages[stage], stage)
	}
	compared := 0
	for l, probe := range probes {
		for _, e := range all {
			out := probed.stages[expertStage(l, e, "probe.output")]
			require.Equal(t, []int{len(probe.Rows), c.HiddenSize}, out.Shape)
			tokens := choosing(probed.idx[l], c.MoE.NumExpertsPerTok, e)
			for i, row := range probe.Rows {
				if at := slices.Index(tokens, row); at >= 0 {
					require.Equal(t, probed.stages[expertStage(l, e, "output")].Row(at), out.Row(i), "layer %d, expert %d", l, e)
					compared++
				}
			}
			require.Equal(t, 2, p.dropped[&m.Layer(l).MoE.Experts[e].DownProj.Weight.Data[0]], "behind the probe, and behind the layer")
		}
	}
	require.Greater(t, compared, 3)
	extra := 0
	for stage := range probed.stages {
		if strings.Contains(stage, ".probe.") {
			extra++
		}
	}
	require.Equal(t, 2*4*len(all), extra, "gate_proj, up_proj, down_proj's input and the output of each")
}

// TestProbesThatAreNot: rows and experts that do not exist end the pass.
func TestProbesThatAreNot(t *testing.T) {
	c, src := predicting(t)
	m, err := model.Load(c, src)
	require.NoError(t, err)
	for want, probes := range map[string]map[int]model.Probe{
		"probes of layer 1: row 3 is not one of 3":    {1: {Rows: []int{0, 3}, Experts: []int{0}}},
		"probes of layer 2: row 2 is not one of 2":    {2: {Rows: []int{2}, Experts: []int{0}}}, // a prediction layer, one token ahead
		"probes of layer 1: row -1 is not one of 3":   {1: {Rows: []int{-1}, Experts: []int{0}}},
		"probes of layer 1: expert 99 is not one of ": {1: {Rows: []int{0}, Experts: []int{1, 99}}},
		fmt.Sprintf("probes of layer 1: expert %d is not one of %[1]d", c.MoE.NRoutedExperts): {1: {Rows: []int{0},
			Experts: []int{c.MoE.NRoutedExperts}}},
	} {
		_, err := during(m, model.WholeCourse[*model.Activation](m, 1), model.Options{Probes: probes})
		require.ErrorContains(t, err, want)
	}
}
