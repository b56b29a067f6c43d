package inspect

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestChanceOfPeers: of 10,000 healthy models one has a value beyond the limit, however many values the model has. The
// quantiles are those of scipy.stats.t.ppf(1e-4/2/n, 0.75*(8 - 1.5)).
func TestChanceOfPeers(t *testing.T) {
	values := []float64{1, 2, 3, 4, 5, 6, 7, 8}
	require.InEpsilon(t, 17.853269, PeersOf(values, 1).Limit, 1e-6, "the tests are at least the values")
	require.InEpsilon(t, 48.337445, PeersOf(values, 1000).Limit, 1e-6)
	require.Nil(t, PeersOf(values[1:], 1))
}
