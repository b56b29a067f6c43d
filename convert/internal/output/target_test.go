package output

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/internal/fixture"
)

// TestLinkIsNotReplaced: a directory is not replaced by way of a link to it.
func TestLinkIsNotReplaced(t *testing.T) {
	t.Parallel()
	link := filepath.Join(t.TempDir(), "link")
	fixture.Link(t, t.TempDir(), link)
	require.ErrorContains(t, replaceable(link), "as it is a link")
}

// TestStatesOfFilesThatGo: a file that is listed and gone when its state is asked for, as the journals of parts are that
// another run removes, has no state. A link to nothing is listed and cannot be found either.
func TestStatesOfFilesThatGo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fixture.Link(t, filepath.Join(dir, "gone"), filepath.Join(dir, ".dsmoe.parts"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), nil, 0o600))
	states, err := directoryAt(dir).FileStates()
	require.NoError(t, err)
	require.Len(t, states, 1)
	require.Contains(t, states, "config.json")
}

// replaceable is checkReplaceable for a directory.
func replaceable(dst string) error {
	return directoryAt(dst).CheckReplaceable()
}
