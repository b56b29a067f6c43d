// Package configtest reads configs for tests, and tells tests how much to try. Only tests import it.
package configtest

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
)

// init lets tests collect garbage less often than a user's dsmoe does: their checkpoints are small.
func init() { debug.SetGCPercent(400) }

// every is set by scripts/check.sh.
var every = flag.Bool("every", false, "try everything, not a selection")

// Every reports whether a test tries everything, not a selection. The test's name ends in _every: scripts/check.sh runs
// these tests alone with the flag, for the race detector's run has tried the others.
func Every(t testing.TB) bool {
	t.Helper()
	require.Regexp(t, "_every(/|$)", t.Name())
	return *every
}

// Parse returns the config of a config.json's text.
func Parse(t testing.TB, text string) *config.Config {
	t.Helper()
	c, err := config.Parse(strings.NewReader(text))
	require.NoError(t, err)
	return c
}

// Fixture returns the config of a directory under fixtures.
func Fixture(t testing.TB, name string) *config.Config {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(Path(t, name), "config.json"))
	require.NoError(t, err)
	return Parse(t, string(text))
}

// Published returns the config.json of a published model, a file of fixtures/configs, with the edits. It says
// nothing of how weights are stored: quantization_config is left out. edit, which may be nil, gets the language
// model's keys.
func Published(t testing.TB, name string, edit func(keys map[string]any)) string {
	t.Helper()
	text, err := os.ReadFile(Path(t, "configs/"+name+".json"))
	require.NoError(t, err)
	var document map[string]any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	require.NoError(t, d.Decode(&document))
	keys := document
	for _, within := range []string{"text_config", "language_config"} {
		if inner, ok := document[within].(map[string]any); ok {
			keys = inner
		}
	}
	delete(keys, "quantization_config")
	if edit != nil {
		edit(keys)
		edit(document) // DeepSeek-OCR's says all twice
	}
	out, err := json.MarshalIndent(document, "", "  ")
	require.NoError(t, err)
	return string(out)
}

// Path returns the path of a file or directory under fixtures, whichever package the test
// is of.
func Path(t testing.TB, name string) string {
	t.Helper()
	dir, err := os.Getwd()
	require.NoError(t, err)
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "fixtures", filepath.FromSlash(name))
		}
		require.NotEqual(t, filepath.Dir(dir), dir, "the test runs outside the module")
		dir = filepath.Dir(dir)
	}
}
