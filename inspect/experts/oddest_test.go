package experts

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/inspect/inspecttest"
)

// TestOddest: the expert that was changed comes first, with the measure that shows it; of a model without experts there
// is none.
func TestOddest(t *testing.T) {
	s := inspecttest.Filled(t, "v1-base")
	s.Change(inspecttest.ExpertName(2, 5, "up"), func(values []float32) {
		for i := range values {
			values[i] *= 1.5
		}
	})
	r, err := Examine(t.Context(), s.Weights(), Options{})
	require.NoError(t, err)
	rows := r.Oddest(3).Rows()
	require.Len(t, rows, 3)
	assert.Equal(t, []string{"2", "5", "norm of up_proj"}, []string{rows[0][0].Exact, rows[0][1].Exact, rows[0][2].Exact})
	assert.Len(t, r.Oddest(1000).Rows(), 48)
	assert.Empty(t, (&Report{}).Oddest(20).Rows())
}
