package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/convert/remote"
)

// verifyArgs verify a fixture that passes, with both files in a directory.
func verifyArgs(dir string) []string {
	fixture := filepath.Join("..", "..", "fixtures", "v1-dense")
	return []string{"verify", "--json", "--junit", filepath.Join(dir, "verify.xml"), "--html", filepath.Join(dir, "verify.html"),
		filepath.Join(fixture, "checkpoint"), filepath.Join(fixture, "golden-f32")}
}

// TestInterruptedFilesSaySo: what an earlier run left does not pass for the result.
func TestInterruptedFilesSaySo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var stdout, stderr bytes.Buffer
	require.Equal(t, cli.ExitYes, run(t.Context(), remote.NewClient(), verifyArgs(dir), &stdout, &stderr))
	assert.Contains(t, readFile(t, filepath.Join(dir, "verify.html")), "PASS")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, cli.ExitInterrupted, run(ctx, remote.NewClient(), verifyArgs(dir), &stdout, &stderr))
	assert.Equal(t, []string{"verify.html", "verify.xml"}, entries(t, dir))
	assert.NotContains(t, readFile(t, filepath.Join(dir, "verify.html")), "PASS")
	assert.Contains(t, readFile(t, filepath.Join(dir, "verify.html")), "not a pass: interrupted")
	assert.Contains(t, readFile(t, filepath.Join(dir, "verify.xml")), `errors="1"`)
}

// removing is a writer that removes a directory when something is written.
type removing struct {
	bytes.Buffer
	dir string
}

func (w *removing) Write(p []byte) (int, error) {
	if err := os.RemoveAll(w.dir); err != nil {
		return 0, err
	}
	return w.Buffer.Write(p)
}

// TestUnwrittenFilesAreAnError: the report of a long run is printed even if its files cannot
// be written after it, and the exit status says that something is missing.
func TestUnwrittenFilesAreAnError(t *testing.T) {
	t.Parallel()
	stdout := removing{dir: filepath.Join(t.TempDir(), "out")}
	require.NoError(t, os.Mkdir(stdout.dir, 0o777))
	var stderr bytes.Buffer
	require.Equal(t, cli.ExitUnknown, run(t.Context(), remote.NewClient(), verifyArgs(stdout.dir), &stdout, &stderr))
	var document struct{ Verdict string }
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &document), "one document")
	assert.Equal(t, "pass", document.Verdict)
	assert.Regexp(t, `(?s)^dsmoe: .*verify.xml.*verify.html.*no such file`, stderr.String())
}

// read returns the content of a file.
func readFile(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(content)
}
