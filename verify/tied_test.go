package verify_test

import (
	"context"
	"encoding/binary"
	"iter"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// with is a source with a tensor beside what it has.
type with struct {
	weights.Source
	name   string
	tensor tensor.Tensor
}

func (s with) Tensors() iter.Seq[tensor.Info] {
	return func(yield func(tensor.Info) bool) {
		for i := range s.Source.Tensors() {
			if !yield(i) {
				return
			}
		}
		yield(tensor.Info{Name: s.name, DType: s.tensor.DType, Shape: s.tensor.Shape})
	}
}

func (s with) Tensor(name string) (tensor.Tensor, error) {
	if name == s.name {
		return s.tensor, nil
	}
	return s.Source.Tensor(name)
}

// withHead is a source with a head beside what it has.
func withHead(src weights.Source, head tensor.Tensor) with { return with{src, "lm_head.weight", head} }

// TestStoredHeadThatIsTied: transformers' classes compute with a stored head that differs from the
// embedding, as if the two were not tied, and so does the model: its head is covered, and a wrong
// one fails.
func TestStoredHeadThatIsTied(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v2-lite/golden-f32")
	apart := run(t, c.Config, c, p, verify.Options{})
	tied := override(t, c.Config, "tie_word_embeddings", "true")
	r := run(t, tied, c, p, verify.Options{})
	require.Equal(t, report.Pass, r.Verdict, r.FirstDivergence)
	require.Equal(t, apart.Coverage.WeightsChecked, r.Coverage.WeightsChecked)
	require.Equal(t, apart.Coverage.Weights, r.Coverage.Weights)
	wrong := get(t, c, "lm_head.weight")
	wrong.Data[1] ^= 0x80
	r = run(t, tied, replace(c, "lm_head.weight", wrong), p, verify.Options{})
	requireFails(t, r, "lm_head.output", "weight-elements")
	r = run(t, tied, replace(c, "lm_head.weight", get(t, c, "model.embed_tokens.weight")), p, verify.Options{Undiagnosed: true})
	require.Equal(t, "lm_head.output", *r.FirstDivergence)
}

// TestUntiedConversion: a checkpoint whose head was written apart is of the model that the tied one
// is of.
func TestUntiedConversion(t *testing.T) {
	t.Parallel()
	c, _ := open(t, "v2-lite/golden-f32")
	p := must(pack.Open(rewritten(t, "v2-lite/golden-f32", func(_ string, m map[string]any) {
		config := configOf(t, "v2-lite")
		config["tie_word_embeddings"] = true
		m["config"] = config
	})))
	r := run(t, c.Config, c, p, verify.Options{})
	require.Equal(t, report.Pass, r.Verdict)
	require.Equal(t, []pack.Difference{{Key: "tie_word_embeddings", Checkpoint: "false", Pack: "true", Meaning: true}}, r.Config.Differ)
}

// TestStoredHeadOfPublishedCode: the published code has one parameter for both, of which neither can
// be told from the files where they differ.
func TestStoredHeadOfPublishedCode(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v1-rope-linear-tied-bias/golden-f32")
	embedding := get(t, c, "model.embed_tokens.weight")
	r := run(t, c.Config, withHead(c, embedding), p, verify.Options{})
	require.Equal(t, report.Pass, r.Verdict)
	other := get(t, c, "model.embed_tokens.weight")
	other.Data[len(other.Data)-1] ^= 1
	_, err := verify.Run(context.Background(), c.Config, withHead(c, other), p, verify.Options{})
	require.ErrorContains(t, err, "tie_word_embeddings is true, but lm_head.weight is stored, with other numbers than model.embed_tokens.weight")
	other.Shape, other.Data = []int{256, 32}, other.Data[:len(other.Data)/2]
	_, err = verify.Run(context.Background(), c.Config, withHead(c, other), p, verify.Options{})
	require.Error(t, err)
	// The two are compared where one of them is used.
	for stage, is := range map[string]bool{"model.embed_tokens.output": true, "lm_head.output": true,
		"model.layers.1.output": false} {
		src, o := withHead(c, embedding), verify.Options{Stages: []string{stage}}
		needed := weights.Holders(c.Config, src, must(verify.Reads(c.Config, p, o)))
		require.Equal(t, is, needed["lm_head.weight"] && needed["model.embed_tokens.weight"], stage)
	}
}

// TestContradictionsAreReported: a stored head under tie_word_embeddings, and a stored inv_freq of another theta, are
// said in the report. Numbers that are the same in another dtype are no contradiction.
func TestContradictionsAreReported(t *testing.T) {
	t.Parallel()
	c, p := open(t, "v2-lite/golden-f32")
	tied := override(t, c.Config, "tie_word_embeddings", "true")
	r := run(t, tied, c, p, verify.Options{})
	require.Equal(t, report.Pass, r.Verdict)
	require.Len(t, r.Beside, 1)
	require.Contains(t, r.Beside[0], "tie_word_embeddings is true, but lm_head.weight is stored, with other numbers than model.embed_tokens.weight")
	var text strings.Builder
	require.NoError(t, r.WriteText(&text))
	require.Contains(t, text.String(), "\nstored     tie_word_embeddings is true, but ")
	same := get(t, c, "model.embed_tokens.weight")
	require.Empty(t, run(t, tied, replace(c, "lm_head.weight", same), p, verify.Options{Undiagnosed: true}).Beside)
	values, err := same.Float32s(nil)
	require.NoError(t, err)
	wide := tensor.Tensor{DType: tensor.F32, Shape: same.Shape}
	for _, v := range values {
		wide.Data = binary.LittleEndian.AppendUint32(wide.Data, math.Float32bits(v))
	}
	require.Empty(t, run(t, tied, replace(c, "lm_head.weight", wide), p, verify.Options{Undiagnosed: true}).Beside)
	wide.Data[len(wide.Data)-4]++
	require.Len(t, run(t, tied, replace(c, "lm_head.weight", wide), p, verify.Options{Undiagnosed: true}).Beside, 1)
	require.Empty(t, run(t, c.Config, c, p, verify.Options{}).Beside)

	c, p = open(t, "v1-base/golden-f32")
	n := c.Config.HeadDim() / 2
	for theta, want := range map[float64]string{10000: "", 500000: "is that of rope_theta 500000, config.json has 10000", 0: "is not that of config.json, rope_theta 10000"} {
		freq := tensor.Tensor{DType: tensor.F32, Shape: []int{n}}
		for i := range n {
			freq.Data = binary.LittleEndian.AppendUint32(freq.Data, math.Float32bits(float32(math.Pow(theta, -float64(i)/float64(n)))))
		}
		src := with{with{c, "model.layers.0.self_attn.rotary_emb.inv_freq", freq}, "model.layers.2.self_attn.rotary_emb.inv_freq", freq}
		r := run(t, c.Config, src, p, verify.Options{})
		require.Equal(t, report.Pass, r.Verdict)
		if want == "" {
			require.Empty(t, r.Beside)
			continue
		}
		require.Len(t, r.Beside, 1)
		require.Contains(t, r.Beside[0], "model.layers.0.self_attn.rotary_emb.inv_freq and 1 other: "+want)
	}
}
