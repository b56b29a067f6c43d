package checkpoint

import (
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/convert/internal/fixture"
	"dsmoe/text/problem"
)

// opened opens a copy of a fixture that a test may break.
func opened(t *testing.T, path string) *Checkpoint {
	t.Helper()
	c, err := Open(fixture.Clone(t, path))
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// TestReadAt: a part of a tensor, read from the file, is that part of its view; what is
// not there, or not any more, is an error that names it.
func TestReadAt(t *testing.T) {
	t.Parallel()
	c := opened(t, sharded)
	for _, name := range []string{embed, lmHead} {
		view, err := c.Tensor(name)
		require.NoError(t, err)
		got := make([]byte, 100)
		require.NoError(t, c.ReadAt(name, got, 51))
		require.Equal(t, string(view.Data[51:151]), string(got))
	}
	require.ErrorContains(t, c.ReadAt("nothing", nil, 0), "tensor nothing: not in this checkpoint")
	_, _, err := c.Place("nothing")
	require.ErrorContains(t, err, "tensor nothing: not in this checkpoint")

	require.NoError(t, os.Truncate(filepath.Join(c.Dir, shard3), 100))
	err = c.ReadAt(lmHead, make([]byte, 8), 1000)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.ErrorContains(t, err, shard3+": byte ")

	fixture.Remove(t, c.Dir, shard2)
	err = c.ReadFile(1, make([]byte, 8), 0)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, shard2)
}

// TestIdentity: a file's identity follows from its header alone, its state from sizes and
// times.
func TestIdentity(t *testing.T) {
	t.Parallel()
	identities := func(c *Checkpoint) (all []string) {
		for i := range c.Inventory.Files {
			id, err := c.Identity(i)
			require.NoError(t, err)
			all = append(all, id)
		}
		return all
	}
	c := opened(t, sharded)
	before, key := identities(c), keyOf(t, c)
	require.NotEqual(t, before[0], before[1])
	require.Equal(t, key, keyOf(t, c))

	_, offset, err := c.Place(embed)
	require.NoError(t, err)
	path := filepath.Join(c.Dir, shard1)
	stat, err := os.Stat(path)
	require.NoError(t, err)
	fixture.Flip(t, path, offset)
	require.NoError(t, os.Chtimes(path, time.Now(), stat.ModTime()))
	require.Equal(t, before, identities(c))
	changed := keyOf(t, c)
	require.NotEqual(t, key, changed, "the time of modification was set back")
	require.NoError(t, os.Chtimes(path, time.Now(), stat.ModTime().Add(time.Nanosecond)))
	require.NotEqual(t, changed, keyOf(t, c))

	torch := opened(t, "../../fixtures/torch-bin/checkpoint")
	ids := identities(torch)
	require.Len(t, ids, 2)
	require.NotEqual(t, ids[0], ids[1])

	fixture.Remove(t, c.Dir, shard1)
	_, err = c.Key()
	require.ErrorIs(t, err, os.ErrNotExist)
}

func keyOf(t *testing.T, c *Checkpoint) string {
	t.Helper()
	key, err := c.Key()
	require.NoError(t, err)
	return key
}

// TestOthers: files without weights are read as they are, config.json among them.
func TestOthers(t *testing.T) {
	t.Parallel()
	c := opened(t, whole)
	text, err := c.ConfigText()
	require.NoError(t, err)
	require.Equal(t, fixture.Read(t, whole, ConfigName), string(text))
	_, err = c.OpenOther("none.txt")
	require.ErrorIs(t, err, os.ErrNotExist)
	fixture.Write(t, c.Dir, ConfigName, strings.Repeat(" ", config.MaxSize+100))
	text, err = c.ConfigText()
	require.NoError(t, err)
	require.Len(t, text, config.MaxSize+1, "enough to be refused")
	fixture.Remove(t, c.Dir, ConfigName)
	_, err = c.ConfigText()
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestClosed: a checkpoint that was closed gives no views; a second Close does nothing.
func TestClosed(t *testing.T) {
	t.Parallel()
	c := opened(t, sharded)
	require.NoError(t, c.ReadAt(embed, make([]byte, 1), 0))
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	_, err := c.Tensor(embed)
	require.ErrorContains(t, err, "file is closed")
}

// TestIndexVariant: an index with a variant in its name, given by its own path, and the
// shards that it names.
func TestIndexVariant(t *testing.T) {
	t.Parallel()
	dir := fixture.Clone(t, sharded)
	const variant = "model.safetensors.index.fp16.json"
	index := fixture.Read(t, dir, formats[0].Index)
	for _, shard := range []string{shard1, shard2, shard3} {
		renamed := strings.Replace(shard, "model", "model.fp16", 1)
		require.NoError(t, os.Rename(filepath.Join(dir, shard), filepath.Join(dir, renamed)))
		index = strings.ReplaceAll(index, shard, renamed)
	}
	fixture.Remove(t, dir, formats[0].Index)
	fixture.Write(t, dir, variant, index)
	c, err := Open(filepath.Join(dir, variant))
	require.NoError(t, err)
	defer c.Close()
	require.Empty(t, c.Inventory.Notes)
	want := opened(t, sharded)
	fixture.RequireSameTensors(t, want, c)
	_, err = Open(dir)
	require.ErrorContains(t, err, formats[0].Index+": missing, but there are 3 shards")
}

// TestFormatsOfNames: which files hold weights, in a format that is read or in another,
// and which list them.
func TestFormatsOfNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"model.safetensors":                 "safetensors, weights",
		"pytorch_model.bin":                 "PyTorch, weights",
		"x.pt":                              "PyTorch, weights",
		"x.pth":                             "PyTorch, weights",
		"x.gguf":                            "GGUF, weights",
		"X.GGUF":                            "GGUF, weights",
		"x.ckpt":                            ", weights",
		"x.BIN":                             ", weights",
		"x.h5":                              ", weights",
		"x.msgpack":                         ", weights",
		"x.onnx":                            ", weights",
		"x.npz":                             ", weights",
		"model.safetensors.index.json":      ", index of safetensors",
		"model.safetensors.index.fp16.json": ", index of safetensors",
		"pytorch_model.bin.index.json":      ", index of PyTorch",
		"pytorch_model.bin.index.bf16.json": ", index of PyTorch",
		"index.json":                        "",
		"model.safetensors.json":            "",
		"tokenizer.json":                    "",
		"safetensors":                       "",
		"model.safetensors.index.json.lock": "",
		"modeling_deepseek.py":              "",
		"optimizer.safetensors.index.json.download": "",
	} {
		got := ""
		if f := FormatOf(name); f != nil {
			got = f.Name
		}
		if IsWeights(name) {
			got += ", weights"
		}
		if IsIndex(name) {
			got += ", index of " + indexFormat(name).Name
		}
		require.Equal(t, want, got, name)
	}
	for _, name := range append(WrittenNames(), "") {
		f, err := Written(name)
		require.NoError(t, err)
		require.NotNil(t, f.Layout, "what is written can be laid out")
	}
	_, err := Written("pytorch")
	require.EqualError(t, err, "format pytorch: safetensors and gguf can be written")
}

// TestLargeIndex: an index beyond the limits is refused without being read to its end.
func TestLargeIndex(t *testing.T) {
	t.Parallel()
	dir := fixture.Clone(t, sharded)
	require.NoError(t, os.Truncate(filepath.Join(dir, formats[0].Index), maxIndexSize+1))
	_, err := Open(dir)
	require.ErrorContains(t, err, "64.00 MiB (67,108,865 bytes), more than the limit of 64.00 MiB")

	var b strings.Builder
	b.WriteString(`{"weight_map":{`)
	for i := range maxShards + 1 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"t%d":"%d.safetensors"`, i, i)
	}
	_, err = parseIndex(strings.NewReader(b.String()+"}}"), "index", formats[0])
	require.ErrorContains(t, err, "weight_map names 10001 files, more than the limit of 10000")
	for name, want := range map[string]string{"": "name is empty", "a\\n": "cannot be printed"} {
		_, err = parseIndex(strings.NewReader(`{"weight_map":{"`+name+`":"a.safetensors"}}`), "index", formats[0])
		require.ErrorContains(t, err, want)
	}
}

// TestPlacesOfFaults: a fault in a header is told with the byte at which it lies.
func TestPlacesOfFaults(t *testing.T) {
	t.Parallel()
	dir := fixture.Clone(t, whole)
	fixture.Replace(t, dir, "model.safetensors", `"dtype":"BF16"`, `"dtype":"BF15"`)
	_, err := Open(dir)
	var all *problem.Error
	require.ErrorAs(t, err, &all)
	require.Regexp(t, `^byte \d+: unknown dtype "BF15"$`, all.Problems[0].Cause)
	require.NotEmpty(t, all.Problems[0].Tensor)
}

// TestRoom: what does not fit is said of the checkpoint, with what to do.
func TestRoom(t *testing.T) {
	t.Parallel()
	c := opened(t, whole)
	require.NoError(t, c.Room(1))
	require.True(t, c.HasViews())
	err := c.Room(math.MaxInt64)
	var e *problem.Error
	require.ErrorAs(t, err, &e)
	require.ErrorContains(t, err, c.Path+": no room for ")
	require.Contains(t, e.Problems[0].Hint, "ulimit -v unlimited")
}
