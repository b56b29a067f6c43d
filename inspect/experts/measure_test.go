package experts

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model/tensor"
)

// TestRowsTogetherAreRowsOneByOne: tensor.Runs rows that are measured side by side have the numbers of rows by themselves,
// whatever zeros, infinities and NaNs are among them.
func TestRowsTogetherAreRowsOneByOne(t *testing.T) {
	t.Parallel()
	const width = 12
	r := rand.New(rand.NewPCG(5, 6))
	finite := make([]float32, tensor.Runs*width)
	for i := range finite {
		finite[i] = float32(r.NormFloat64())
	}
	for name, change := range map[string]func(values []float32){
		"finite":           func([]float32) {},
		"zeros":            func(values []float32) { values[0], values[5*width+7] = 0, float32(math.Copysign(0, -1)) },
		"a row of zeros":   func(values []float32) { clear(values[3*width : 4*width]) },
		"all zeros":        func(values []float32) { clear(values) },
		"a NaN":            func(values []float32) { values[4*width+1] = float32(math.NaN()) },
		"an infinity":      func(values []float32) { values[7*width+11] = float32(math.Inf(-1)) },
		"zeros and others": func(values []float32) { values[2], values[3], values[width] = 0, float32(math.NaN()), 0 },
	} {
		values := slices.Clone(finite)
		change(values)
		var together, single MatrixNumbers
		rows, cols, singleRows, singleCols := newAxis(tensor.Runs), newAxis(width), newAxis(tensor.Runs), newAxis(width)
		together.count(0, values, rows, cols)
		var x, y matrixFacts
		var squares []float64
		for i := range tensor.Runs {
			row := values[i*width:][:width]
			single.count(i, row, singleRows, singleCols)
			squares = append(squares, y.squares(slices.Clone(row), width)...)
		}
		require.Equal(t, single, together, name)
		require.Equal(t, singleRows, rows, name)
		require.Equal(t, singleCols, cols, name)
		for i, s := range x.squares(values, width) {
			require.Equal(t, math.Float64bits(squares[i]+0), math.Float64bits(s+0), name)
		}
		if y.fourth == y.fourth && y.fourth > 0 && !math.IsInf(y.fourth, 0) {
			require.InEpsilon(t, y.fourth, x.fourth, 1e-6, name) // together squares are rounded to float32
		} else {
			require.Equal(t, math.Float64bits(y.fourth), math.Float64bits(x.fourth), name)
		}
	}
}
