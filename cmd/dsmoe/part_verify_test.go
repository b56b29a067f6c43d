package main

import (
	"bytes"
	"context"
	"dsmoe/config/configtest"
	"dsmoe/convert/remote"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// runJSON runs a command line with --json and returns what it prints, for its exit status.
func runJSON(t *testing.T, status int, args ...string) []byte {
	t.Helper()
	var out, errs bytes.Buffer
	require.Equal(t, status, run(context.Background(), remote.NewClient(), append(args, "--json"), &out, &errs), errs.String())
	return out.Bytes()
}

// inParts runs a command line for each of n parts, and joins the reports, the last part first.
func inParts(t *testing.T, n, status int, merge []string, args ...string) []byte {
	t.Helper()
	dir := t.TempDir()
	for i := n; i > 0; i-- {
		var out, errs bytes.Buffer
		run(context.Background(), remote.NewClient(), append(args, "--json", fmt.Sprintf("--part=%d/%d", i, n)), &out, &errs)
		file := filepath.Join(dir, fmt.Sprint(i))
		require.NoError(t, os.WriteFile(file, out.Bytes(), 0o666))
		merge = append(merge, file)
	}
	return runJSON(t, status, merge...)
}

// TestVerifyInParts_every: the merged report of any number of parts is the report of one run, but for its time and the list
// of what was joined.
func TestVerifyInParts_every(t *testing.T) {
	ofOneRun := regexp.MustCompile(`(?s)"duration_s": [0-9.e-]+|,\s+"merged": \[.*\]`)
	for i, c := range []struct {
		fixture string
		change  func(t *testing.T, dir string) // of the checkpoint
		status  int
		parts   []int
	}{
		{"v1-base", nil, 0, []int{1, 2, 3, 9}},
		{"v3", nil, 0, []int{1, 2, 3, 9}},
		{"v1-base", normaliseTopK, 1, []int{1, 2, 3}},
	} {
		dir := filepath.Join("..", "..", "fixtures", c.fixture)
		checkpoint := filepath.Join(dir, "checkpoint")
		if c.change != nil {
			checkpoint = t.TempDir()
			require.NoError(t, os.CopyFS(checkpoint, os.DirFS(filepath.Join(dir, "checkpoint"))))
			c.change(t, checkpoint)
		}
		args := []string{"verify", checkpoint, filepath.Join(dir, "golden-f32")}
		want := ofOneRun.ReplaceAllString(string(runJSON(t, c.status, args...)), "")
		for j, n := range c.parts {
			if i%2 == j%2 && !configtest.Every(t) {
				continue
			}
			got := inParts(t, n, c.status, []string{"verify", "--merge"}, args...)
			require.Equal(t, want, ofOneRun.ReplaceAllString(string(got), ""), "%s in %d parts", c.fixture, n)
		}
	}
}

// normaliseTopK changes norm_topk_prob, which all layers with experts then differ for.
func normaliseTopK(t *testing.T, dir string) {
	file := filepath.Join(dir, "config.json")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	changed := bytes.Replace(text, []byte(`"norm_topk_prob": false`), []byte(`"norm_topk_prob": true`), 1)
	require.NotEqual(t, text, changed)
	require.NoError(t, os.WriteFile(file, changed, 0o666))
}
