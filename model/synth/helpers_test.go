package synth

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
)

// configAt parses a config.json under fixtures.
func configAt(t testing.TB, path ...string) *config.Config {
	t.Helper()
	f, err := os.Open(filepath.Join(append([]string{"..", "..", "fixtures"}, path...)...))
	require.NoError(t, err)
	defer f.Close()
	c, err := config.Parse(f)
	require.NoError(t, err)
	return c
}
