package report

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOffText says how far a golden is off: in shares of its RMS, in multiples, from zeros, and of one number.
func TestOffText(t *testing.T) {
	of := func(v float64) *float64 { return &v }
	for want, c := range map[string]Check{
		"off by 61 % of its RMS, at most 0.033 at [1 11 71]":   {RelRMS: of(0.6149), MaxAbs: of(0.0333), MaxAbsIndex: []int{1, 11, 71}},
		"off by 9.1e-05 % of its RMS, at most 1.2e-08 at [0]":  {RelRMS: of(9.1e-7), MaxAbs: of(1.2e-8), MaxAbsIndex: []int{0}},
		"off by 999 % of its RMS, at most 3":                   {RelRMS: of(9.99), MaxAbs: of(3)},
		"off by 10 times its RMS, at most 3":                   {RelRMS: of(10), MaxAbs: of(3)},
		"off by at most 2 at [3 1], where the golden is all 0": {MaxAbs: of(2), MaxAbsIndex: []int{3, 1}},
		"": {RelRMS: of(0), MaxAbs: of(0)},
	} {
		require.Equal(t, want, c.offText())
	}
	require.Empty(t, (&Check{}).offText())
}
