package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/text"
)

// foreign is what a terminal would act on: escape sequences, line breaks, bytes that are no
// UTF-8, marks that turn the direction of text.
const foreign = "a\x1b[2J\r\n\xff\u202eb"

// requireSafe demands that nothing in what a command printed acts on a terminal.
func requireSafe(t *testing.T, command []string, out ...string) {
	t.Helper()
	for _, s := range out {
		for line := range strings.Lines(s) {
			require.True(t, text.Printable(strings.TrimSuffix(line, "\n")), "%q: %q", command, line)
		}
	}
}

// commandsOn lists a command line for all that is done to a checkpoint at path, with output
// to dst, in an order in which they can be run.
func commandsOn(path, dst, golden string) [][]string {
	return [][]string{
		{"inspect", path}, {"inspect", "ls", path}, {"inspect", "ls", "--fold", path}, {"inspect", "audit", path}, {"inspect", "arch", path},
		{"inspect", "arch", "--compare", "top2,fine", path}, {"verify", path, golden}, {"verify", path, path}, {"verify", path, path + "x"},
		{"diff", path, path}, {"diff", path, path + "x"}, {"convert", path, dst, "--dry-run"}, {"convert", path, dst},
		{"convert", path, dst, "--type", "f32"}, {"convert", "--check", dst}, {"convert", "--check", path}, {"convert", path, path},
		{"convert", path, filepath.Join(path, "in")}, {"synth", path, dst + "s"}, {"synth", path, dst}, {"synth", path + "x", dst},
		{"inspect", "report", path, "--golden", golden, "--html", dst + ".html"}, {"inspect", "experts", "-o", "table", path, "--plot", dst + ".svg"}, {"inspect", "router", "-o", "table", path},
		{"inspect", "routing", golden, "-o", "table", "--config", path, "--plot", dst + ".svg"}, {"inspect", "stats", path, "--plot", filepath.Join(path, "gone", "x.svg")},
		{"verify", "--limit", foreign + "=1", path, golden}, {"convert", path, dst + "y", "--include", foreign}, {"convert", path, dst + "y", "--type", foreign},
	}
}

// TestForeignPathsAreEscaped runs every command on a path that a terminal would act on, and
// demands as many lines as for a plain one: no line break slips through.
func TestForeignPathsAreEscaped(t *testing.T) {
	t.Parallel()
	fixture := filepath.Join("..", "..", "fixtures", "v1-base")
	run := func(name string) (lines []int) {
		dir := t.TempDir()
		src, golden := filepath.Join(dir, name), filepath.Join(dir, name+"golden")
		require.NoError(t, os.CopyFS(src, os.DirFS(filepath.Join(fixture, "checkpoint"))))
		require.NoError(t, os.CopyFS(golden, os.DirFS(filepath.Join(fixture, "golden-f32"))))
		for _, command := range commandsOn(src, filepath.Join(dir, name+"out"), golden) {
			_, stdout, stderr := dsmoe(t.Context(), command...)
			requireSafe(t, command, stdout, stderr)
			lines = append(lines, strings.Count(stdout+stderr, "\n"))
		}
		return lines
	}
	assert.Equal(t, run("plain"), run(foreign))
}

// TestForeignContentIsEscaped runs every command on a checkpoint whose tensors, files and
// config hold what a terminal would act on.
func TestForeignContentIsEscaped(t *testing.T) {
	t.Parallel()
	name, err := json.Marshal("x\x1b[2J\n\u202e")
	require.NoError(t, err)
	for what, spoil := range map[string]func(t *testing.T, dir string){
		"tensor": func(t *testing.T, dir string) { rename(t, dir, `"model.norm.weight"`, string(name)) },
		"config": func(t *testing.T, dir string) {
			rename(t, dir, `"hidden_act": "silu"`, `"hidden_act": `+string(name)+`, `+string(name)+`: 1`)
		},
		"model type": func(t *testing.T, dir string) {
			rename(t, dir, `"model_type": "deepseek"`, `"model_type": `+string(name))
		},
		"file beside": func(t *testing.T, dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, foreign+".json"), []byte("{}"), 0o666))
			require.NoError(t, os.WriteFile(filepath.Join(dir, foreign+".py"), []byte("1"), 0o666))
			require.NoError(t, os.WriteFile(filepath.Join(dir, foreign+".txt"), []byte("1"), 0o666))
			require.NoError(t, os.WriteFile(filepath.Join(dir, foreign+".other"), []byte("1"), 0o666))
		},
		"shard": func(t *testing.T, dir string) {
			rename(t, dir, "model-00002-of-00003.safetensors", strings.Trim(string(name), `"`)+".safetensors")
		},
		"golden's names": func(t *testing.T, dir string) {
			rename(t, dir+"golden", `"model.norm.output"`, string(name))
		},
		"golden's files": func(t *testing.T, dir string) {
			rename(t, dir+"golden", `"sha256:`, `"`+strings.Trim(string(name), `"`))
		},
		"golden's reference": func(t *testing.T, dir string) {
			rename(t, dir+"golden", `"DeepseekForCausalLM"`, string(name))
		},
		"golden's overrides": func(t *testing.T, dir string) {
			rename(t, dir+"golden", `"mode": "eval"`, `"mode": "eval", "config_overrides": {`+string(name)+`: `+string(name)+`}`)
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "src")
			fixture := filepath.Join("..", "..", "fixtures", "v1-base")
			require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join(fixture, "checkpoint"))))
			require.NoError(t, os.CopyFS(dir+"golden", os.DirFS(filepath.Join(fixture, "golden-f32"))))
			spoil(t, dir)
			for _, command := range commandsOn(dir, dir+"out", dir+"golden") {
				if strings.HasPrefix(what, "golden") && command[0] != "verify" {
					continue
				}
				_, stdout, stderr := dsmoe(context.Background(), command...)
				requireSafe(t, command, stdout, stderr)
			}
		})
	}
}

// rename replaces a text of JSON in the files of dir, in headers of weight files by one of
// the same length, which the spaces that pad a header make up for.
func rename(t *testing.T, dir, from, to string) {
	t.Helper()
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	found := false
	for _, f := range files {
		path := filepath.Join(dir, f.Name())
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		if !bytes.Contains(data, []byte(from)) {
			continue
		}
		found = true
		if strings.HasSuffix(path, ".safetensors") {
			to += strings.Repeat(" ", max(0, len(from)-len(to)))
			require.Len(t, to, len(from))
		}
		require.NoError(t, os.WriteFile(path, bytes.ReplaceAll(data, []byte(from), []byte(to)), 0o666))
	}
	require.True(t, found, from)
}
