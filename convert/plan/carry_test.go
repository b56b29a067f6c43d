package plan

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/checkpoint"
	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/safetensors"
	"dsmoe/model/tensor"
	"dsmoe/text/problem"
)

// other returns the planned file of that name.
func other(t *testing.T, p *Plan, name string) Other {
	t.Helper()
	for _, f := range p.Others {
		if f.Name == name {
			return f
		}
	}
	require.Fail(t, "not planned", name)
	return Other{}
}

// TestPlanReadsNoCarriedFile: a terabyte that goes along is planned by its size.
func TestPlanReadsNoCarriedFile(t *testing.T) {
	t.Parallel()
	dir := fixture.Clone(t, fixture.Path(t, "v1-dense/checkpoint"))
	fixture.Write(t, dir, "tokenizer.json", "")
	require.NoError(t, os.Truncate(filepath.Join(dir, "tokenizer.json"), 1<<40))
	p, err := planOf(t, dir, Options{})
	require.NoError(t, err)
	f := other(t, p, "tokenizer.json")
	require.Equal(t, int64(1<<40), f.Size)
	require.Empty(t, f.Hash)
	require.NotEmpty(t, other(t, p, checkpoint.ConfigName).Hash)

	require.NoError(t, os.Truncate(filepath.Join(dir, "tokenizer.json"), 1<<39))
	again, err := planOf(t, dir, Options{})
	require.NoError(t, err)
	require.NotEqual(t, p.Hash, again.Hash)
}

// TestIndexCarries: a checkpoint given by its index is the whole directory.
func TestIndexCarries(t *testing.T) {
	t.Parallel()
	dir := fixture.Clone(t, fixture.Path(t, "v1-base/checkpoint"))
	fixture.Write(t, dir, "tokenizer.json", "{}")
	want, err := planOf(t, dir, Options{})
	require.NoError(t, err)
	got, err := planOf(t, filepath.Join(dir, "model.safetensors.index.json"), Options{})
	require.NoError(t, err)
	require.Equal(t, []string{"tokenizer.json"}, got.CarriedNames())
	require.Equal(t, want.Hash, got.Hash)
}

// TestLinks: a link inside the checkpoint, or into the blobs of its cache, is followed; any
// other, and one to nothing, is a problem, and all are told at once.
func TestLinks(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	fixture.Write(t, outside, "secret", "x")
	dir := fixture.Clone(t, fixture.Path(t, "v1-dense/checkpoint"))
	fixture.Write(t, dir, "README.md", "read me")
	fixture.Link(t, "README.md", filepath.Join(dir, "LICENSE"))
	p, err := planOf(t, dir, Options{})
	require.NoError(t, err)
	require.Equal(t, []string{"LICENSE", "README.md"}, p.CarriedNames())

	fixture.Link(t, filepath.Join(outside, "secret"), filepath.Join(dir, "vocab.txt"))
	fixture.Link(t, "../../blobs/gone", filepath.Join(dir, "tokenizer.json"))
	fixture.Link(t, "gone too", filepath.Join(dir, ".hidden"))
	_, err = planOf(t, dir, Options{})
	var e *problem.Error
	require.ErrorAs(t, err, &e)
	require.Len(t, e.Problems, 2)
	require.ErrorContains(t, err, "tokenizer.json: is a link to ../../blobs/gone, which does not exist")
	require.ErrorContains(t, err, "vocab.txt: is a link to "+outside+"/secret, outside the checkpoint")

	cache := t.TempDir()
	snapshot := filepath.Join(cache, "snapshots", "aa")
	require.NoError(t, os.CopyFS(filepath.Join(cache, "blobs"), os.DirFS(fixture.Path(t, "v1-dense/checkpoint"))))
	fixture.Write(t, filepath.Join(cache, "blobs"), "tokenizer", "{}")
	for link, blob := range map[string]string{"config.json": "config.json", "model.safetensors": "model.safetensors", "tokenizer.json": "tokenizer"} {
		fixture.Link(t, "../../blobs/"+blob, filepath.Join(snapshot, link))
	}
	for _, path := range []string{snapshot, cache} {
		p, err = planOf(t, path, Options{})
		require.NoError(t, err)
		require.Equal(t, []string{"tokenizer.json"}, p.CarriedNames())
	}
	fixture.Write(t, cache, "token", "x")
	fixture.Link(t, "../../token", filepath.Join(snapshot, "vocab.txt"))
	_, err = planOf(t, cache, Options{})
	require.ErrorContains(t, err, "vocab.txt: is a link to ")
	require.ErrorContains(t, err, "outside the checkpoint")
}

// TestUnusableNames: what a manifest cannot hold is refused before anything is written.
func TestUnusableNames(t *testing.T) {
	t.Parallel()
	dir := fixture.Clone(t, fixture.Path(t, "v1-dense/checkpoint"))
	fixture.Write(t, dir, "caf\xe9.txt", "x")
	_, err := planOf(t, dir, Options{})
	require.ErrorContains(t, err, `"caf\xe9.txt": its name is not UTF-8`)
}

// TestWhatIsSaid of files that go along as no reader expects, or not at all.
func TestWhatIsSaid(t *testing.T) {
	t.Parallel()
	dir := fixture.Clone(t, fixture.Path(t, "v1-dense/checkpoint"))
	notes := func(path string) string {
		p, err := planOf(t, path, Options{})
		require.NoError(t, err)
		return strings.Join(p.Notes, "\n")
	}
	require.Empty(t, notes(dir))
	require.Empty(t, notes(filepath.Join(dir, "model.safetensors")))

	fixture.Write(t, dir, "tokenizer.json", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n")
	fixture.Write(t, dir, "tiny.txt", "v")
	require.Contains(t, notes(dir), "tokenizer.json is copied as a Git LFS pointer")
	require.NotContains(t, notes(dir), "tiny.txt")
	require.Contains(t, notes(filepath.Join(dir, "model.safetensors")), "only model.safetensors is converted: files beside it, such as a tokenizer, are not copied")

	fixture.Write(t, dir, "adapter_config.json", "{}")
	fixture.Write(t, dir, "adapter_model.safetensors", "x")
	fixture.Write(t, dir, "adapter_model.safetensors.index.json", "x")
	fixture.Write(t, dir, "pytorch_model.bin.index.json", "x")
	p, err := planOf(t, dir, Options{})
	require.NoError(t, err)
	require.Contains(t, strings.Join(p.Notes, "\n"), "adapter_config.json: belongs to a PEFT adapter such as LoRA: transformers applies it")
	require.Equal(t, []string{"tiny.txt", "tokenizer.json"}, p.CarriedNames())
	require.Equal(t, []string{"adapter_config.json", "adapter_model.safetensors", "adapter_model.safetensors.index.json", "pytorch_model.bin.index.json"}, p.Left)
}

// TestMetadataIsMissed: texts of a header beyond the one that is written are named.
func TestMetadataIsMissed(t *testing.T) {
	t.Parallel()
	for want, metadata := range map[string]map[string]string{
		"": {"format": "pt"},
		"__metadata__ of the weight files is not carried over: \"a b\", author": {"format": "pt", "author": "me", "a b": "x"},
		"__metadata__ of the weight files is not carried over: format":          {"format": "mlx"},
	} {
		dir := fixture.Clone(t, fixture.Path(t, "v1-dense/checkpoint"))
		c := open(t, dir)
		var infos []tensor.Info
		for info := range c.Tensors() {
			infos = append(infos, info)
		}
		l, err := safetensors.NewLayout(infos, metadata)
		require.NoError(t, err)
		data := fixture.Read(t, dir, "model.safetensors")
		fixture.Write(t, dir, "model.safetensors", string(l.Header())+data[len(data)-int(l.Size()-int64(len(l.Header()))):])
		p, err := planOf(t, dir, Options{})
		require.NoError(t, err)
		require.Equal(t, want, strings.Join(p.Notes, "\n"))
	}
}
