package convert

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/safetensors"
	"dsmoe/model/tensor"
)

const (
	sharded = "../fixtures/v1-base/checkpoint"
	whole   = "../fixtures/v1-dense/checkpoint"
	shard1  = "model-00001-of-00003.safetensors"
	shard2  = "model-00002-of-00003.safetensors"
	shard3  = "model-00003-of-00003.safetensors"
	embed   = "model.embed_tokens.weight" // in shard1
	lmHead  = "lm_head.weight"            // in shard3
)

// clone copies a fixture to a directory that a test may break.
func clone(t testing.TB, src string) string {
	t.Helper()
	dst := filepath.Join(t.TempDir(), "checkpoint")
	require.NoError(t, os.CopyFS(dst, os.DirFS(src)))
	return dst
}

func writeFile(t testing.TB, dir, name, data string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644))
}

func readFile(t testing.TB, dir, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	require.NoError(t, err)
	return string(data)
}

func replace(t testing.TB, dir, name, old, new string) {
	t.Helper()
	data := readFile(t, dir, name)
	require.Contains(t, data, old)
	writeFile(t, dir, name, string(bytes.ReplaceAll([]byte(data), []byte(old), []byte(new))))
}

func remove(t testing.TB, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		require.NoError(t, os.Remove(filepath.Join(dir, name)))
	}
}

func link(t testing.TB, target, path string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.Symlink(target, path))
}

// tinyFile makes a safetensors file of one-byte tensors.
func tinyFile(names ...string) string {
	var infos []tensor.Info
	for _, n := range names {
		infos = append(infos, tensor.Info{Name: n, DType: tensor.U8, Shape: []int{1}})
	}
	l, err := safetensors.NewLayout(infos, nil)
	if err != nil {
		panic(err)
	}
	return string(l.Header()) + string(make([]byte, len(names)))
}

// copyOf makes an Output that has the tensors of c, in the order of its index.
func copyOf(t testing.TB, c *Checkpoint) Output {
	t.Helper()
	byName := map[string]tensor.Info{}
	var infos []tensor.Info
	for info := range c.Tensors() {
		byName[info.Name] = info
		infos = append(infos, info)
	}
	if c.Inventory.Index != nil {
		infos = nil
		for _, w := range c.Inventory.Index.weights {
			infos = append(infos, byName[w.tensor])
		}
	}
	return Output{Tensors: infos, Config: []byte(readFile(t, c.dir, configName)),
		Fill: func(_ context.Context, info tensor.Info, dst []byte, offset int64) error {
			src, err := c.Tensor(info.Name)
			copy(dst, src.Data[offset:])
			return err
		}}
}

func requireSameTensors(t testing.TB, want, got *Checkpoint) {
	t.Helper()
	n := 0
	for info := range want.Tensors() {
		a, err := want.Tensor(info.Name)
		require.NoError(t, err)
		b, err := got.Tensor(info.Name)
		require.NoError(t, err)
		require.Equal(t, a, b, info.Name)
		n++
	}
	for range got.Tensors() {
		n--
	}
	require.Zero(t, n, "number of tensors")
}

// headerLength returns where the data of a safetensors file begins.
func headerLength(data string) int { return 8 + int(binary.LittleEndian.Uint64([]byte(data))) }

func toJSON(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	require.NoError(t, err)
	return string(b)
}
