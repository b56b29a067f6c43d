package verify

import (
	"context"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/checkpoint"
	"dsmoe/model"
	"dsmoe/model/tensor"
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
	o := &Options{Stages: stages}
	s, err := scopeOf(c.Config, golden, o)
	require.NoError(t, err)
	m, err := model.LoadPart(s.config, c, s.runs)
	require.NoError(t, err)
	j, err := newJob(s, c.Config, m, c, in, o)
	require.NoError(t, err)
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
