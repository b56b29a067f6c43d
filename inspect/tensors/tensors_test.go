package tensors

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/inspect/inspecttest"
	"dsmoe/model/tensor"
)

// TestOddShapes: scalars, vectors, constants and numbers that are not finite are no reason to fail.
func TestOddShapes(t *testing.T) {
	tensors := map[string]tensor.Tensor{}
	for name, shape := range map[string][]int{"scalar": {}, "vector": {300}, "cube": {3, 4, 5}, "row": {1, 2000},
		"column": {2000, 1}, "model.embed_tokens.weight": {256, 64}} {
		tensors[name] = inspecttest.Floats(tensor.F32, shape, func(i int) float32 { return 2 })
	}
	for name, v := range map[string]float64{"nan": math.NaN(), "infinite": math.Inf(1), "zero": 0} {
		tensors[name] = inspecttest.Floats(tensor.F32, []int{40, 50}, func(int) float32 { return float32(v) })
	}
	found, err := Find(t.Context(), inspecttest.Only(t, tensors).Weights())
	require.NoError(t, err)
	for _, o := range found {
		require.Equal(t, "low-bits", o.ID, o.Tensor) // one number alone fits 4 bits
	}
}
