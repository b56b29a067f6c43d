package convert

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model/tensor"
)

func TestIndexBytes(t *testing.T) {
	x, err := readIndex(sharded, indexName)
	require.NoError(t, err)
	require.Equal(t, readFile(t, sharded, indexName), string(appendIndex(nil, 763008, x.weights)))
}

func TestWriteRoundTrip(t *testing.T) {
	for _, fixture := range []string{sharded, whole} {
		src, err := Open(fixture)
		require.NoError(t, err)
		defer src.Close()
		for _, limit := range []int64{0, 200_000, 100} {
			t.Run(fmt.Sprintf("%s by %d", filepath.Base(filepath.Dir(fixture)), limit), func(t *testing.T) {
				dst := filepath.Join(t.TempDir(), "out")
				require.NoError(t, Write(t.Context(), dst, copyOf(t, src), WriteOptions{MaxShardBytes: limit, TileBytes: 1000}))
				got, err := Open(dst)
				require.NoError(t, err)
				defer got.Close()
				require.Empty(t, got.Inventory.Notes)
				require.Equal(t, limit == 0, got.Inventory.Index == nil)
				requireSameTensors(t, src, got)
				require.Equal(t, src.Config, got.Config)
				requireEntries(t, filepath.Dir(dst), "out")
			})
		}
	}
}

// TestWriteReproducesPython writes a checkpoint that Python wrote, byte by byte.
func TestWriteReproducesPython(t *testing.T) {
	src, err := Open(whole)
	require.NoError(t, err)
	defer src.Close()
	dst := filepath.Join(t.TempDir(), "out")
	require.NoError(t, Write(t.Context(), dst, copyOf(t, src), WriteOptions{}))
	require.Equal(t, sums(t, whole), sums(t, dst))
}

func TestWriteDoesNotDependOnWorkers(t *testing.T) {
	src, err := Open(sharded)
	require.NoError(t, err)
	defer src.Close()
	var want map[string][32]byte
	for _, o := range []WriteOptions{{Workers: 1}, {Workers: 8, TileBytes: 64}, {Workers: 3, TileBytes: 1}} {
		o.MaxShardBytes = 300_000
		dst := filepath.Join(t.TempDir(), "out")
		require.NoError(t, Write(t.Context(), dst, copyOf(t, src), o))
		if want == nil {
			want = sums(t, dst)
		}
		require.Equal(t, want, sums(t, dst))
	}
}

func TestWriteTiles(t *testing.T) {
	infos := []tensor.Info{
		{Name: "f6", DType: tensor.F6E2M3, Shape: []int{400}},
		{Name: "f4", DType: tensor.F4, Shape: []int{10, 100}},
		{Name: "f64", DType: tensor.F64, Shape: []int{100}},
		{Name: "bf16", DType: tensor.BF16, Shape: []int{33}},
		{Name: "empty", DType: tensor.F32, Shape: []int{0, 5}},
		{Name: "scalar", DType: tensor.F32, Shape: []int{}},
	}
	var filled, reported atomic.Int64
	out := Output{Tensors: infos, Config: []byte("{}"), Fill: func(_ context.Context, info tensor.Info, dst []byte, offset int64) error {
		require.LessOrEqual(t, len(dst), 61)
		require.Zero(t, len(dst)*8%info.DType.Bits(), info.Name)
		require.Zero(t, offset*8%int64(info.DType.Bits()), info.Name)
		filled.Add(int64(len(dst)))
		return nil
	}}
	dst := filepath.Join(t.TempDir(), "out")
	total := int64(300 + 500 + 800 + 66 + 4)
	require.NoError(t, Write(t.Context(), dst, out, WriteOptions{TileBytes: 61, Progress: func(n int64) { reported.Add(n) }}))
	require.Equal(t, total, filled.Load())
	require.Equal(t, total, reported.Load())
}

func TestWriteFailureLeavesNothing(t *testing.T) {
	src, err := Open(sharded)
	require.NoError(t, err)
	defer src.Close()
	boom := errors.New("boom")
	for _, at := range []int64{0, 1, 50, 100} {
		parent := t.TempDir()
		out := copyOf(t, src)
		fill, calls := out.Fill, atomic.Int64{}
		out.Fill = func(ctx context.Context, info tensor.Info, dst []byte, offset int64) error {
			if calls.Add(1) > at {
				return boom
			}
			return fill(ctx, info, dst, offset)
		}
		err := Write(t.Context(), filepath.Join(parent, "out"), out, WriteOptions{MaxShardBytes: 300_000})
		require.ErrorIs(t, err, boom)
		require.ErrorContains(t, err, "out: model-0000")
		require.ErrorContains(t, err, ": tensor ")
		requireEntries(t, parent)
	}
}

func TestWriteCancelled(t *testing.T) {
	src, err := Open(sharded)
	require.NoError(t, err)
	defer src.Close()
	for _, at := range []int64{0, 1, 50, 183} {
		parent := t.TempDir()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if at == 0 {
			cancel()
		}
		n := int64(0)
		o := WriteOptions{MaxShardBytes: 300_000, Progress: func(int64) {
			if n++; n == at {
				cancel()
			}
		}}
		require.ErrorIs(t, Write(ctx, filepath.Join(parent, "out"), copyOf(t, src), o), context.Canceled)
		requireEntries(t, parent)
	}
}

func TestWriteTargets(t *testing.T) {
	src, err := Open(whole)
	require.NoError(t, err)
	defer src.Close()
	parent := t.TempDir()
	writeFile(t, parent, "file", "kept")
	for _, dir := range []string{"full/sub", "empty"} {
		require.NoError(t, os.MkdirAll(filepath.Join(parent, dir), 0o755))
	}
	link(t, "empty", filepath.Join(parent, "link"))
	for name, want := range map[string]string{
		"full": "directory is not empty: it holds sub", "file": "exists and is not", "link": "exists and is not", "none/out": "does not exist",
	} {
		require.ErrorContains(t, Write(t.Context(), filepath.Join(parent, name), copyOf(t, src), WriteOptions{}), want)
	}
	requireEntries(t, parent, "empty", "file", "full", "link")
	require.NoError(t, Write(t.Context(), filepath.Join(parent, "empty")+"/", copyOf(t, src), WriteOptions{}))
	require.Equal(t, sums(t, whole), sums(t, filepath.Join(parent, "empty")))
	requireEntries(t, parent, "empty", "file", "full", "link")
}

// TestWriteToTargetThatAppears has somebody else create the target meanwhile.
func TestWriteToTargetThatAppears(t *testing.T) {
	src, err := Open(whole)
	require.NoError(t, err)
	defer src.Close()
	for name, appear := range map[string]func(dst string) error{
		"directory": func(dst string) error { return os.MkdirAll(filepath.Join(dst, "precious"), 0o755) },
		"file":      func(dst string) error { return os.WriteFile(dst, []byte("precious"), 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			dst := filepath.Join(t.TempDir(), "out")
			o := WriteOptions{Progress: func(int64) { require.NoError(t, appear(dst)) }}
			require.Error(t, Write(t.Context(), dst, copyOf(t, src), o))
			_, err := os.Stat(dst)
			require.NoError(t, err)
			requireEntries(t, filepath.Dir(dst), "out")
		})
	}
}

func TestWriteRefuses(t *testing.T) {
	info := func(name string, shape ...int) tensor.Info {
		return tensor.Info{Name: name, DType: tensor.BF16, Shape: shape}
	}
	for name, c := range map[string]struct {
		infos []tensor.Info
		limit int64
		want  string
	}{
		"nothing":             {nil, 0, "no tensors"},
		"twice":               {[]tensor.Info{info("a", 1), info("a", 1)}, 0, "tensor a: name occurs twice"},
		"twice in two shards": {[]tensor.Info{info("a", 1), info("a", 1)}, 2, "tensor a: name occurs twice"},
		"negative":            {[]tensor.Info{info("a", -1)}, 0, "tensor a: negative dimension"},
		"dtype":               {[]tensor.Info{{Name: "a"}}, 0, "tensor a: dtype invalid"},
		"name":                {[]tensor.Info{info("a\n")}, 0, "cannot be printed"},
		"disk":                {[]tensor.Info{info("a", 1<<40, 1<<10)}, 0, "bytes are free"},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			err := Write(t.Context(), filepath.Join(parent, "out"), Output{Tensors: c.infos}, WriteOptions{MaxShardBytes: c.limit})
			require.ErrorContains(t, err, strings.ReplaceAll(c.want, "bytes are free", "are free"))
			requireEntries(t, parent)
		})
	}
}

func TestSplit(t *testing.T) {
	infos := func(sizes ...int) (infos []tensor.Info) {
		for i, n := range sizes {
			infos = append(infos, tensor.Info{Name: fmt.Sprint(i), DType: tensor.U8, Shape: []int{n}})
		}
		return infos
	}
	for _, c := range []struct {
		sizes []int
		want  string
	}{
		{[]int{5, 5, 1}, "01 2"}, {[]int{10, 10}, "0 1"}, {[]int{3, 11, 3}, "1 02"}, {[]int{11}, "0"}, {[]int{9, 2, 0, 8}, "0 123"},
	} {
		var got []string
		for _, g := range split(infos(c.sizes...), 10) {
			var names bytes.Buffer
			for _, info := range g {
				names.WriteString(info.Name)
			}
			got = append(got, names.String())
		}
		require.Equal(t, c.want, strings.Join(got, " "), c.sizes)
	}
}

// requireEntries demands that dir holds exactly the named entries: no leftovers.
func requireEntries(t testing.TB, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	require.Equal(t, want, names)
}

// sums hashes every file of a directory.
func sums(t testing.TB, dir string) map[string][32]byte {
	t.Helper()
	sums := map[string][32]byte{}
	require.NoError(t, fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			sums[path] = sha256.Sum256([]byte(readFile(t, dir, path)))
		}
		return err
	}))
	return sums
}

func BenchmarkWrite(b *testing.B) {
	out := Output{Tensors: []tensor.Info{{Name: "w", DType: tensor.BF16, Shape: []int{64 << 20}}}, Config: []byte("{}"),
		Fill: func(context.Context, tensor.Info, []byte, int64) error { return nil }}
	b.SetBytes(128 << 20)
	for i := 0; b.Loop(); i++ {
		require.NoError(b, Write(b.Context(), filepath.Join(b.TempDir(), fmt.Sprint("out", i)), out, WriteOptions{}))
	}
}
