package verify

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/config/configtest"
	"dsmoe/convert/checkpoint"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/verify/bounds"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// shownStages is a trace around another one that lists the stages of one layer.
type shownStages struct {
	model.Trace[*bounds.Value]
	layer int
	kinds []string
}

func (s *shownStages) Stage(name string, x *bounds.Value) error {
	if at := pack.Parse(name); at.Layer == s.layer {
		s.kinds = append(s.kinds, at.Within)
	}
	return s.Trace.Stage(name, x)
}

// TestSectionsThatNobodyLooksAt do not run where the pack has their output.
func TestSectionsThatNobodyLooksAt(t *testing.T) {
	t.Parallel()
	const norms = "input_layernorm.output"
	for name, test := range map[string]struct {
		fixture string
		layer   int
		stages  []string
		lacks   []string // kinds that the pack lacks in this layer alone
		want    []string
	}{
		"o_proj": {"v3", 2, []string{"*.o_proj.output"}, nil, []string{"input", norms, "self_attn.o_proj.output", "self_attn.output",
			pack.AttentionNorm, "output"}},
		"the gate": {"v3", 2, []string{"mlp.gate.logits"}, nil, []string{"input", norms, pack.AttentionNorm, pack.GateLogits,
			pack.TopKWeight, "mlp.output", "output"}},
		"shared experts": {"v3", 2, []string{pack.SharedOutput}, nil, []string{"input", norms, pack.AttentionNorm, pack.GateLogits,
			pack.TopKWeight, "mlp.shared_experts.gate_proj.output", "mlp.shared_experts.up_proj.output",
			"mlp.shared_experts.down_proj.input", pack.SharedOutput, "mlp.output", "output"}},
		"entries of windowed attention": {"v4", 2, []string{"self_attn.o_a_proj.output"}, nil, []string{"input", "attn_hc.pre",
			"attn_hc.post", "attn_hc.comb", "attn_hc.collapsed", norms, "self_attn.o_a_proj.input", "self_attn.o_a_proj.output",
			"self_attn.output", "ffn_hc.input", "ffn_hc.pre", "ffn_hc.post", "ffn_hc.comb", "ffn_hc.collapsed", pack.AttentionNorm, "output"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, stagesRun(t, test.fixture, test.layer, test.stages, test.lacks))
		})
	}
	// A selected stage that the pack lacks in this layer alone is an error: what gives it runs.
	kinds := stagesRun(t, "v3", 2, []string{pack.GateLogits, pack.ExpertsOutput}, []string{pack.ExpertsOutput})
	require.Contains(t, kinds, pack.ExpertsOutput)
}

// stagesRun returns the kinds of stages that a layer shows where only these stages are selected.
func stagesRun(t *testing.T, fixture string, layer int, stages, lacks []string) []string {
	c, err := checkpoint.Open(filepath.Join("..", "fixtures", fixture, "checkpoint"))
	require.NoError(t, err)
	defer c.Close()
	in := &model.Input{Batch: 1, Seq: 24}
	for i := range in.Seq {
		in.InputIDs = append(in.InputIDs, (i*37+11)%c.Config.VocabSize)
	}
	golden := recorded(t, c.Config, c, in, tensor.F32)
	for _, kind := range lacks {
		delete(golden.Manifest.Tensors, pack.StageOf(layer, kind))
	}
	j := jobOf(t, c.Config, c, golden, &Options{Stages: stages})
	tr := newPass(j)
	analysis := tr.analysis(j.modelOptions())
	defer analysis.Close()
	net, _ := tr.local(in, j.modelOptions(), analysis)
	shown := &shownStages{Trace: net.Trace, layer: layer}
	net.Trace = shown
	_, err = net.Run(context.Background(), newCourse(tr, j.exactStart))
	require.NoError(t, err)
	for _, check := range tr.evidence.checks {
		of, kind := check.Stage().Layer, check.Stage().Within
		require.Equal(t, of == layer && slices.Contains(lacks, kind), check.Verdict == report.Fail, "%s: %s", check.Tensor, check.Reason)
	}
	return shown.kinds
}

// jobOf returns the job that compares weights with a pack.
func jobOf(t *testing.T, c *config.Config, src weights.Source, golden *pack.Pack, o *Options) *job {
	t.Helper()
	s, err := scopeOf(c, golden, o)
	require.NoError(t, err)
	m, err := model.LoadPart(s.config, src, s.runs)
	require.NoError(t, err)
	in, err := golden.Input()
	require.NoError(t, err)
	j, err := newJob(s, c, m, src, in, o)
	require.NoError(t, err)
	return j
}

// TestSamplesOfTraces_every: the first tokens of a trace give the ways that all of it gives, and none of what is wrong in
// them. If the way of a kind were not known, nothing of a right engine would fail.
func TestSamplesOfTraces_every(t *testing.T) {
	t.Parallel()
	c, err := checkpoint.Open(filepath.Join("..", "fixtures", "v3-trained", "checkpoint"))
	require.NoError(t, err)
	defer c.Close()
	for i, name := range []string{"sglang-v3-trained-bf16", "megatron-v3-trained-bf16"} {
		if i > 0 && !configtest.Every(t) {
			continue
		}
		golden, err := pack.Open(filepath.Join("..", "fixtures", "engines", name))
		require.NoError(t, err)
		r, err := Run(t.Context(), c.Config, c, golden, Options{})
		require.NoError(t, err)
		all := map[string]map[string]string{}
		for _, f := range r.Golden.Recognised {
			all[f.Kind] = f.Ways
		}
		for kind, operations := range all {
			if kind != mixtures && !configtest.Every(t) {
				continue
			}
			unknown := jobOf(t, c.Config, c, golden, &Options{Mode: report.Local}).rounding(func(ways map[string]string) {
				for _, way := range all {
					maps.Copy(ways, way)
				}
				for operation := range operations {
					ways[operation] = bounds.Unknown
				}
			})
			e, err := unknown.gather(t.Context())
			require.NoError(t, err)
			require.NotEqual(t, report.Fail, conclude(e.project()).Verdict, "%s: %s is not known", name, kind)
		}
		sample := func(elements int) (found []string) {
			j, err := jobOf(t, c.Config, c, golden, &Options{Mode: report.Local}).recogniseSample(t.Context(), elements)
			require.NoError(t, err)
			for _, f := range j.found {
				require.Equal(t, all[f.kind.name], f.ways(), "%s: %s", name, f.kind.name)
				found = append(found, f.kind.name)
			}
			return found
		}
		eight := 7 * c.Config.HiddenSize
		found := sample(eight)
		require.Subset(t, found, []string{bounds.InputAddNorm, bounds.PostAddNorm, bounds.FinalAddNorm, mixtures, attention})
		require.Empty(t, sample(12*c.Config.HiddenSize), "more than half of the trace")
		const norm = "model.norm.output"
		wrong, err := golden.Tensor(norm)
		require.NoError(t, err)
		wrong.Data[1] ^= 1 // half as much, or twice
		golden.Replaced = map[string]tensor.Tensor{norm: wrong}
		require.Equal(t, slices.DeleteFunc(found, func(kind string) bool { return kind == bounds.FinalAddNorm }), sample(eight))
	}
}
