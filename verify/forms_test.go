package verify_test

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/checkpoint"
	"dsmoe/model/tensor"
	"dsmoe/verify"
	"dsmoe/verify/pack"
	"dsmoe/verify/report"
)

// ofForm opens a checkpoint of fixtures/forms and their pack.
func ofForm(t *testing.T, form string) (*checkpoint.Checkpoint, *pack.Pack) {
	c := must(checkpoint.Open(fixture("forms/" + form)))
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c, must(pack.Open(fixture("forms/golden-f32")))
}

// withWords is a checkpoint all of whose tensors with this end of the name are changed, as I32.
func withWords(t *testing.T, c *checkpoint.Checkpoint, end string, change func(name string, words []uint32)) altered {
	out := altered{Source: c, tensors: map[string]tensor.Tensor{}}
	for info := range c.Tensors() {
		if !strings.HasSuffix(info.Name, end) {
			continue
		}
		x := must(c.Tensor(info.Name))
		words := make([]uint32, len(x.Data)/4)
		for i := range words {
			words[i] = binary.LittleEndian.Uint32(x.Data[4*i:])
		}
		change(info.Name, words)
		x.Data = nil
		for _, word := range words {
			x.Data = binary.LittleEndian.AppendUint32(x.Data, word)
		}
		out.tensors[info.Name] = x
	}
	require.NotEmpty(t, out.tensors)
	return out
}

// TestGroupsOfColumnsTell: without the order of g_idx the scales and zeros are other columns'.
func TestGroupsOfColumnsTell(t *testing.T) {
	t.Parallel()
	c, p := ofForm(t, "gptq-desc-act")
	require.Equal(t, report.Pass, run(t, c.Config, c, p, verify.Options{}).Verdict)
	all := withWords(t, c, ".g_idx", func(_ string, words []uint32) {
		for i := range words {
			words[i] = uint32(i / 16)
		}
	})
	failing := map[string]bool{}
	for name, x := range all.tensors {
		require.NotEqual(t, must(c.Tensor(name)).Data, x.Data, name)
		one := altered{Source: c, tensors: map[string]tensor.Tensor{name: x}}
		r := run(t, c.Config, one, p, verify.Options{Undiagnosed: true})
		require.Equal(t, report.Fail, r.Verdict, name)
		failing[*r.FirstDivergence] = true
	}
	require.Greater(t, len(failing), 4)
	r := run(t, c.Config, all, p, verify.Options{Undiagnosed: true})
	require.Equal(t, report.Fail, r.Verdict)
}

// TestZeroPointsTell: a zero that is another one, of any form that has zeros, fails.
func TestZeroPointsTell(t *testing.T) {
	t.Parallel()
	for form, end := range map[string]string{"int4-zeros": "mlp.experts.1.up_proj.weight_zero_point", "awq": "layers.0.mlp.up_proj.qzeros",
		"gptq": "layers.0.mlp.up_proj.qzeros", "gptq-v2": "layers.0.mlp.up_proj.qzeros", "gptq-desc-act": "layers.0.mlp.up_proj.qzeros"} {
		c, p := ofForm(t, form)
		require.Equal(t, report.Pass, run(t, c.Config, c, p, verify.Options{}).Verdict, form)
		wrong := withWords(t, c, end, func(_ string, words []uint32) { words[0] ^= 1 })
		r := run(t, c.Config, wrong, p, verify.Options{Undiagnosed: true})
		require.Equal(t, report.Fail, r.Verdict, form)
		require.Contains(t, *r.FirstDivergence, ".mlp.", form)
	}
}

// TestWeightShapesTell: verify refuses wrong ones, all at once.
func TestWeightShapesTell(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"int4", "int4-zeros"} {
		c, p := ofForm(t, form)
		wrong := withWords(t, c, ".up_proj.weight_shape", func(_ string, words []uint32) { slices.Reverse(words) })
		_, err := verify.Run(context.Background(), c.Config, wrong, p, verify.Options{})
		require.ErrorContains(t, err, "4 findings: ")
		require.ErrorContains(t, err, ".up_proj.weight: weight_shape is [")
	}
}

// TestExchangedWords: words of a packed weight, or zeros of its groups, in each other's place. Where the exchange is
// one of columns the cause says so; zeros change the weight by a matrix of low rank, and no LoRA is claimed.
func TestExchangedWords(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ form, name, cause, text string }{
		{"awq", "layers.0.self_attn.o_proj.qweight", "columns-permuted", "columns from 0 and columns from 1 are exchanged, 1 column each"},
		{"awq", "layers.0.mlp.down_proj.qweight", "columns-permuted", "columns from 0 and columns from 1 are exchanged, 1 column each, or the same rows"},
		{"gptq", "layers.0.self_attn.q_a_proj.qweight", "columns-permuted", "columns from 0 and columns from 8 are exchanged, 8 columns each"},
		{"gptq-v2", "layers.1.self_attn.o_proj.qweight", "columns-permuted", "columns from 0 and columns from 8 are exchanged, 8 columns each"},
		{"gptq-desc-act", "layers.0.self_attn.q_a_proj.qzeros", "low-rank",
			"by a matrix of rank 2, such as a LoRA or a few columns, or scales or zeros of a few groups"},
		{"gptq-desc-act", "layers.0.mlp.down_proj.qzeros", "low-rank", "or scales or zeros of a few groups, or by a few rows of gate_proj or up_proj"},
	} {
		c, p := ofForm(t, test.form)
		src := withWords(t, c, test.name, func(name string, words []uint32) {
			width := must(c.Tensor(name)).Shape[1]
			for i := range width {
				words[i], words[width+i] = words[width+i], words[i]
			}
		})
		r := run(t, c.Config, src, p, verify.Options{})
		require.Equal(t, report.Fail, r.Verdict, "%v", test)
		require.NotNil(t, r.Cause, "%v", test)
		require.Equal(t, test.cause, r.Cause.ID, r.Cause.Text)
		require.Contains(t, r.Cause.Text, test.text)
	}
}
