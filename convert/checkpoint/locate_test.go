package checkpoint

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/internal/fixture"
	"dsmoe/text/problem"
)

// cacheOf makes a hub's cache with the fixture under each revision, and refs/main if it is
// not empty.
func cacheOf(t *testing.T, main string, revisions ...string) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "models--deepseek-ai--tiny")
	require.NoError(t, os.CopyFS(filepath.Join(root, "blobs"), os.DirFS(whole)))
	for _, revision := range revisions {
		for _, name := range []string{ConfigName, "model.safetensors"} {
			fixture.Link(t, "../../blobs/"+name, filepath.Join(root, "snapshots", revision, name))
		}
	}
	require.NoError(t, os.MkdirAll(filepath.Join(root, "snapshots"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "refs"), 0o755))
	if main != "" {
		fixture.Write(t, root, "refs/main", main)
	}
	return root
}

// TestCacheRoot: the root of a hub's cache stands for the snapshot that refs/main names,
// or for the only one, and which it is is said; where there is a choice, it is the user's.
func TestCacheRoot(t *testing.T) {
	for name, c := range map[string]struct{ root, snapshot, want string }{
		"main":         {cacheOf(t, "bb", "aa", "bb"), "bb", ""},
		"newline":      {cacheOf(t, "aa\n", "aa", "bb"), "aa", ""},
		"only one":     {cacheOf(t, "", "cc"), "cc", ""},
		"several":      {cacheOf(t, "", "aa", "bb"), "", "is a cache of the hub without refs/main: there is aa, bb"},
		"gone":         {cacheOf(t, "dd", "aa"), "", "refs/main names the snapshot dd, which is not there: there is aa"},
		"leads out":    {cacheOf(t, "../..", "aa"), "", "refs/main names the snapshot ../.., which is not there"},
		"no snapshots": {cacheOf(t, ""), "", "is a cache of the hub without a snapshot"},
	} {
		got, err := Open(c.root)
		if c.want != "" {
			var e *problem.Error
			require.ErrorAs(t, err, &e, name)
			require.ErrorContains(t, err, c.want, name)
			require.NotEmpty(t, e.Problems[0].Hint)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, filepath.Join(c.root, "snapshots", c.snapshot), got.Dir)
		require.Equal(t, c.root, got.Path)
		require.Contains(t, toJSON(t, got.Inventory.Notes), "is a cache of the hub: "+c.snapshot+" is the snapshot that is read")
		require.NoError(t, got.Close())
	}
	for _, path := range []string{whole, filepath.Join(whole, "model.safetensors"), "none"} {
		got, err := Snapshot(path)
		require.NoError(t, err)
		require.Equal(t, path, got)
	}
}

// TestAdapters: an adapter is no model, and is said to be none; beside a model it is no
// weight file of it.
func TestAdapters(t *testing.T) {
	dir := t.TempDir()
	fixture.Write(t, dir, "adapter_config.json", "{}")
	fixture.Write(t, dir, "adapter_model.safetensors", tinyFile("base_model.model.x.lora_A.weight"))
	for _, path := range []string{dir, filepath.Join(dir, "adapter_model.safetensors")} {
		_, err := Open(path)
		var e *problem.Error
		require.ErrorAs(t, err, &e)
		last := e.Problems[len(e.Problems)-1]
		require.Contains(t, last.Cause, "belongs to a PEFT adapter")
		require.Contains(t, last.Hint, "merges it into its base model")
		require.NotContains(t, err.Error(), "rename")
	}
	model := fixture.Clone(t, whole)
	fixture.Write(t, model, "adapter_model.safetensors", tinyFile("x"))
	notes := opened(t, model).Inventory.Notes
	require.Len(t, notes, 1)
	require.Contains(t, notes[0].String(), "adapter_model.safetensors: belongs to a PEFT adapter such as LoRA: transformers applies it")
}

// torchShards is a fixture's checkpoint in PyTorch's shards, without their index and with
// another prefix.
func torchShards(t *testing.T, prefix string) string {
	t.Helper()
	dir := fixture.Clone(t, "../../fixtures/torch-bin/checkpoint")
	fixture.Remove(t, dir, "pytorch_model.bin.index.json")
	for _, part := range []string{"-00001-of-00002.bin", "-00002-of-00002.bin"} {
		require.NoError(t, os.Rename(filepath.Join(dir, "pytorch_model"+part), filepath.Join(dir, prefix+part)))
	}
	return dir
}

// TestShardsWithoutIndex: PyTorch's shards are read if their names count all of them,
// whatever is before the numbers.
func TestShardsWithoutIndex(t *testing.T) {
	want := opened(t, "../../fixtures/torch-bin/checkpoint")
	for _, prefix := range []string{"pytorch_model", "model"} {
		dir := torchShards(t, prefix)
		fixture.Write(t, dir, "optimizer.bin", "state")
		got, err := Open(dir)
		require.NoError(t, err)
		fixture.RequireSameTensors(t, want, got)
		require.Contains(t, toJSON(t, got.Inventory.Notes), "missing: all 2 shards are read, as their names count them")
		require.NoError(t, got.Close())
	}
}

// TestUnclearShards: what no index lists is not read where a file is missing, too many, of
// another set, or holds what another does, or where there is an index of another name.
func TestUnclearShards(t *testing.T) {
	const first, second = "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"
	for name, c := range map[string]struct {
		change func(dir string)
		want   string
	}{
		"missing":    {func(dir string) { fixture.Remove(t, dir, second) }, "pytorch_model.bin.index.json: missing, but there are 1 shards"},
		"too many":   {func(dir string) { fixture.Write(t, dir, "pytorch_model-00003-of-00002.bin", "") }, "missing, but there are 3 shards"},
		"other set":  {func(dir string) { fixture.Write(t, dir, "model-00001-of-00001.bin", "") }, "missing, but there are 3 shards"},
		"other name": {func(dir string) { fixture.Write(t, dir, "pytorch_model_old.bin", "") }, "missing, but there are 2 shards"},
		"same number": {func(dir string) {
			require.NoError(t, os.Rename(filepath.Join(dir, second), filepath.Join(dir, "pytorch_model-000001-of-00002.bin")))
		}, "missing, but there are 2 shards"},
		"variant": {func(dir string) { fixture.Write(t, dir, "pytorch_model.bin.index.fp16.json", "{}") }, "missing, but there are 2 shards"},
		"twins":   {func(dir string) { fixture.Write(t, dir, second, fixture.Read(t, dir, first)) }, "is in " + first + " too"},
	} {
		dir := torchShards(t, "pytorch_model")
		c.change(dir)
		_, err := Open(dir)
		require.ErrorContains(t, err, c.want, name)
	}
}

// TestOtherNames: weights that can be read, under a name that nothing looks for, are not
// called unreadable.
func TestOtherNames(t *testing.T) {
	dir := t.TempDir()
	fixture.Write(t, dir, "optimizer.pt", "state")
	_, err := Open(dir)
	require.ErrorContains(t, err, "directory holds no model.safetensors")
	fixture.Write(t, dir, "consolidated.00.pth", "weights")
	_, err = Open(dir)
	require.ErrorContains(t, err, "pytorch_model.bin: missing, but there is consolidated.00.pth")
}

// TestCheckLink: a link is judged by where it leads, however it and the checkpoint's path
// are written.
func TestCheckLink(t *testing.T) {
	dir := fixture.Clone(t, whole)
	other := t.TempDir()
	fixture.Write(t, dir, "a", "x")
	fixture.Write(t, other, "b", "x")
	fixture.Link(t, filepath.Join(dir, "a"), filepath.Join(dir, "absolute"))
	fixture.Link(t, "a", filepath.Join(dir, "relative"))
	fixture.Link(t, "out", filepath.Join(dir, "over"))
	fixture.Link(t, filepath.Join(other, "b"), filepath.Join(dir, "out"))
	fixture.Link(t, dir, filepath.Join(other, "link"))
	t.Chdir(dir)
	for _, path := range []string{".", dir, filepath.Join(other, "link"), filepath.Join("..", filepath.Base(dir))} {
		c, err := Open(path)
		require.NoError(t, err)
		for _, name := range []string{"a", "absolute", "relative", ConfigName} {
			require.NoError(t, c.Source.CheckInside(name), "%s in %s", name, path)
		}
		for _, name := range []string{"out", "over"} {
			require.ErrorContains(t, c.Source.CheckInside(name), "outside the checkpoint", "%s in %s", name, path)
		}
		require.NoError(t, c.Close())
	}
}

// TestNoCache: a directory of snapshots alone is not the hub's.
func TestNoCache(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "snapshots", "step-100"), 0o755))
	got, err := Snapshot(dir)
	require.NoError(t, err)
	require.Equal(t, dir, got)
	_, err = Open(dir)
	require.ErrorContains(t, err, "holds no model.safetensors")
}
