package checkpoint

import (
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/format"
	"dsmoe/model/tensor"
)

// TestDecodedFrom: of parts in several dtypes only those in blocks say that a weight was rounded.
func TestDecodedFrom(t *testing.T) {
	for want, decode := range map[string][]tensor.DType{
		"": {tensor.F16, tensor.Invalid}, "Q8_0 and F32": {tensor.Q8_0, tensor.Invalid}, "F16 and Q4_K": {tensor.F16, tensor.Q4_K}, "Q6_K": {tensor.Q6_K, tensor.Q6_K},
	} {
		x := format.Assembled{Info: tensor.Info{Name: "w", DType: tensor.F32, Shape: []int{2, 256}}}
		for _, d := range decode {
			x.Parts = append(x.Parts, format.Part{N: 256, Decode: d})
		}
		c := &Checkpoint{assembly: &assembly{Assembly: &format.Assembly{Tensors: []format.Assembled{x}}, byName: map[string]int{"w": 0}}}
		require.Equal(t, want, c.DecodedFrom("w"))
		require.Empty(t, c.DecodedFrom("other"))
	}
}
