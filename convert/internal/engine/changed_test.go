package engine

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/plan"
	"dsmoe/model/tensor"
)

// TestSourceChangesBesideItsWeights: the same command names the files that would differ, among them GGUF's keys of the
// same size and of another, in one file and in shards. With Overwrite it gives what a conversion from the start gives.
func TestSourceChangesBesideItsWeights(t *testing.T) {
	t.Parallel()
	eps := func(dir string) {
		fixture.Replace(t, dir, checkpoint.ConfigName, `"rms_norm_eps": 1e-06`, `"rms_norm_eps": 1e-05`)
	}
	scaling := func(dir string) {
		fixture.Replace(t, dir, checkpoint.ConfigName, `"rope_scaling": null`, `"rope_scaling": {"type": "linear", "factor": 2.0}`)
	}
	files := func(dir string) {
		eps(dir)
		fixture.Write(t, dir, "tokenizer_config.json", `{"add_bos_token": true, "model_max_length": 4096}`)
		fixture.Write(t, dir, "chat_template.jinja", "{{ messages }}")
		fixture.Remove(t, dir, "special_tokens_map.json")
	}
	const header = ": would have other bytes before its weights"
	for name, c := range map[string]struct {
		o         plan.Options
		change    func(dir string)
		different []string
	}{
		"files": {plan.Options{DType: tensor.F32}, files, []string{"chat_template.jinja: is new in the source",
			"config.json: would have other content", "special_tokens_map.json: is no longer in the source", "tokenizer_config.json: is blake3:"}},
		"keys in place": {plan.Options{Format: "gguf", NoVocab: true, Mixture: "q8_0"}, eps, []string{"checkpoint-16x174K-Q8_0.gguf" + header}},
		"keys":          {plan.Options{Format: "gguf", NoVocab: true, Mixture: "q8_0"}, scaling, []string{"checkpoint-16x174K-Q8_0.gguf" + header}},
		"shards": {plan.Options{Format: "gguf", NoVocab: true, MaxShardBytes: 300_000}, scaling,
			[]string{"checkpoint-16x174K-BF16-00001-of-00003.gguf" + header}},
	} {
		dir := fixture.Clone(t, fixture.Path(t, "v1-base/checkpoint"))
		fixture.Write(t, dir, "tokenizer_config.json", `{"add_bos_token": false}`)
		fixture.Write(t, dir, "special_tokens_map.json", `{}`)
		dst := converted(t, dir, c.o, inMemory())
		before := fixture.Sums(t, dst)
		c.change(dir)
		src := open(t, dir)
		_, err := convert(t.Context(), t, dst, src, c.o, inMemory())
		require.ErrorContains(t, err, "it holds the finished output of another conversion: "+c.different[0], name)
		for _, file := range c.different {
			require.ErrorContains(t, err, file, name)
		}
		require.Equal(t, before, fixture.Sums(t, dst), name)

		s := inMemory()
		s.Overwrite = true
		r, err := convert(t.Context(), t, dst, src, c.o, s)
		require.NoError(t, err, name)
		require.True(t, r.Replaced && r.Verified, name)
		require.Equal(t, fixture.Sums(t, converted(t, dir, c.o, inMemory())), fixture.Sums(t, dst), name)
		fixture.RequireEntries(t, filepath.Dir(dst), "out")
	}
}
