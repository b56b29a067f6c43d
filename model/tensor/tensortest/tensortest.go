// Package tensortest makes tensors for tests. Only tests import it.
package tensortest

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model/tensor"
)

// New returns a tensor of dtype d, which is F32, F16 or BF16, and the given shape that
// holds values, rounded to nearest, ties to even.
func New(t testing.TB, d tensor.DType, shape []int, values []float32) tensor.Tensor {
	t.Helper()
	x := tensor.Tensor{DType: d, Shape: shape}
	require.Equal(t, x.Len(), len(values))
	var wide []byte
	for _, v := range values {
		wide = binary.LittleEndian.AppendUint32(wide, math.Float32bits(v))
	}
	cast, err := tensor.NewCast(tensor.F32, d)
	require.NoError(t, err)
	x.Data = make([]byte, d.Bytes(int64(len(values))))
	cast.Convert(x.Data, wide)
	return x
}

// Vector returns New's tensor of one dimension.
func Vector(t testing.TB, d tensor.DType, values ...float32) tensor.Tensor {
	t.Helper()
	return New(t, d, []int{len(values)}, values)
}
