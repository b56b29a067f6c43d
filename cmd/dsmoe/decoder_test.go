package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/safetensors"
	"dsmoe/model/tensor"
)

// decoderAlone writes a fixture's checkpoint in one file without "model." before the names.
func decoderAlone(t *testing.T, fixture string) string {
	t.Helper()
	c, err := checkpoint.Open(fixture)
	require.NoError(t, err)
	defer c.Close()
	stored := map[string]string{}
	var infos []tensor.Info
	for info := range c.Tensors() {
		name := strings.TrimPrefix(info.Name, "model.")
		stored[name] = info.Name
		infos = append(infos, tensor.Info{Name: name, DType: info.DType, Shape: info.Shape})
	}
	safetensors.Sort(infos)
	l, err := safetensors.NewLayout(infos, nil)
	require.NoError(t, err)
	data := append([]byte{}, l.Header()...)
	for i := range l.Infos {
		x, err := c.Tensor(stored[l.Infos[i].Name])
		require.NoError(t, err)
		data = append(data, x.Data...)
	}
	dir := t.TempDir()
	config, err := c.ConfigText()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, checkpoint.ConfigName), config, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), data, 0o600))
	return dir
}

// TestDecoderAlone: a decoder saved without "model." before its names is the same model to
// every command, with experts, scales and a prediction layer; what convert writes of it has
// the full model's names.
func TestDecoderAlone(t *testing.T) {
	for _, name := range []string{"v1-base", "v2-lite", "v3-fp8"} {
		fixture := filepath.Join("..", "..", "fixtures", name)
		full := filepath.Join(fixture, "checkpoint")
		alone, out := decoderAlone(t, full), filepath.Join(t.TempDir(), "out")
		golden, err := filepath.Glob(filepath.Join(fixture, "golden-f32"))
		require.NoError(t, err)
		require.Len(t, golden, 1)
		for _, args := range [][]string{
			{"inspect", "audit", alone}, {"convert", alone, out}, {"diff", alone, full}, {"diff", full, out}, {"verify", alone, golden[0]},
		} {
			status, stdout, stderr := dsmoe(t.Context(), args...)
			assert.Equal(t, cli.ExitYes, status, "%q: %s%s", args, stdout, stderr)
			assert.Equal(t, args[0] == "convert", strings.Contains(stdout, `note: the source's names lack "model.": it is put before them`), "%q", args)
		}
		want, err := checkpoint.Open(full)
		require.NoError(t, err)
		got, err := checkpoint.Open(out)
		require.NoError(t, err)
		for info := range want.Tensors() {
			_, _, err := got.Place(info.Name)
			assert.NoError(t, err)
		}
		require.NoError(t, want.Close())
		require.NoError(t, got.Close())
	}
}
