package bounds

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
	"dsmoe/model/tensor"
)

// TestWorthIsRounded: the sum of a group's best scores has their dtype, so that groups whose sums are not equal may tie.
func TestWorthIsRounded(t *testing.T) {
	scores := &model.Activation{DType: tensor.BF16, Shape: []int{1, 4},
		Values: []float32{0.0703125, 0.06982421875, 0.0703125, 0.0703125}} // sums of 287 and 288 2048ths
	require.Equal(t, []float32{0.140625, 0.140625}, model.NewPlain(model.Options{DType: tensor.BF16}).GroupWorth(scores, 2, 2).Values)
	worth := NewAnalysis(model.Options{DType: tensor.BF16}, nil).GroupWorth(Exact(scores), 2, 2)
	require.Equal(t, ExactTie, worth.Tie(0, 1))
}

// TestDenormalScores: torch gives 0 for a sigmoid, and for a gate, whose exponential is infinite in float32.
func TestDenormalScores(t *testing.T) {
	a := NewAnalysis(model.Options{DType: tensor.F32}, nil)
	x := Exact(&model.Activation{DType: tensor.F32, Shape: []int{1, 2}, Values: []float32{-88.8, -95}})
	one := Exact(&model.Activation{DType: tensor.F32, Shape: []int{1, 2}, Values: []float32{1, 1}})
	for i := range x.Values {
		for name, y := range map[string]*Value{"sigmoid": a.Sigmoid(x), "normalised": a.Scale(a.Sigmoid(x), 2.5), "silu": a.SwiGLU(x, one),
			"SiLU": a.SiLU(x, 1), "alpha": a.SiLU(x, 1.702)} {
			require.Less(t, math.Abs(float64(y.Values[i])), Lambda*Unit*math.Sqrt(y.Variance(i)), name)
		}
	}
}
