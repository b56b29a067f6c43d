package diagnose

import (
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
)

// TestHolds: experts without weights are in the groups, too.
func TestHolds(t *testing.T) {
	c := &config.Config{}
	c.MoE.NRoutedExperts, c.MoE.NumExpertsPerTok = 20, 4
	require.True(t, holds(c, 5, 1))
	require.False(t, holds(c, 6, 2))
	c.MoE.ZeroExperts = 4
	require.False(t, holds(c, 5, 1))
	require.True(t, holds(c, 6, 2))
	require.False(t, holds(c, 6, 0))
}
