package header

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/model/count"
)

func TestParseLayers(t *testing.T) {
	names, err := ParseLayers("shared,top2")
	require.NoError(t, err)
	assert.Equal(t, []string{Shared, Top2}, names)
	for list, want := range map[string]string{
		"":               `"" is not one of top2, fine, shared`,
		"top2,":          `"" is not one of top2, fine, shared`,
		"x,fine,fine, y": `"x" is not one of top2, fine, shared; "fine" stands there twice; " y" is not one of top2, fine, shared`,
	} {
		_, err := ParseLayers(list)
		assert.EqualError(t, err, want)
	}
}

// compareText returns the text of a comparison whose numbers do not come from a config.
func compareText(t *testing.T, s count.Segmentation, names ...string) string {
	t.Helper()
	var out strings.Builder
	require.NoError(t, Compare("", s, names).WriteText(&out))
	return out.String()
}

// TestCompareSaysWhatIsEqual, and only of rows that are shown.
func TestCompareSaysWhatIsEqual(t *testing.T) {
	uneven := count.Segmentation{Experts: 66, PerToken: 9, M: 4, Shared: 2}
	all := compareText(t, uneven, Top2, Fine, Shared)
	assert.Contains(t, all, "Not equal: expert parameters, as mN/m = 66/4 is not whole; the conventional layer has 16.\n")
	assert.Contains(t, all, "expert FLOP, as mK/m = 9/4 is not whole; the conventional layer has 2.\n")
	assert.NotContains(t, all, "Equal in all rows")

	split := compareText(t, uneven, Fine, Shared)
	assert.Contains(t, split, "Equal in all rows: expert parameters.\n")
	assert.Contains(t, split, "Equal in all rows: activated expert parameters, and so expert FLOP.\n")
	assert.Contains(t, split, "Isolating 2 shared experts divides the sets of experts by 59.58.\n")

	assert.NotContains(t, compareText(t, uneven, Top2, Shared), "Isolating")
	assert.NotContains(t, compareText(t, uneven, Shared), "qual")
	uneven.Shared = 0
	assert.Contains(t, compareText(t, uneven, Fine, Shared), "Equal in all rows: the router.\n")
}

// TestCompareKeepsLargeNumbersReadable: text names the power of two, JSON has all digits.
func TestCompareKeepsLargeNumbersReadable(t *testing.T) {
	s, err := count.Segment(1000, 500, 1, 0, 0, 0)
	require.NoError(t, err)
	assert.Contains(t, compareText(t, s, Top2), "C(1000,500) = 2^994.7\n")
	s.Shared = 499
	assert.Contains(t, compareText(t, s, Fine, Shared),
		"Isolating 499 shared experts divides the sets of experts by 2^985.7.\n")
	assert.Len(t, Compare("", s, []string{Top2}).Layers[0].Combinations, 300)
}
