package verify_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// probesF32 is a pack of five tokens and one of padding, with probes of all experts that the
// tokens did not choose.
const probesF32 = "v3/golden-probes-f32"

// probed lists the experts of a layer that a pack has probes of.
func probed(p *pack.Pack, layer int) []int { return p.Manifest.Probes[strconv.Itoa(layer)].Experts }

// expertWeight is the name of a projection of a routed expert.
func expertWeight(layer, e int, projection string) string {
	return fmt.Sprintf("model.layers.%d.mlp.experts.%d.%s.weight", layer, e, projection)
}

// probeOf is the stage of a probe.
func probeOf(layer, e int) string {
	return fmt.Sprintf("model.layers.%d.mlp.experts.%d.probe.output", layer, e)
}

// exchanged is a source in which two experts of a layer have each other's weights.
func exchanged(t *testing.T, src weights.Source, layer, a, b int) altered {
	t.Helper()
	var pairs []string
	for _, projection := range []string{"gate_proj", "up_proj", "down_proj"} {
		pairs = append(pairs, expertWeight(layer, a, projection), expertWeight(layer, b, projection))
	}
	return swap(t, src, pairs...)
}

// withoutProbes takes the probes of a layer out of a manifest, but for those of the first experts.
func withoutProbes(layer string, but int) func(t *testing.T, dir string, m map[string]any) {
	return func(t *testing.T, dir string, m map[string]any) {
		probes := m["probes"].(map[string]any)
		probe := probes[layer].(map[string]any)
		gone := probe["experts"].([]any)[but:]
		if probe["experts"] = probe["experts"].([]any)[:but]; but == 0 {
			delete(probes, layer)
		}
		dropping(func(name string) bool {
			return slices.ContainsFunc(gone, func(e any) bool { return name == fmt.Sprintf("model.layers.%s.mlp.experts.%v.probe.output", layer, e) })
		})(t, dir, m)
	}
}

// TestProbesCoverExperts: with probes every weight of a layer is checked, by tokens of which
// fewer than half of its experts saw one, and the reports count them apart.
func TestProbesCoverExperts(t *testing.T) {
	t.Parallel()
	for _, accumulate := range []model.Accumulator{model.Float64, model.Float32} {
		c, p := open(t, probesF32)
		r := run(t, c.Config, c, p, verify.Options{Accumulate: accumulate})
		require.Equal(t, report.Pass, r.Verdict, "%v %v", r.FirstDivergence, r.Reasons)
		probes := 0
		for layer := range 5 {
			probes += len(probed(p, layer))
		}
		require.Equal(t, 48, r.Coverage.Experts)
		require.Equal(t, 48, r.Coverage.ExpertsReached+r.Coverage.ExpertsProbed)
		require.Equal(t, probes, r.Coverage.ExpertsProbed)
		require.Equal(t, r.Coverage.Weights, r.Coverage.WeightsChecked+1)
		require.Equal(t, []string{"model.layers.3.mlp.gate.e_score_correction_bias"}, r.Coverage.WeightsUnpinned, "five tokens")
		require.Empty(t, r.Coverage.Unreached)
		require.Equal(t, r.Coverage.GoldenTensors, r.Coverage.GoldenChecked)
		unprobed := must(pack.Open(edited(t, probesF32, withoutProbes("2", 0))))
		require.Equal(t, run(t, c.Config, c, unprobed, verify.Options{Accumulate: accumulate}).Routing, r.Routing, "probes choose nothing")
		requireFiles(t, r)
		counted, passed := fmt.Sprintf("48 of 48 routed experts (%d by probes)", probes), fmt.Sprintf("PASS (48 of 48 experts, %d of them by probes, 212 of 213 weights exercised, 1 not pinned)", probes)
		for _, written := range []string{printed(t, r), junit(t, r), html(t, r)} {
			require.Contains(t, written, counted)
			require.Contains(t, written, passed)
		}
		at := slices.IndexFunc(r.Checks, func(c report.Check) bool { return c.Tensor == probeOf(3, 9) })
		require.Equal(t, p.Manifest.Probes["3"].Rows, r.Checks[at].ProbeRows)
		require.NotNil(t, r.Checks[at].NeuronZ, "each probe is an MLP of its own")
		require.Equal(t, "model.layers.3.mlp.experts.output", r.Checks[at-slices.Index(probed(p, 3), 9)-1].Tensor, "behind the routed sum")
	}
}

// TestProbesThatCoverTooLittle: a layer of which tokens and probes reach one expert less than
// half proves too little, and with that one enough.
func TestProbesThatCoverTooLittle(t *testing.T) {
	t.Parallel()
	c, p := open(t, probesF32)
	tokens := 16 - len(probed(p, 3))
	require.Less(t, tokens, 8)
	for probes := range 8 - tokens + 1 {
		r := run(t, c.Config, c, must(pack.Open(edited(t, probesF32, withoutProbes("3", probes)))), verify.Options{})
		require.Equal(t, probed(p, 3)[probes:], r.Coverage.Unreached[0].Experts)
		require.Contains(t, printed(t, r), "model.layers.3: neither a token nor a probe reached experts ")
		switch {
		case tokens+probes == 8:
			require.Equal(t, report.Pass, r.Verdict, "%v", r.Reasons)
		case probes == 0:
			require.Equal(t, []string{fmt.Sprintf("model.layers.3: the pack's tokens reach %d of 16 routed experts", tokens)}, r.Reasons)
		default:
			require.Equal(t, []string{fmt.Sprintf("model.layers.3: the pack's tokens and probes reach %d of 16 routed experts", tokens+probes)}, r.Reasons)
		}
	}
}

// TestWrongWeightsOfExpertsThatNoTokenChose: one weight of any projection of any of them fails
// at its probe, and nothing else does; without probes it passes.
func TestWrongWeightsOfExpertsThatNoTokenChose(t *testing.T) {
	t.Parallel()
	c, p := open(t, probesF32)
	for _, layer := range []int{2, 3, 4} {
		for _, e := range probed(p, layer) {
			for i, projection := range []string{"gate_proj", "up_proj", "down_proj"} {
				name := expertWeight(layer, e, projection)
				w := get(t, c, name)
				src := replace(c, name, scaled(t, w, 2, largest(t, row(w, e+i), w)))
				r := run(t, c.Config, src, p, verify.Options{Undiagnosed: true, Layers: must(text.ParseSpans(strconv.Itoa(layer), "layers"))})
				require.Equal(t, []string{probeOf(layer, e)}, failed(r), name)
				require.Contains(t, printed(t, r), fmt.Sprintf("expert %d was run on rows 0, 1, 4, 5 of post_attention_layernorm.output, whatever the gate chose", e))
			}
		}
	}
	name := expertWeight(2, probed(p, 2)[1], "up_proj")
	w := get(t, c, name)
	blind := must(pack.Open(edited(t, probesF32, withoutProbes("2", 0))))
	r := run(t, c.Config, replace(c, name, scaled(t, w, 2, row(w, 3)...)), blind, verify.Options{})
	require.NotEqual(t, report.Fail, r.Verdict)
}

// largest is that of some elements of a weight which is furthest from zero.
func largest(t *testing.T, elements []int, w tensor.Tensor) (at int) {
	t.Helper()
	values := must(w.Float32s(nil))
	at = elements[0]
	for _, i := range elements {
		if values[i]*values[i] > values[at]*values[at] {
			at = i
		}
	}
	return at
}

// failed lists the checks that failed.
func failed(r *report.Report) (names []string) {
	for _, c := range r.Checks {
		if c.Verdict == report.Fail {
			names = append(names, c.Tensor)
		}
	}
	return names
}

// TestNeuronsOfProbesAreNamed: a row of up_proj that is a little off, in an expert that no token
// chose.
func TestNeuronsOfProbesAreNamed(t *testing.T) {
	t.Parallel()
	c, p := open(t, probesF32)
	e := probed(p, 3)[4]
	name := expertWeight(3, e, "up_proj")
	w := get(t, c, name)
	r := run(t, c.Config, replace(c, name, scaled(t, w, 1.1, row(w, 5)...)), p, verify.Options{})
	requireFails(t, r, probeOf(3, e), "")
	check := r.Checks[slices.IndexFunc(r.Checks, func(c report.Check) bool { return c.Tensor == probeOf(3, e) })]
	require.Equal(t, []int{e, 5}, []int{check.Neuron.Expert, check.Neuron.Index})
	require.Contains(t, printed(t, r), fmt.Sprintf("expert %d, neuron 5: z ", e))
}

// TestMistakesInExpertsThatNoTokenChose are named.
func TestMistakesInExpertsThatNoTokenChose(t *testing.T) {
	t.Parallel()
	c, p := open(t, probesF32)
	idle, busy := probed(p, 3), []int{}
	for e := range 16 {
		if !slices.Contains(idle, e) {
			busy = append(busy, e)
		}
	}
	for name, test := range map[string]struct {
		src                weights.Source
		stage, cause, text string
	}{
		"gate and up": {swap(t, c, expertWeight(3, idle[2], "gate_proj"), expertWeight(3, idle[2], "up_proj")), probeOf(3, idle[2]),
			"gate-up-swapped", fmt.Sprintf("gate_proj and up_proj of expert %d are exchanged", idle[2])},
		"two": {exchanged(t, c, 3, idle[1], idle[3]), probeOf(3, idle[1]), "experts-swapped", fmt.Sprintf("experts %d and %d are exchanged", idle[1], idle[3])},
		"one and another that tokens chose": {exchanged(t, c, 3, busy[1], idle[0]), "model.layers.3.mlp.experts.output", "experts-swapped",
			fmt.Sprintf("experts %d and %d are exchanged", min(busy[1], idle[0]), max(busy[1], idle[0]))},
		"all in the order of their names": {lexicographic(t, c, c.Config), "model.layers.2.mlp.experts.output", "expert-order", ""},
		"a weight that nothing explains": {replace(c, expertWeight(3, idle[0], "down_proj"), scaled(t, get(t, c, expertWeight(3, idle[0], "down_proj")), -1, 7)),
			probeOf(3, idle[0]), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := run(t, c.Config, test.src, p, verify.Options{})
			requireFails(t, r, test.stage, test.cause)
			if test.text != "" {
				require.Equal(t, test.text, r.Cause.Text)
			}
		})
	}
}

// TestProbesExplainWhichExpertsAreExchanged: that of two experts which tokens chose explains the
// routed sum, but not the probe of a third.
func TestProbesExplainWhichExpertsAreExchanged(t *testing.T) {
	t.Parallel()
	c, p := open(t, probesF32)
	e := probed(p, 3)[0]
	src := exchanged(t, c, 3, e, probed(p, 3)[1])
	name := expertWeight(3, probed(p, 3)[2], "up_proj")
	src.tensors[name] = scaled(t, get(t, c, name), 2, row(get(t, c, name), 1)...)
	requireFails(t, run(t, c.Config, src, p, verify.Options{}), probeOf(3, e), "")
}

// TestChainedModeRunsNoProbes, says so, and takes no expert for covered that only a probe reached.
func TestChainedModeRunsNoProbes(t *testing.T) {
	t.Parallel()
	c, p := open(t, probesF32)
	r := run(t, c.Config, c, p, verify.Options{Mode: report.Chained})
	require.Equal(t, report.Inconclusive, r.Verdict)
	require.Len(t, r.Reasons, 1)
	require.Regexp(t, `^model\.layers\.3: the pack's tokens reach \d of 16 routed experts; probes of others are run in local mode only$`, r.Reasons[0])
	require.Zero(t, r.Coverage.ExpertsProbed)
	require.Equal(t, probed(p, 3), r.Coverage.Unreached[1].Experts)
	for _, c := range r.Checks {
		if strings.Contains(c.Tensor, ".probe.") {
			require.Equal(t, report.Skipped, c.Verdict)
			require.Equal(t, "chained mode runs no probes: no layer's output depends on them", c.Reason)
			require.Contains(t, r.Coverage.GoldenUnchecked, c.Tensor)
		}
	}
}

// TestProbesAreSelected like other stages, and only these are run.
func TestProbesAreSelected(t *testing.T) {
	t.Parallel()
	c, p := open(t, probesF32)
	r := run(t, c.Config, c, p, verify.Options{Stages: []string{"mlp.experts.*.probe.output"}})
	require.Equal(t, report.Pass, r.Verdict, "%v", r.Reasons)
	require.Len(t, r.Checks, 21)
	require.Equal(t, 21, r.Coverage.ExpertsProbed)
	require.Equal(t, 3*21, r.Coverage.WeightsChecked)

	e := probed(p, 2)[0]
	wrong := replace(c, expertWeight(2, e, "up_proj"), tensor.Tensor{DType: tensor.BF16, Shape: []int{24, 64}, Data: make([]byte, 2*24*64)})
	r = run(t, c.Config, wrong, p, verify.Options{Layers: must(text.ParseSpans("2", "layers")), Stages: []string{"mlp.experts.output", fmt.Sprintf("mlp.experts.%d.probe.output", probed(p, 2)[1])}})
	require.Equal(t, report.Pass, r.Verdict, "the expert that is wrong is not selected: %v %v", r.FirstDivergence, r.Reasons)
	r = run(t, c.Config, wrong, p, verify.Options{FailFast: true})
	require.Equal(t, probeOf(2, e), *r.FirstDivergence)
	require.Equal(t, probeOf(2, e), failed(r)[0])
	require.True(t, r.Stopped)
}

// TestBrokenProbes are refused with the cause.
func TestBrokenProbes(t *testing.T) {
	t.Parallel()
	setting := func(layer, key string, value any) func(t *testing.T, dir string, m map[string]any) {
		return func(_ *testing.T, _ string, m map[string]any) {
			m["probes"].(map[string]any)[layer].(map[string]any)[key] = value
		}
	}
	moving := func(from, to string) func(t *testing.T, dir string, m map[string]any) {
		return func(_ *testing.T, _ string, m map[string]any) {
			probes := m["probes"].(map[string]any)
			probes[to] = probes[from]
		}
	}
	for want, edit := range map[string]func(t *testing.T, dir string, m map[string]any){
		"probes: layer 3: row 6 is not one of 6":                                                                                 setting("3", "rows", []int{0, 1, 4, 6}),
		"probes: layer 3: row -1 is below 0":                                                                                     setting("3", "rows", []int{-1, 1, 4, 5}),
		"probes: layer 3: row 1 follows 1: they are not ascending":                                                               setting("3", "rows", []int{0, 1, 1, 5}),
		"probes: layer 3: no row is named":                                                                                       setting("3", "rows", []int{}),
		"probes: layer 3: row 3 is padding":                                                                                      setting("3", "rows", []int{0, 1, 3, 5}),
		"probes: layer 3: no expert is named":                                                                                    setting("3", "experts", []int{}),
		"probes: layer 3: expert 4 follows 9: they are not ascending":                                                            setting("3", "experts", []int{4, 9, 4}),
		"probes: layer 3: there is no tensor model.layers.3.mlp.experts.2.probe.output":                                          setting("3", "experts", []int{2, 4}),
		"model.layers.3.mlp.experts.4.probe.output is F32 [4 64], not F32 [3 64]":                                                setting("3", "rows", []int{0, 1, 4}),
		`tensors: "model.layers.3.mlp.experts.15.probe.output": probes does not say which rows it is of`:                         setting("3", "experts", []int{4, 5, 6, 7, 8, 9, 10, 11, 14}),
		`probes: "03" is not the number of a layer`:                                                                              moving("3", "03"),
		"probes: layer 7: there is no tensor model.layers.7.post_attention_layernorm.output, whose rows the experts were run on": moving("3", "7"),
		"probes: layer 1: there is no tensor model.layers.1.mlp.experts.4.probe.output":                                          moving("3", "1"),
		"probes: layer 0 has no routed experts": func(_ *testing.T, _ string, m map[string]any) {
			x := m["tensors"].(map[string]any)
			x[probeOf(0, 4)] = x[probeOf(3, 4)]
			m["probes"].(map[string]any)["0"] = map[string]any{"rows": []int{0, 1, 4, 5}, "experts": []int{4}}
		},
		"probes: layer 3: expert 16 is not one of 16": func(_ *testing.T, _ string, m map[string]any) {
			x := m["tensors"].(map[string]any)
			x[probeOf(3, 16)] = x[probeOf(3, 4)]
			probe := m["probes"].(map[string]any)["3"].(map[string]any)
			probe["experts"] = append(probe["experts"].([]any), 16)
		},
		"probes: a training pack has none":                             func(_ *testing.T, _ string, m map[string]any) { m["mode"] = "train" },
		"there is no tensor model.layers.3.mlp.experts.9.probe.output": dropping(func(name string) bool { return name == probeOf(3, 9) }),
		"probes: layer 3: there is no tensor model.layers.3.post_attention_layernorm.output": dropping(func(name string) bool {
			return name == "model.layers.3.post_attention_layernorm.output"
		}),
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			c, _ := open(t, probesF32)
			p, err := pack.Open(edited(t, probesF32, edit))
			if err == nil {
				_, err = verify.Run(context.Background(), c.Config, c, p, verify.Options{})
			}
			require.ErrorContains(t, err, want)
		})
	}
}

// TestGoldensOfProbesCount: what the reference's expert gave must be what ours gives.
func TestGoldensOfProbesCount(t *testing.T) {
	t.Parallel()
	c, p := open(t, probesF32)
	values := must(p.Float32s(probeOf(4, 3)))
	values[70] *= 1.0001
	changed := edited(t, probesF32, func(t *testing.T, dir string, m map[string]any) { rewrite(t, dir, m, probeOf(4, 3), values) })
	r := run(t, c.Config, c, must(pack.Open(changed)), verify.Options{})
	require.Equal(t, []string{probeOf(4, 3)}, failed(r))
}
