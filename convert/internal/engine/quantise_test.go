package engine

import (
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/operation"
	"dsmoe/convert/plan"
	"dsmoe/convert/safetensors"
	"dsmoe/model/tensor"
)

// TestQuantisedTensors: blocks do not depend on memory and goroutines, and neither do the sums
// of their errors; FP8 of a transposed matrix, whose elements are gathered one by one, is
// quantised too; the proof accepts both. The blocks are written as bytes
// of a safetensors file.
func TestQuantisedTensors(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	const many, rows, cols = 5 << 19, 256, 1280 // blocks of more than two tiles
	src := make([]byte, 2*many+rows*cols)
	for i := range src {
		if src[i] = byte(r.Uint32()); i < 2*many && i%2 == 1 {
			src[i] = src[i]&0x81 | 0x3c
		} else if src[i]&0x7f == 0x7f {
			src[i] = 0 // NaN of FP8
		}
	}
	blocks := tensor.Blocks{Rows: rows, Cols: cols, BlockRows: 96, BlockCols: 128}
	gridRows, gridCols := blocks.Grid()
	scales := int64(len(src))
	for range gridRows * gridCols {
		src = append(src, byte(r.Uint32()), 0x3c) // BF16
	}
	plain, err := operation.NewQuantise(tensor.BF16, tensor.Q8_0, tensor.Invalid, tensor.Blocks{})
	require.NoError(t, err)
	scaled, err := operation.NewQuantise(tensor.F8E4M3, tensor.Q4_K, tensor.BF16, blocks)
	require.NoError(t, err)
	view := &tensor.View{Shape: []int64{cols, rows}, Stride: []int64{1, cols}}
	tensorOf := func(name string, d tensor.DType, n int64, s plan.Segment) plan.Tensor {
		s.Bytes = d.Bytes(n)
		return plan.Tensor{Name: name, DType: tensor.U8, Shape: []int{int(s.Bytes)}, Segments: []plan.Segment{s}, Operations: []string{s.Operation.Name()}}
	}
	planned := func() *plan.Plan {
		return planOf(t,
			tensorOf("plain", tensor.Q8_0, many, plan.Segment{Tensor: "x", DType: tensor.BF16, End: 2 * many, Operation: plain}),
			tensorOf("turned", tensor.Q4_K, rows*cols, plan.Segment{Tensor: "y", DType: tensor.F8E4M3, Offset: 2 * many, End: rows * cols,
				View: view, Sides: []plan.Side{{Tensor: "scales", Offset: scales}}, Operation: scaled}))
	}
	want, lost := make([]byte, tensor.Q8_0.Bytes(many)), tensor.Loss{}
	require.NoError(t, plain.Apply(want, operation.Input{Data: src[:2*many]}, &lost))
	var first []LostTensor
	for _, s := range []Settings{{IO: 1, Compute: 1, Memory: MinMemory}, {IO: 3, Compute: 2}} {
		s.Disk = inMemory().Disk
		dst := filepath.Join(t.TempDir(), "out")
		done, err := Run(t.Context(), dst, planned(), bytesSource(src), s)
		require.NoError(t, err)
		require.Len(t, done.Lost, 2)
		if first == nil {
			first = done.Lost
			require.Equal(t, LostTensor{"plain", lost}, first[0])
			require.InDelta(t, 0.07, first[1].RelRMS(), 0.03)
		}
		require.Equal(t, first, done.Lost)
		f, err := safetensors.Open(filepath.Join(dst, planned().Files[0].Name))
		require.NoError(t, err)
		x, err := f.Tensor("plain")
		require.NoError(t, err)
		require.Equal(t, string(want), string(x.Data))
		require.NoError(t, f.Close())
	}
}
