package output

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMountPointIsNotReplaced: it is refused before anything is written.
func TestMountPointIsNotReplaced(t *testing.T) {
	require.ErrorContains(t, replaceable("/proc"), "as it is a mount point; empty it first")
}
