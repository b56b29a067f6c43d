package weights

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestShare: every thing has one part, in order; no part exceeds its share by more than the largest thing.
func TestShare(t *testing.T) {
	for _, bytes := range [][]int64{{}, {0, 0}, {7}, {1, 1, 1, 1}, {9, 1, 1, 1}, {1, 0}, {3e9, 11e9, 0, 11e9, 11e9, 1 << 40},
		slices.Repeat([]int64{12}, 61)} {
		for _, parts := range []int{1, 2, 3, 7, 100, math.MaxInt} {
			of, sum, total := Share(bytes, parts), map[int]int64{}, int64(0)
			assert.Len(t, of, len(bytes))
			assert.True(t, slices.IsSorted(of))
			for i, part := range of {
				assert.True(t, 0 <= part && part < parts)
				sum[part] += bytes[i]
				total += bytes[i]
			}
			for _, n := range sum {
				assert.LessOrEqual(t, n, total/int64(parts)+slices.Max(bytes)+1)
			}
		}
	}
	assert.Equal(t, []int{0, 0, 1, 1}, Share([]int64{1, 1, 1, 1}, 2))
	assert.Equal(t, []int{0, 1, 2}, Share([]int64{5, 5, 5}, 3))
}
