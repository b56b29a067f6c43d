package diagnose

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestKeepsGroups: experts renumbered within groups, or groups as wholes, choose the same.
func TestKeepsGroups(t *testing.T) {
	require.True(t, keepsGroups([]int{1, 0, 3, 2}, 2))
	require.True(t, keepsGroups([]int{2, 3, 1, 0}, 2))
	require.False(t, keepsGroups([]int{1, 2, 3, 0}, 2))
	require.True(t, keepsGroups([]int{1, 2, 3, 0}, 1))
}
