package output

import (
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

// replaceable is checkReplaceable for a directory.
func replaceable(dst string) error {
	return directoryAt(dst).CheckReplaceable()
}
