package weights

import (
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/model/tensor"
)

// TestSides: a packed weight has the form's name, dtype and shape, its sides in order, and is given back as
// stored; what its form does not have, or lacks, is refused.
func TestSides(t *testing.T) {
	of := func(d tensor.DType, shape ...int) tensor.Tensor {
		n, err := tensor.Size(d, shape)
		require.NoError(t, err)
		return tensor.Tensor{DType: d, Shape: shape, Data: make([]byte, n)}
	}
	whole := func() memory {
		return memory{"w.weight_packed": of(tensor.I32, 9, 8), "w.weight_scale": of(tensor.BF16, 9, 2),
			"w.weight_zero_point": of(tensor.I32, 2, 2), "w.weight_shape": of(tensor.I64, 2)}
	}
	for cause, change := range map[string]func(m memory){
		"":                               func(memory) {},
		"w.weight_zero_point is missing": func(m memory) { delete(m, "w.weight_zero_point") },
		"w.weight_zero_point has dtype I32 and shape [1 2]: I32 [2 2] is expected": func(m memory) {
			m["w.weight_zero_point"] = of(tensor.I32, 1, 2)
		},
		"w.weight_g_idx: columns in an order of their own (activation order) are not read": func(m memory) {
			m["w.weight_g_idx"] = of(tensor.I32, 64)
		},
		"its scales have shape [9 1]: blocks of [1 32] give [9 2]": func(m memory) {
			m["w.weight_scale"] = of(tensor.BF16, 9, 1)
		},
		"its scales have dtype F8_E4M3": func(m memory) { m["w.weight_scale"] = of(tensor.F8E4M3, 9, 2) },
	} {
		m := whole()
		change(m)
		c := &config.Config{ModelType: "deepseek_v3",
			Quantization: config.Quantization{Method: tensor.PackedZeros.Method, Block: [2]int{1, 32}}}
		w := New(c, m).Find("w.weight")
		require.NotNil(t, w)
		if cause != "" {
			require.ErrorContains(t, w.CheckScales(), cause)
			continue
		}
		require.NoError(t, w.CheckScales())
		require.Equal(t, tensor.Info{Name: "w.weight", DType: tensor.INT4, Shape: []int{9, 64}}, w.Info)
		require.Equal(t, tensor.Info{Name: "w.weight_packed", DType: tensor.I32, Shape: []int{9, 8}}, w.AsStored().Info)
		names := []string{}
		for _, side := range w.Sides() {
			require.True(t, side.IsScales())
			names = append(names, side.Name)
		}
		require.Equal(t, []string{"w.weight_scale", "w.weight_zero_point"}, names)
	}
}
