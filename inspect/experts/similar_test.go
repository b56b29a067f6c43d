package experts

import (
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/inspect"
	"dsmoe/inspect/inspecttest"
	"dsmoe/inspect/matrix"
)

// TestProductsOfReads: products of matrices do not depend on how much of them is in memory.
func TestProductsOfReads(t *testing.T) {
	t.Parallel()
	wide := inspecttest.Fill(t, inspecttest.Override(t, inspecttest.Filled(t, "v1-base").Config, "moe_intermediate_size", "1200"))
	w := wide.Weights() // 18.75 chunks
	layers, _, err := selected(&w, inspect.Selection{Layers: inspecttest.Spans(t, "2")})
	require.NoError(t, err)
	for _, role := range roles {
		s := newRoleMatrices(layers[0].routed(), role)
		whole, err := s.compute(matrix.NewReader(t.Context(), w), gramBytes)
		require.NoError(t, err)
		require.NotZero(t, whole.Sums[1])
		for _, memory := range []int64{1, 1 << 20} {
			parts, err := s.compute(matrix.NewReader(t.Context(), w), memory)
			require.NoError(t, err)
			require.Equal(t, whole, parts)
		}
	}
}
