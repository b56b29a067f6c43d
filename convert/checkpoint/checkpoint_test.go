package checkpoint

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/internal/fixture"
	"dsmoe/model/tensor"
	"dsmoe/text/problem"
)

func TestOpenFixtures(t *testing.T) {
	dirs, err := filepath.Glob("../../fixtures/*/checkpoint/*.safetensors")
	require.NoError(t, err)
	require.NotEmpty(t, dirs)
	for _, path := range dirs {
		c, err := Open(filepath.Dir(path))
		require.NoError(t, err)
		require.Empty(t, c.Inventory.Notes)
		for info := range c.Tensors() {
			v, err := c.Tensor(info.Name)
			require.NoError(t, err)
			require.Len(t, v.Data, int(info.Bytes()))
		}
		_, err = c.Tensor("nothing")
		require.ErrorContains(t, err, "tensor nothing: not in this checkpoint")
		require.NoError(t, c.Close())
	}
}

func TestOpenOneFileAndIndex(t *testing.T) {
	dir, err := Open(sharded)
	require.NoError(t, err)
	defer dir.Close()
	index, err := Open(filepath.Join(sharded, "model.safetensors.index.json"))
	require.NoError(t, err)
	defer index.Close()
	fixture.RequireSameTensors(t, dir, index)

	one, err := Open(filepath.Join(sharded, shard1))
	require.NoError(t, err)
	defer one.Close()
	require.Len(t, one.Inventory.Files, 1)
	require.Contains(t, toJSON(t, one.Inventory.Notes), "it is 00001 of 00003")

	file, err := Open(filepath.Join(whole, "model.safetensors"))
	require.NoError(t, err)
	defer file.Close()
	require.Empty(t, file.Inventory.Notes)
}

// TestHubCache opens the layout of a Hugging Face cache: every file is a link.
func TestHubCache(t *testing.T) {
	root := t.TempDir()
	snapshot := filepath.Join(root, "snapshots", "0123abcd")
	require.NoError(t, os.CopyFS(filepath.Join(root, "blobs"), os.DirFS(sharded)))
	for _, name := range []string{ConfigName, "model.safetensors.index.json", shard1, shard2, shard3} {
		fixture.Link(t, "../../blobs/"+name, filepath.Join(snapshot, name))
	}
	c, err := Open(snapshot)
	require.NoError(t, err)
	require.NoError(t, c.Close())

	fixture.Remove(t, filepath.Join(root, "blobs"), shard2)
	_, err = Open(snapshot)
	require.ErrorContains(t, err, shard2+": is a link to ../../blobs/"+shard2+", which does not exist")
}

// broken is a fixture, what is done to it, and what Open must say. The strings
// in want are parts of the error, those in notes of the notes.
type broken struct {
	name    string
	fixture string
	change  func(t *testing.T, dir string)
	want    []string
	notes   []string
}

func brokenFiles() []broken {
	lfs := "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 228296\n"
	return []broken{
		{"lfs pointer", sharded, func(t *testing.T, dir string) { fixture.Write(t, dir, shard2, lfs) },
			[]string{shard2 + ": is a Git LFS pointer"}, nil},
		{"truncated shard", sharded, func(t *testing.T, dir string) {
			data := fixture.Read(t, dir, shard2)
			fixture.Write(t, dir, shard2, data[:len(data)-1000])
		}, []string{shard2 + ": tensor model.layers.", "file is cut off: 1,000 bytes of"}, nil},
		{"shard of headers only", sharded, func(t *testing.T, dir string) {
			data := fixture.Read(t, dir, shard1)
			fixture.Write(t, dir, shard1, data[:headerLength(data)])
		}, []string{"tensor " + embed + ": file is cut off"}, nil},
		{"trailing bytes", whole, func(t *testing.T, dir string) {
			fixture.Write(t, dir, "model.safetensors", fixture.Read(t, dir, "model.safetensors")+"x")
		},
			[]string{"model.safetensors" + ": 1 byte too many"}, nil},
		{"missing shard", sharded, func(t *testing.T, dir string) { fixture.Remove(t, dir, shard3) },
			[]string{dirError(shard3 + ": missing, and " + "model.safetensors.index.json" + " names it for ")}, nil},
		{"all shards missing", sharded, func(t *testing.T, dir string) { fixture.Remove(t, dir, shard1, shard2, shard3) },
			[]string{"3 problems: ", shard1 + ": missing", shard3 + ": missing"}, nil},
		{"dangling shard", sharded, func(t *testing.T, dir string) {
			fixture.Remove(t, dir, shard3)
			fixture.Link(t, "../gone", filepath.Join(dir, shard3))
		}, []string{shard3 + ": is a link to ../gone, which does not exist"}, nil},
		{"fifo", sharded, func(t *testing.T, dir string) {
			fixture.Remove(t, dir, shard3)
			require.NoError(t, syscall.Mkfifo(filepath.Join(dir, shard3), 0o644))
		}, []string{shard3 + ": is a FIFO, not a regular file"}, nil},
		{"shard is a directory", sharded, func(t *testing.T, dir string) {
			fixture.Remove(t, dir, shard3)
			require.NoError(t, os.Mkdir(filepath.Join(dir, shard3), 0o755))
		}, []string{shard3 + ": is a directory"}, nil},
		{"no weights", whole, func(t *testing.T, dir string) { fixture.Remove(t, dir, "model.safetensors") },
			[]string{"directory holds no " + "model.safetensors"}, nil},
		{"empty directory", whole, func(t *testing.T, dir string) { fixture.Remove(t, dir, "model.safetensors", ConfigName) },
			[]string{"config.json: no such file", "directory is empty"}, nil},
		{"pickle only", whole, func(t *testing.T, dir string) {
			require.NoError(t, os.Rename(filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "pytorch_model.bin")))
		}, []string{"pytorch_model.bin: is not a zip archive"}, nil},
		{"gguf only", whole, func(t *testing.T, dir string) {
			require.NoError(t, os.Rename(filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "model.gguf")))
		}, []string{"model.gguf: is not a GGUF file"}, nil},
		{"pickle named safetensors", whole, func(t *testing.T, dir string) {
			fixture.Write(t, dir, "model.safetensors", "PK\x03\x04\x00\x00\x08\x08")
		},
			[]string{"model.safetensors" + ": is a zip archive"}, nil},
		{"other name", whole, func(t *testing.T, dir string) {
			require.NoError(t, os.Rename(filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "weights.safetensors")))
		}, []string{"model.safetensors" + ": missing, but there is weights.safetensors"}, nil},
		{"many problems", sharded, func(t *testing.T, dir string) {
			fixture.Write(t, dir, ConfigName, `{"model_type":"deepseek","hidden_size":0}`)
			fixture.Write(t, dir, shard1, "")
			fixture.Write(t, dir, shard3, lfs)
		}, []string{"config.json: hidden_size", shard1 + ": file is empty", shard3 + ": is a Git LFS pointer"}, nil},
		{"no config", whole, func(t *testing.T, dir string) { fixture.Remove(t, dir, ConfigName) }, []string{dirError("config.json: no such file")}, nil},
		{"config is not JSON", whole, func(t *testing.T, dir string) { fixture.Write(t, dir, ConfigName, "<html>") }, []string{"config.json: "}, nil},
	}
}

func dirError(text string) string { return "checkpoint: " + text }

func brokenIndexes() []broken {
	index := func(text string) func(*testing.T, string) {
		return func(t *testing.T, dir string) { fixture.Write(t, dir, "model.safetensors.index.json", text) }
	}
	edit := func(old, new string) func(*testing.T, string) {
		return func(t *testing.T, dir string) { fixture.Replace(t, dir, "model.safetensors.index.json", old, new) }
	}
	entry := func(value string) func(*testing.T, string) {
		return edit(`"`+lmHead+`": "`+shard3+`"`, `"`+lmHead+`": `+value)
	}
	return []broken{
		{"no index", sharded, func(t *testing.T, dir string) { fixture.Remove(t, dir, "model.safetensors.index.json") }, []string{"model.safetensors.index.json" + ": missing, but there are 3 shards"}, nil},
		{"empty index", sharded, index(""), []string{dirError("model.safetensors.index.json" + ": file is empty")}, nil},
		{"index is null", sharded, index("null"), []string{"index is not an object"}, nil},
		{"index is an array", sharded, index("[]"), []string{"index is not an object"}, nil},
		{"no weight_map", sharded, index(`{"metadata":{}}`), []string{"weight_map is missing"}, nil},
		{"weight_map is empty", sharded, index(`{"weight_map":{}}`), []string{dirError("model.safetensors.index.json: weight_map is empty")}, nil},
		{"another model's index", sharded, index(`{"weight_map":{"lang.model.norm.weight":"` + shard1 + `","b":"gone.safetensors"}}`),
			[]string{dirError("model.safetensors.index.json: weight_map names no weight that config.json implies; its 2 names begin with lang.model.norm.weight")}, nil},
		{"weight_map in other case", sharded, edit(`"weight_map"`, `"Weight_Map"`), []string{"weight_map is missing"}, nil},
		{"weight_map is an array", sharded, index(`{"weight_map":[]}`), []string{"weight_map is not an object"}, nil},
		{"weight_map twice", sharded, index(`{"weight_map":{},"weight_map":{}}`), []string{"key weight_map occurs twice"}, nil},
		{"tensor twice", sharded, entry(`"` + shard3 + `", "lm_\u0068ead.weight": "` + shard3 + `"`), []string{"key lm_head.weight occurs twice"}, nil},
		{"key twice in unknown object", sharded, index(`{"x":{"a":[1,{"b":1,"b":1}]},"weight_map":{}}`), []string{"key b occurs twice"}, nil},
		{"deep", sharded, index(`{"x":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`), []string{"nested more than 64 levels"}, nil},
		{"byte order mark", sharded, index("\ufeff{}"), []string{"model.safetensors.index.json" + ": byte 0", "a byte order mark (BOM)"}, nil},
		{"truncated", sharded, index(`{"weight_map":{"a":`), []string{"model.safetensors.index.json" + ": byte", "not valid JSON"}, nil},
		{"two objects", sharded, index(`{"weight_map":{}}{}`), []string{"text after the end"}, nil},
		{"bad UTF-8", sharded, index("{\"weight_map\":{\"\xff\":\"a\"}}"), []string{"invalid UTF-8"}, nil},
		{"metadata is a string", sharded, index(`{"metadata":"x","weight_map":{}}`), []string{"metadata is not an object"}, nil},
		{"value is a number", sharded, entry("3"), []string{"weight_map: lm_head.weight: file name is not a string"}, nil},
		{"path traversal", sharded, entry(`"../other/model.safetensors"`), []string{"../other/model.safetensors leads out"}, nil},
		{"absolute path", sharded, entry(`"/etc/model.safetensors"`), []string{"/etc/model.safetensors leads out"}, nil},
		{"subdirectory", sharded, entry(`"sub/model.safetensors"`), []string{"is in a directory of its own; move it beside the index"}, nil},
		{"here", sharded, func(t *testing.T, dir string) {
			fixture.Replace(t, dir, "model.safetensors.index.json", `"`+shard1+`"`, `"./`+shard1+`"`)
			fixture.Replace(t, dir, "model.safetensors.index.json", `"`+shard2+`"`, `".\\`+shard2+`"`)
		}, nil, nil},
		{"part of a rank", whole, func(t *testing.T, dir string) {
			require.NoError(t, os.Rename(filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "model0-mp4.safetensors")))
		}, []string{"missing, but there is model0-mp4.safetensors"}, nil},
		{"backslash", sharded, entry(`"..\\model.safetensors"`), []string{"leads out"}, nil},
		{"dots", sharded, entry(`".."`), []string{"is not the name of a safetensors file"}, nil},
		{"extension only", sharded, entry(`".safetensors"`), []string{"is not the name of a safetensors file"}, nil},
		{"pickle shard", sharded, entry(`"model.bin"`), []string{"is not the name of a safetensors file"}, nil},
		{"escape in file name", sharded, entry(`"a\u001b[31m.safetensors"`), []string{"is not a usable file name"}, nil},
		{"NUL in file name", sharded, entry(`"a\u0000.safetensors"`), []string{"is not a usable file name"}, nil},
		{"stale: tensor is nowhere", sharded, entry(`"` + shard3 + `", "model.old.weight": "` + shard2 + `"`),
			[]string{dirError(shard2 + ": tensor model.old.weight: missing, though " + "model.safetensors.index.json" + " puts it here")}, nil},
		{"stale: tensor is elsewhere", sharded, entry(`"` + shard1 + `"`), []string{shard1 + ": tensor lm_head.weight: missing", "it is in " + shard3}, nil},
		{"not listed", sharded, edit(`"`+embed+`": "`+shard1+`",`, ""), []string{dirError(shard1 + ": tensor " + embed + ": not listed in " + "model.safetensors.index.json")}, nil},
		{"unnamed shard", sharded, func(t *testing.T, dir string) {
			fixture.Write(t, dir, "model-00004-of-00003.safetensors", tinyFile("extra"))
		}, []string{"model-00004-of-00003.safetensors: a shard of this checkpoint that " + "model.safetensors.index.json" + " does not name"}, nil},
		{"twin tensor", sharded, func(t *testing.T, dir string) {
			fixture.Write(t, dir, "twin.safetensors", tinyFile(embed, "new"))
			fixture.Replace(t, dir, "model.safetensors.index.json", `"`+lmHead+`"`, `"new": "twin.safetensors", "`+lmHead+`"`)
		}, []string{"twin.safetensors: tensor " + embed + ": is in " + shard1 + " too"}, nil},
		{"total_size", sharded, edit(`"total_size": 763008`, `"total_size": 763009`), nil, []string{"metadata.total_size is 763009, but the tensors have 745.12 KiB (763,008 bytes)"}},
		{"total_size as float", sharded, edit(`"total_size": 763008`, `"total_size": 763008.0`), nil, nil},
		{"total_size as string", sharded, edit(`"total_size": 763008`, `"total_size": "763008"`), nil, []string{"total_size is missing"}},
		{"no metadata", sharded, edit(`"metadata"`, `"other"`), nil, []string{"total_size is missing"}},
		{"metadata null", sharded, edit(`"metadata": {`, `"metadata": null, "other": {`), nil, []string{"total_size is missing"}},
		{"stray file", sharded, func(t *testing.T, dir string) { fixture.Write(t, dir, "adapter.safetensors", "whatever") },
			nil, []string{"adapter.safetensors\",\"cause\":\"not read"}},
		{"stray shard of another set", sharded, func(t *testing.T, dir string) {
			fixture.Write(t, dir, "model-00001-of-00002.safetensors", "whatever")
		}, nil, []string{"model-00001-of-00002.safetensors\",\"cause\":\"not read"}},
		{"single file beside index", sharded, func(t *testing.T, dir string) { fixture.Write(t, dir, "model.safetensors", tinyFile("a")) },
			nil, []string{"model.safetensors.index.json" + "\",\"cause\":\"not read", shard2 + "\",\"cause\":\"not read"}},
	}
}

func TestBrokenCheckpoints(t *testing.T) {
	for _, c := range append(brokenFiles(), brokenIndexes()...) {
		t.Run(c.name, func(t *testing.T) {
			dir := fixture.Clone(t, c.fixture)
			c.change(t, dir)
			requireFindings(t, dir, c)
		})
	}
}

func requireFindings(t *testing.T, path string, c broken) {
	t.Helper()
	inv, err := Opener{}.ScanPart(path, nil)
	require.NoError(t, err)
	notes := toJSON(t, inv.Notes)
	for _, want := range c.notes {
		require.Contains(t, notes, want)
	}
	checkpoint, err := Open(path)
	if c.want == nil {
		require.NoError(t, err)
		require.Equal(t, len(c.notes) == 0, len(inv.Notes) == 0, "%s", notes)
		require.NoError(t, checkpoint.Close())
		return
	}
	var all *problem.Error
	require.ErrorAs(t, err, &all)
	require.Equal(t, inv.Problems, all.Problems)
	for _, want := range c.want {
		require.Contains(t, err.Error(), want)
	}
	require.NotContains(t, err.Error(), "\n")
	require.Less(t, len(err.Error()), 16<<10)
}

func TestUnusablePaths(t *testing.T) {
	dir := t.TempDir()
	fixture.Write(t, dir, "model.gguf", "GGUF")
	fixture.Write(t, dir, "model.ckpt", "")
	fixture.Write(t, dir, "readme", "")
	fixture.Link(t, "gone", filepath.Join(dir, "dangling"))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "fifo.safetensors"), 0o644))
	for path, want := range map[string]string{
		filepath.Join(dir, "none"):     "none: no such file or directory",
		filepath.Join(dir, "dangling"): "is a link to gone, which does not exist",

		filepath.Join(dir, "model.ckpt"):       "is a PyTorch pickle",
		filepath.Join(dir, "readme"):           "is not a checkpoint",
		filepath.Join(dir, "fifo.safetensors"): "neither a directory nor a regular file",
		filepath.Join(whole, ConfigName):       "is a config, not a checkpoint",
	} {
		_, err := Opener{}.ScanPart(path, nil)
		var all *problem.Error
		require.ErrorAs(t, err, &all)
		require.ErrorContains(t, err, want)
		_, err = Open(path)
		require.ErrorContains(t, err, want)
	}
}

func TestInventory(t *testing.T) {
	inv, err := Opener{}.ScanPart(sharded, nil)
	require.NoError(t, err)
	require.Len(t, inv.Files, 3)
	require.Equal(t, shard1, inv.Files[0].Name)
	require.Equal(t, int64(307456), inv.Files[0].Bytes)
	require.Equal(t, []dtypeCount{{tensor.BF16, inv.Files[0].Tensors, 307456}}, inv.Files[0].DTypes)
	require.Equal(t, "763008", inv.Index.TotalSize)
	require.Contains(t, toJSON(t, inv), `"dtype":"BF16"`)
}

// state reads the names and shapes of DeepSeekMoE-16B.
func state(t testing.TB) []tensor.Info {
	t.Helper()
	f, err := os.Open("../../fixtures/states/deepseek-moe-16b/tensors.json.gz")
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	dec := json.NewDecoder(z)
	var infos []tensor.Info
	for _, err := dec.Token(); dec.More(); { // {"name":[dim,…],…} in the order of the model
		require.NoError(t, err)
		name, err := dec.Token()
		require.NoError(t, err)
		info := tensor.Info{Name: name.(string), DType: tensor.BF16}
		require.NoError(t, dec.Decode(&info.Shape))
		infos = append(infos, info)
	}
	require.Len(t, infos, 5466)
	return infos
}

// sparse makes a checkpoint of the real size whose data occupies no disk.
func sparse(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	fixture.Sparse(t, dir, formats[0], state(t), 5_000_000_000)
	fixture.Write(t, dir, ConfigName, fixture.Read(t, "../../fixtures/states/deepseek-moe-16b", ConfigName))
	return dir
}

func TestOpen16B(t *testing.T) {
	c, err := Open(sparse(t))
	require.NoError(t, err)
	defer c.Close()
	require.Empty(t, c.Inventory.Notes)
	require.Len(t, c.Inventory.Files, 7)
	require.Len(t, slices.Collect(c.Tensors()), 5466)
	v, err := c.Tensor(lmHead)
	require.NoError(t, err)
	require.Len(t, v.Data, 102400*2048*2)
	require.Zero(t, v.Data[len(v.Data)-1])
}

func BenchmarkOpen16B(b *testing.B) {
	dir := sparse(b)
	for b.Loop() {
		c, err := Open(dir)
		require.NoError(b, err)
		require.NoError(b, c.Close())
	}
}

func FuzzIndex(f *testing.F) {
	data, err := os.ReadFile(filepath.Join(sharded, "model.safetensors.index.json"))
	require.NoError(f, err)
	for _, text := range []string{string(data[:200]), `{"weight_map":{}}`, `{"weight_map":{"a":"b.safetensors"},"metadata":{"total_size":1.0}}`,
		`{"metadata":null,"weight_map":{"a":"../b.safetensors"}}`, `{"x":[[{}]],"weight_map":{"a":"b.safetensors","a":"c.safetensors"}}`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		x, err := parseIndex(strings.NewReader(text), "model.safetensors.index.json", formats[0])
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			require.Less(t, len(err.Error()), 1000)
			return
		}
		var oracle struct {
			Weights map[string]string `json:"weight_map"`
		}
		require.NoError(t, json.Unmarshal([]byte(text), &oracle))
		require.GreaterOrEqual(t, len(oracle.Weights), len(x.weights)) // the oracle folds case
		for _, w := range x.weights {
			require.Equal(t, w.file, filepath.Base(w.file))
		}
	})
}

func TestIndexReadError(t *testing.T) {
	_, err := parseIndex(io.MultiReader(strings.NewReader(`{"weight_map":{`), errReader{}), "model.safetensors.index.json", formats[0])
	require.ErrorContains(t, err, "disk on fire")
}

type errReader struct{}

// Read implements io.Reader.
func (errReader) Read([]byte) (int, error) { return 0, errors.New("disk on fire") }

// TestOtherTools: what another tool left has a hint that says how to make a checkpoint of it.
func TestOtherTools(t *testing.T) {
	for file, want := range map[string]string{"zero_to_fp32.py": "python zero_to_fp32.py", ".metadata": "dcp_to_torch",
		"model3-mp4.safetensors": "one rank's part", "model-rank-1-part-0.safetensors": "one rank's part"} {
		dir := t.TempDir()
		fixture.Write(t, dir, file, "")
		_, err := Open(dir)
		var all *problem.Error
		require.ErrorAs(t, err, &all)
		require.True(t, slices.ContainsFunc(all.Problems, func(p problem.Problem) bool { return strings.Contains(p.Hint, want) }), file)
	}
}
