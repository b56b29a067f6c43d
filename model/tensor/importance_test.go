package tensor

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// weighed are the types that Weighs tells of.
var weighed = []DType{Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K}

// TestImportanceIsGGML: byte for byte the rows of llama.cpp's encoders with importance.
func TestImportanceIsGGML(t *testing.T) {
	read := ggml(t)
	rows, importance := float32s(read("weighted.rows")), float32s(read("weighted.importance"))
	for _, d := range blockTypes {
		require.Equal(t, slices.Contains(weighed, d), d.Weighs(), d)
	}
	for _, d := range weighed {
		q, err := NewQuantiser(d)
		require.NoError(t, err)
		n := len(importance)
		want, got := read("weighted."+d.String()), make([]byte, d.Bytes(int64(len(rows))))
		for i := 0; i < len(rows); i += n {
			require.NoError(t, q.ConvertRow(got[d.Bytes(int64(i)):][:d.Bytes(int64(n))], rows[i:i+n], importance, new(Loss)), d)
		}
		require.Equal(t, want, got, d)
	}
}

// importantRow makes a row of numbers and their importance: some are zero, some important beyond all others.
func importantRow(r *rand.Rand) (x, importance []float32) {
	tail, zeros, idle := 3*r.Float64(), r.Float64()*float64(r.IntN(2)), r.Float64()*float64(r.IntN(2))
	for range 256 {
		v, w := r.NormFloat64(), math.Exp(tail*r.NormFloat64())
		if r.Float64() < zeros {
			v = 0
		}
		if r.Float64() < idle {
			w = 0
		}
		x, importance = append(x, float32(math.Round(v*8)/8)), append(importance, float32(w)) // magnitudes that are equal
	}
	return x, importance
}

// TestImportanceBounds: all rows are within their bounds, whatever the importance, and scales that are a
// sixteenth of what they should be, or sixteen times that, nearly always are not.
func TestImportanceBounds(t *testing.T) {
	scale := map[DType]int{Q4_0: 1, Q4_1: 1, Q5_0: 1, Q5_1: 1, Q2_K: 81, Q3_K: 109, Q4_K: 1, Q5_K: 1, Q6_K: 209} // upper byte
	for _, d := range weighed {
		r := rand.New(rand.NewPCG(3, 4))
		q, err := NewQuantiser(d)
		require.NoError(t, err)
		elements, size := d.Block()
		seen := map[int]int{}
		const rows = 500
		for range rows {
			x, importance := importantRow(r)
			out := make([]byte, d.Bytes(256))
			require.NoError(t, q.ConvertRow(out, x, importance, new(Loss)), d)
			weights := make([]float32, elements)
			d.weights(weights, x[:elements], importance, squareSum(x)/256)
			for _, fault := range []int{4, -4} { // powers of two in F16
				block := append([]byte(nil), out[:size]...)
				block[scale[d]] += byte(fault)
				if beyondWeighted(dequantise(t, d, block), x[:elements], weights, block, d) >= 0 {
					seen[fault]++
				}
			}
		}
		require.Greater(t, seen[4], rows*8/10, "%s: few numbers of a block may matter", d)
		require.Greater(t, seen[-4], rows*8/10, "%s: few numbers of a block may matter", d)
	}
}

// TestConvertRowCounts: losses are those of Convert, and a number that is not finite is counted.
func TestConvertRowCounts(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	x, importance := importantRow(r)
	q, err := NewQuantiser(Q4_K)
	require.NoError(t, err)
	var lost Loss
	require.NoError(t, q.ConvertRow(make([]byte, 144), x, importance, &lost))
	require.Positive(t, lost.Rounded)
	require.Positive(t, lost.Errors)
	x[9] = float32(math.Inf(1))
	require.NoError(t, q.ConvertRow(make([]byte, 144), x, importance, &lost))
	require.EqualValues(t, 1, lost.NotFinite)
}
