package disk

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestIsMountPoint: /proc is one wherever tests run.
func TestIsMountPoint(t *testing.T) {
	require.True(t, IsMountPoint("/proc"))
	require.False(t, IsMountPoint("/proc/self"))
	require.False(t, IsMountPoint(t.TempDir()))
	require.False(t, IsMountPoint("/proc/none"))
}
