package bounds

import (
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// TestHalfStepsOfFP8: half a unit of each code, times the scale of its block.
func TestHalfStepsOfFP8(t *testing.T) {
	w := model.Weight{Name: "w", Tensor: tensor.Tensor{DType: tensor.F8E4M3, Shape: []int{2, 3},
		Data: []byte{0x38, 0xc0, 0x01, 0x7e, 0x80, 0xb8}}, // 1, -2, 2^-9; 448, -0, -1
		Grid: tensor.Grid{Scales: []float32{2, -4, 0.5, 8}}, Block: [2]int{1, 2}}
	want := []float32{2 * 0x1p-4, 2 * 0x1p-3, 4 * 0x1p-10, 0.5 * 16, 0.5 * 0x1p-10, 8 * 0x1p-4}
	how := AllRounded("fp8-quantise")
	require.Equal(t, want, halfSteps(&w, how))
	part := halfUnitRows(&w, 1, 1, how)
	steps, err := part.Float32s(nil)
	require.NoError(t, err)
	require.Equal(t, want[3:], steps)
}
