package report

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLimitsOf: of two lines of which one begins with the other the longer stays, and both where the longer is of scores alone.
func TestLimitsOf(t *testing.T) {
	lines := func(from ...string) []string {
		var checks []Check
		for _, f := range from {
			checks = append(checks, Check{Limits: &Limits{Z: 8, From: f}})
		}
		return LimitsOf(append(checks, Check{}))
	}
	const all = "8 σ"
	require.Equal(t, []string{}, lines())
	require.Equal(t, []string{all + "; float32: more"}, lines(all, all+"; float32: more", all))
	require.Equal(t, []string{all, all + ScoresInFloat32}, lines(all, all+ScoresInFloat32))
	require.Equal(t, []string{all + "; float32: more", all + "; float32: more" + ScoresInFloat32},
		lines(all+"; float32: more", all, all+"; float32: more"+ScoresInFloat32))
}
