package inspect_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/inspect"
	"dsmoe/inspect/inspecttest"
	"dsmoe/model/weights"
)

// TestParts: the parts, one after the other, are all weights in their order, and no layer is in two.
func TestParts(t *testing.T) {
	for _, fixture := range []string{"v1-base", "v3-fp8", "v3-mtp"} {
		s := inspecttest.Filled(t, fixture)
		for _, parts := range []int{1, 2, 3, 100} {
			var all []*weights.Weight
			of, w := map[int]int{}, s.Weights()
			for i := range parts {
				some := w.TakePart(&inspect.Part{Index: i + 1, Of: parts}, func(*weights.Weight) bool { return true })
				picked, err := w.Pick(inspect.Selection{})
				require.NoError(t, err)
				require.Equal(t, some, len(picked) > 0)
				for _, x := range picked {
					if l := x.OwnerPlace().Layer; l >= 0 {
						require.Contains(t, []int{0, i + 1}, of[l])
						of[l] = i + 1
					}
				}
				all = append(all, picked...)
			}
			require.Equal(t, w.List, all)
		}
	}
}
