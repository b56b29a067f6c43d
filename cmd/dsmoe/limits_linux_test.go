//go:build !race

package main

// The race detector needs more address space than these tests allow.

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/safetensors"
	"dsmoe/model/tensor"
)

// limited runs a command line in a process with 4 GB of address space. The test's own
// binary is dsmoe when it is called so.
func limited(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	named := filepath.Join(t.TempDir(), "dsmoe")
	require.NoError(t, os.Symlink(self, named))
	cmd := exec.Command("sh", append([]string{"-c", `ulimit -v 4000000; exec "$@"`, "sh", named}, args...)...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	if _, exited := err.(*exec.ExitError); !exited {
		require.NoError(t, err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// padded copies a fixture's checkpoint and adds a tensor that the model ignores, of a
// sparse 32 GB.
func padded(t *testing.T, fixture string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "padded")
	require.NoError(t, os.CopyFS(dir, os.DirFS(fixture)))
	c, err := checkpoint.Open(dir)
	require.NoError(t, err)
	defer c.Close()
	infos := []tensor.Info{{Name: "model.layers.0.self_attn.rotary_emb.inv_freq", DType: tensor.F32, Shape: []int{8 << 20, 1 << 10}}}
	for info := range c.Tensors() {
		infos = append(infos, info)
	}
	safetensors.Sort(infos)
	l, err := safetensors.NewLayout(infos, nil)
	require.NoError(t, err)
	f, err := os.Create(filepath.Join(dir, "new"))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(l.Size()))
	_, err = f.Write(l.Header())
	require.NoError(t, err)
	for i := range l.Infos {
		if x, err := c.Tensor(l.Infos[i].Name); err == nil {
			_, err = f.WriteAt(x.Data, l.Offsets[i])
			require.NoError(t, err)
		}
	}
	require.NoError(t, os.Rename(f.Name(), filepath.Join(dir, "model.safetensors")))
	return dir
}

// TestLimitedAddressSpace: a checkpoint far larger than the address space is inspected,
// planned, converted, compared and verified, with the answers that it has elsewhere. What
// does not fit even so is an error that says why.
func TestLimitedAddressSpace(t *testing.T) {
	fixtures := filepath.Join("..", "..", "fixtures")
	small := filepath.Join(fixtures, "v1-dense", "checkpoint")
	big := padded(t, small)
	out := filepath.Join(t.TempDir(), "out")
	const rest = "model.layers.0.self_attn.rotary_emb.inv_freq"
	for _, args := range [][]string{
		{"inspect", big}, {"inspect", "audit", big}, {"inspect", "ls", big},
		{"convert", "--dry-run", big},
		{"convert", big, out, "--exclude", rest},
		{"diff", out, small},
		{"verify", big, filepath.Join(fixtures, "v1-dense", "golden-f32")},
	} {
		status, stdout, stderr := limited(t, args...)
		require.Equal(t, cli.ExitYes, status, "%q: %s%s", args, stdout, stderr)
	}

	golden := filepath.Join(fixtures, "v1-dense", "golden-f32")
	checks := func(report string) any {
		var v map[string]any
		require.NoError(t, json.Unmarshal([]byte(report), &v))
		require.NotEmpty(t, v["checks"])
		return v["checks"]
	}
	_, want, _ := dsmoe(t.Context(), "verify", "--json", small, golden)
	_, got, _ := limited(t, "verify", "--json", big, golden)
	require.Equal(t, checks(want), checks(got))

	require.NoError(t, os.WriteFile(filepath.Join(big, "config.json"), wrongEps(t, big), 0o600))
	status, stdout, stderr := limited(t, "verify", big, golden)
	require.Equal(t, cli.ExitNo, status, stderr)
	require.Contains(t, stdout, "rms_norm_eps", "the layer is there for the diagnosis")
}

// wrongEps is a checkpoint's config with another rms_norm_eps.
func wrongEps(t *testing.T, dir string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	require.NoError(t, err)
	changed := regexp.MustCompile(`"rms_norm_eps": [^,\n]*`).ReplaceAll(text, []byte(`"rms_norm_eps": 0.01`))
	require.NotEqual(t, text, changed)
	return changed
}
