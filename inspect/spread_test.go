package inspect

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFar: 8 robust standard deviations, and a factor.
func TestFar(t *testing.T) {
	v := 5.0
	require.True(t, (&Spread{Median: 1, MAD: 0.337}).Far(&v, 4))
	require.False(t, (&Spread{Median: 1, MAD: 0.338}).Far(&v, 4))
	require.True(t, (&Spread{Median: 1, MAD: 0.01}).Far(&v, 5))
	require.False(t, (&Spread{Median: 1, MAD: 0.01}).Far(&v, 5.01))
	v = 0.2
	require.True(t, (&Spread{Median: 1, MAD: 0.01}).Far(&v, 5))
	require.False(t, (&Spread{Median: 1, MAD: 0.01}).Far(&v, 5.01))
}
