package engine

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/format"
	"dsmoe/convert/internal/disk"
	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/plan"
	"dsmoe/model/tensor"
	"dsmoe/text/problem"
)

// updatable is a source, the options of its outputs, and a change of the source that leaves the
// weights of its outputs as they are.
type updatable struct {
	o        plan.Options
	change   func(dir string)
	replaced []string // by the update
}

// updatables have each way to update a file: other carried files and config.json, GGUF's keys of
// the same size, and of another, in one file and in shards.
func updatables(t *testing.T) map[string]updatable {
	eps := func(dir string) {
		fixture.Replace(t, dir, checkpoint.ConfigName, `"rms_norm_eps": 1e-06`, `"rms_norm_eps": 1e-05`)
	}
	scaling := func(dir string) {
		fixture.Replace(t, dir, checkpoint.ConfigName, `"rope_scaling": null`, `"rope_scaling": {"type": "linear", "factor": 2.0}`)
	}
	return map[string]updatable{
		"files": {plan.Options{DType: tensor.F32}, func(dir string) {
			eps(dir)
			fixture.Write(t, dir, "tokenizer_config.json", `{"add_bos_token": true, "model_max_length": 4096}`)
			fixture.Write(t, dir, "chat_template.jinja", "{{ messages }}")
			fixture.Remove(t, dir, "special_tokens_map.json")
		}, []string{"chat_template.jinja", "config.json", "special_tokens_map.json", "tokenizer_config.json", plan.ManifestName}},
		"keys in place":       {plan.Options{Format: "gguf", NoVocab: true, Mixture: "q8_0"}, eps, []string{"checkpoint-16x174K-Q8_0.gguf", plan.ManifestName}},
		"keys, weights moved": {plan.Options{Format: "gguf", NoVocab: true, Mixture: "q8_0"}, scaling, []string{"checkpoint-16x174K-Q8_0.gguf", plan.ManifestName}},
		"shards":              {plan.Options{Format: "gguf", NoVocab: true, MaxShardBytes: 300_000}, scaling, []string{"checkpoint-16x174K-BF16-00001-of-00003.gguf", plan.ManifestName}},
	}
}

// sourceToUpdate copies a checkpoint with a few files beside its weights.
func sourceToUpdate(t *testing.T) string {
	dir := fixture.Clone(t, fixture.Path(t, "v1-base/checkpoint"))
	fixture.Write(t, dir, "tokenizer_config.json", `{"add_bos_token": false}`)
	fixture.Write(t, dir, "special_tokens_map.json", `{}`)
	return dir
}

// TestUpdate: after a change of the source beside its weights, the same command names what
// differs, and an update gives what a conversion from the start gives, manifest included.
func TestUpdate(t *testing.T) {
	t.Parallel()
	for name, c := range updatables(t) {
		dir := sourceToUpdate(t)
		dst := converted(t, dir, c.o, inMemory())
		size := int64(0)
		if was, err := os.Stat(filepath.Join(dst, c.replaced[0])); err == nil {
			size = was.Size()
		}
		c.change(dir)
		src := open(t, dir)
		_, err := convert(t.Context(), t, dst, src, c.o, inMemory())
		for _, replaced := range c.replaced[:len(c.replaced)-1] {
			require.ErrorContains(t, err, replaced+": ", name)
		}
		require.ErrorContains(t, err, "it holds the finished output of another conversion", name)
		var refusal *problem.Error
		require.ErrorAs(t, err, &refusal)
		require.Contains(t, refusal.Problems[0].Hint, "--update", name)

		s := inMemory()
		s.Update = true
		r, err := convert(t.Context(), t, dst, src, c.o, s)
		require.NoError(t, err, name)
		require.Equal(t, c.replaced, r.Updated, name)
		require.False(t, r.Outdated)
		require.True(t, r.Verified)
		require.Equal(t, fixture.Sums(t, converted(t, dir, c.o, inMemory())), fixture.Sums(t, dst), name)
		requireChecked(t, dst)
		now, err := os.Stat(filepath.Join(dst, c.replaced[0]))
		require.NoError(t, err)
		require.Equal(t, name == "keys in place", now.Size() == size, name)
		for _, s := range []Settings{s, inMemory()} {
			r, err = convert(t.Context(), t, dst, src, c.o, s)
			require.NoError(t, err, name)
			require.True(t, r.Already, name)
		}
		fixture.RequireEntries(t, filepath.Dir(dst), "out")
	}
}

// TestUpdateSurvivesCrashes stops the disk at every third call of an update: each file with its final
// name is the old or the new one, and the same update ends well.
func TestUpdateSurvivesCrashes(t *testing.T) {
	t.Parallel()
	all := updatables(t)
	for i, name := range slices.Sorted(maps.Keys(all)) {
		c, dir := all[name], sourceToUpdate(t)
		made := converted(t, dir, c.o, inMemory())
		old := fixture.Sums(t, made)
		c.change(dir)
		src := open(t, dir)
		want := fixture.Sums(t, converted(t, dir, c.o, inMemory()))
		step := crashStep(6, 1)
		for n := int64(i) % step; ; n += step {
			dst := filepath.Join(t.TempDir(), "out")
			require.NoError(t, os.CopyFS(dst, os.DirFS(made)))
			var count atomic.Int64
			boom := errors.New("boom")
			s := Settings{Update: true, Disk: &disk.Disk{NoSync: true, Fail: func(string, string) error {
				if count.Add(1) > n {
					return boom
				}
				return nil
			}}}
			_, err := convert(t.Context(), t, dst, src, c.o, s)
			if err == nil {
				require.Greater(t, n, int64(8))
				break
			}
			require.ErrorIs(t, err, boom)
			sums := fixture.Sums(t, dst)
			for file, sum := range sums {
				if !strings.HasPrefix(file, ".") {
					require.Contains(t, [][32]byte{old[file], want[file]}, sum, "%s: %s after %d calls", name, file, n)
				}
			}
			if sums[plan.ManifestName] == want[plan.ManifestName] {
				for file := range want {
					require.Equal(t, want[file], sums[file], "%s: the manifest comes last", file)
				}
			}
			if _, err := convert(t.Context(), t, dst, src, c.o, inMemory()); err != nil {
				require.ErrorContains(t, err, "it holds the finished output of another conversion", "%s after %d calls", name, n)
				require.Equal(t, sums, fixture.Sums(t, dst))
				fixture.RequireEntries(t, filepath.Dir(dst), "out")
			}
			_, err = convert(t.Context(), t, dst, src, c.o, Settings{Update: true, Disk: &disk.Disk{NoSync: true}})
			require.NoError(t, err, "%s after %d calls", name, n)
			require.Equal(t, want, fixture.Sums(t, dst), "%s after %d calls", name, n)
		}
	}
}

// TestUpdateRefuses: an update replaces nothing that a user changed, and writes no weights.
func TestUpdateRefuses(t *testing.T) {
	t.Parallel()
	s := inMemory()
	s.Update = true
	for name, c := range updatables(t) {
		dir := sourceToUpdate(t)
		made := converted(t, dir, c.o, inMemory())
		refused := func(want string, spoil func(dst string)) {
			dst := filepath.Join(t.TempDir(), "out")
			require.NoError(t, os.CopyFS(dst, os.DirFS(made)))
			spoil(dst)
			before := fixture.Sums(t, dst)
			_, err := convert(t.Context(), t, dst, open(t, dir), c.o, s)
			require.ErrorContains(t, err, want, name)
			require.Equal(t, before, fixture.Sums(t, dst), name)
		}
		c.change(dir)
		file := c.replaced[0]
		if slices.Contains(slices.Collect(maps.Keys(fixture.Sums(t, made))), file) {
			refused(file+": changed: ", func(dst string) { fixture.Flip(t, filepath.Join(dst, file), 0) })
		} else {
			refused(file+": changed: ", func(dst string) { fixture.Write(t, dst, file, "mine") })
		}
		refused("was edited", func(dst string) { fixture.Replace(t, dst, plan.ManifestName, `"verified": true`, `"verified": false`) })
		refused("is not a finished output", func(dst string) { fixture.Remove(t, dst, plan.ManifestName) })
		refused("an unfinished conversion is in", func(dst string) { fixture.Write(t, dst, ".dsmoe.journal", "x") })
		if name == "keys, weights moved" || name == "shards" {
			refused("tensor blk.0.attn_norm.weight changed since it was written", func(dst string) {
				f, err := format.OpenFile(filepath.Join(dst, file), checkpoint.FormatOf(file).Open)
				require.NoError(t, err)
				defer f.Close()
				_, offset, _ := f.Lookup("blk.0.attn_norm.weight")
				fixture.Flip(t, filepath.Join(dst, file), offset)
			})
		}
		fixture.Replace(t, dir, checkpoint.ConfigName, `"hidden_act": "silu"`, `"hidden_act": "silu", "unknown": 1`)
		c.o.DType, c.o.Mixture = tensor.F16, ""
		refused("option dtype: F16, not ", func(string) {})
	}
}

// TestUpdateDoesNotVouchForWeights: after an update the manifest names the state of the source that
// the weights were compared with, so that the next run compares them with a changed one.
func TestUpdateDoesNotVouchForWeights(t *testing.T) {
	t.Parallel()
	dir := sourceToUpdate(t)
	dst := converted(t, dir, plan.Options{DType: tensor.F32}, inMemory())
	flipLast(t, filepath.Join(dir, "model-00001-of-00003.safetensors"))
	fixture.Write(t, dir, "tokenizer_config.json", "{}")
	s := inMemory()
	s.Update = true
	r, err := convert(t.Context(), t, dst, open(t, dir), plan.Options{DType: tensor.F32}, s)
	require.NoError(t, err)
	require.True(t, r.Outdated)
	_, err = convert(t.Context(), t, dst, open(t, dir), plan.Options{DType: tensor.F32}, inMemory())
	require.ErrorContains(t, err, "of other weights")
}

// TestUpdateOneFile: an output that is one file is updated with its manifest beside it.
func TestUpdateOneFile(t *testing.T) {
	t.Parallel()
	dir, out, fresh := fixture.Clone(t, fixture.Path(t, "v1-dense/checkpoint")), t.TempDir(), t.TempDir()
	_, err := intoFile(t, out, open(t, dir), tensor.F32, inMemory())
	require.NoError(t, err)
	fixture.Replace(t, dir, checkpoint.ConfigName, `"rms_norm_eps": 1e-06`, `"rms_norm_eps": 1e-05`)
	_, err = intoFile(t, out, open(t, dir), tensor.F32, inMemory())
	require.ErrorContains(t, err, "x.gguf: would have other bytes before its weights")
	s := inMemory()
	s.Update = true
	r, err := intoFile(t, out, open(t, dir), tensor.F32, s)
	require.NoError(t, err)
	require.Equal(t, []string{oneFile, oneFile + plan.FileManifest}, r.Updated)
	_, err = intoFile(t, fresh, open(t, dir), tensor.F32, inMemory())
	require.NoError(t, err)
	require.Equal(t, fixture.Sums(t, fresh), fixture.Sums(t, out))
	fixture.RequireEntries(t, out, oneFile, oneFile+plan.FileManifest)
}
