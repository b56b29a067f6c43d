package verify

import (
	"context"
	"fmt"
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
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
	"dsmoe/verify/verifytest"
)

// TestOwnForwardIsWithinTheBounds_every: what Plain computes with float32 sums is a right reference,
// in every dtype, of models with and without latent attention, groups and biases.
func TestOwnForwardIsWithinTheBounds_every(t *testing.T) {
	for i, name := range []string{"v1-base", "v2-group-yarn", "v3-yarn", "v1-rope-linear-tied-bias", "v3-fp8"} {
		for j, d := range []tensor.DType{tensor.F32, tensor.BF16, tensor.F16} {
			if i%3 != j && !configtest.Every(t) {
				continue
			}
			t.Run(fmt.Sprint(name, d), func(t *testing.T) {
				t.Parallel()
				c, err := checkpoint.Open(filepath.Join("..", "fixtures", name, "checkpoint"))
				require.NoError(t, err)
				defer c.Close()
				in := &model.Input{Batch: 2, Seq: 24}
				for i := range 48 {
					in.InputIDs = append(in.InputIDs, (i*37+11)%c.Config.VocabSize)
				}
				golden := recorded(t, c.Config, c, in, d)
				r, err := Run(context.Background(), c.Config, c, golden, Options{})
				require.NoError(t, err)
				require.NotEqual(t, report.Fail, r.Verdict, "%v", r.FirstDivergence)
				for _, check := range r.Checks {
					if check.Z != nil {
						require.Less(t, *check.Z, 6.0, check.Tensor)
					}
				}
			})
		}
	}
}

// TestExpertsMustBeReached: at least half of each layer's, unless the pack says that it is
// partial.
func TestExpertsMustBeReached(t *testing.T) {
	c, err := checkpoint.Open(filepath.Join("..", "fixtures", "v1-base", "checkpoint"))
	require.NoError(t, err)
	defer c.Close()
	golden := recorded(t, c.Config, c, &model.Input{Batch: 1, Seq: 2, InputIDs: []int{5, 7}}, tensor.F32)
	r, err := Run(context.Background(), c.Config, c, golden, Options{})
	require.NoError(t, err)
	require.Equal(t, report.Inconclusive, r.Verdict)
	require.Contains(t, r.Reasons[len(r.Reasons)-1], "the pack's tokens reach 5 of 16 routed experts")
	golden.Manifest.Partial = "two tokens"
	r, err = Run(context.Background(), c.Config, c, golden, Options{})
	require.NoError(t, err)
	require.Equal(t, report.Pass, r.Verdict, r.Reasons)
}

// recorded is a pack of what Plain computes with float32 sums.
func recorded(t testing.TB, c *config.Config, src weights.Source, in *model.Input, d tensor.DType) *pack.Pack {
	return recordedBy(t, c, src, in, d, func(p *model.Plain) model.Arithmetic[*model.Activation] { return p })
}

// recordedBy is recorded of an arithmetic around Plain.
func recordedBy(t testing.TB, c *config.Config, src weights.Source, in *model.Input, d tensor.DType, around func(*model.Plain) model.Arithmetic[*model.Activation]) *pack.Pack {
	m, err := model.Load(c, src)
	require.NoError(t, err)
	r := verifytest.NewRecorder("", c, d)
	require.NoError(t, r.KeepInts("input_ids", []int{in.Batch, in.Seq}, in.InputIDs))
	o := model.Options{DType: d, Accumulate: model.Float32}
	plain := model.NewPlain(o)
	net := &model.Network[*model.Activation]{Model: m, Input: in, Options: o, Arithmetic: around(plain), Trace: r}
	_, err = net.Forward(context.Background())
	require.NoError(t, err)
	plain.Close(nil)
	return r.Pack
}

// recordingTrained opens a trained model and returns what records its packs of some tokens in BF16.
func recordingTrained(t *testing.T, ids []int) (c *checkpoint.Checkpoint, in *model.Input,
	record func(around func(*model.Plain) model.Arithmetic[*model.Activation]) *pack.Pack) {
	c, err := checkpoint.Open(filepath.Join("..", "fixtures", "v3-trained", "checkpoint"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	in = &model.Input{Batch: 1, Seq: len(ids), InputIDs: ids}
	return c, in, func(around func(*model.Plain) model.Arithmetic[*model.Activation]) *pack.Pack {
		return recordedBy(t, c.Config, c, in, tensor.BF16, around)
	}
}

// TestRepeatedTokensWithoutAStage_every: batches of two ids are right references whatever the pack lacks
// of attention. Where rows share the errors of what it lacks, columns have the limit of rows.
func TestRepeatedTokensWithoutAStage_every(t *testing.T) {
	t.Parallel()
	in := &model.Input{Batch: 2, Seq: 120}
	for i := range in.Batch * in.Seq {
		in.InputIDs = append(in.InputIDs, 3+i%2*6)
	}
	const attention, behind = "self_attn.o_proj.input", "output"
	whole, all := map[string]*pack.Pack{}, t
	for i, test := range []struct {
		fixture string
		absent  []string
		shares  string // a stage whose rows share errors
	}{
		{"v3", nil, ""},
		{"v1-gqa-norm-freq2", []string{"self_attn.v_proj.output"}, attention},
		{"v3", []string{"self_attn.kv_b_proj.output"}, attention},
		{"v3", []string{"self_attn.q_b_proj.output"}, attention},
		{"v3", []string{"self_attn.q_b_proj.output", "self_attn.kv_b_proj.output"}, attention},
		{"v3", []string{"self_attn.kv_b_proj.output", attention, "self_attn.o_proj.output", "self_attn.output", "post_attention_layernorm.output", "mlp.output"}, behind},
	} {
		if i != 1 && i != 5 && !configtest.Every(t) {
			continue // the last case lacks most
		}
		t.Run(fmt.Sprint(test.fixture, test.absent), func(t *testing.T) {
			c, err := checkpoint.Open(filepath.Join("..", "fixtures", test.fixture, "checkpoint"))
			require.NoError(t, err)
			defer c.Close()
			if whole[test.fixture] == nil {
				whole[test.fixture] = recorded(all, c.Config, c, in, tensor.F32)
			}
			p := copyOf(whole[test.fixture])
			for name := range p.Manifest.Tensors {
				if kind := pack.Parse(name).Within; slices.Contains(test.absent, kind) {
					delete(p.Manifest.Tensors, name)
				}
			}
			p.Manifest.Partial, p.Manifest.Absent.Stages = "two ids", test.absent
			r, err := Run(context.Background(), c.Config, c, p, Options{Undiagnosed: true})
			require.NoError(t, err)
			require.Nil(t, r.FirstDivergence)
			for _, check := range r.Checks {
				layer, kind := check.Stage().Layer, check.Stage().Within
				switch {
				case layer == 0 && kind == test.shares:
					require.Equal(t, float64(rowRMS), check.Limits.ColumnZ, check.Tensor)
				case layer == 0 && (kind == attention || kind == "self_attn.o_proj.output"):
					require.Less(t, check.Limits.ColumnZ, 1.6, check.Tensor)
				}
			}
		})
	}
}

// copyOf is a pack with the same tensors.
func copyOf(p *pack.Pack) *pack.Pack {
	c := &pack.Pack{Dir: p.Dir, DType: p.DType, Manifest: p.Manifest, Replaced: maps.Clone(p.Replaced)}
	c.Manifest.Tensors = maps.Clone(p.Manifest.Tensors)
	return c
}
