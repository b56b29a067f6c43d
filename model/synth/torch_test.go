package synth

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/model/tensor"
	"dsmoe/model/tensor/tensortest"
)

// TestTorchGatesAreOneStream: layer by layer in the order of the model, as if drawn
// by one generator, and every other tensor as without them.
func TestTorchGatesAreOneStream(t *testing.T) {
	for _, fixture := range []string{"v1-base", "v1-gqa-norm-freq2", "v1-freq3-first2", "v1-dense", "v2-lite", "v3"} {
		t.Run(fixture, func(t *testing.T) {
			c := configtest.Fixture(t, fixture+"/checkpoint")
			s, plain, g := Torch(c, 5), New(c, 5), newMT19937(5)
			for info := range s.Tensors() {
				got, err := s.Tensor(info.Name)
				require.NoError(t, err)
				want, err := plain.Tensor(info.Name)
				require.NoError(t, err)
				if strings.HasSuffix(info.Name, ".mlp.gate.weight") {
					values := make([]float32, want.Len())
					g.kaimingUniform(values, c.HiddenSize)
					want = tensortest.New(t, tensor.BF16, want.Shape, values)
				}
				require.Equal(t, want, got, info.Name)
			}
			for l := range c.NumHiddenLayers {
				_, has := s.gates.first[fmt.Sprintf("model.layers.%d.mlp.gate.weight", l)]
				assert.Equal(t, c.IsMoE(l), has)
			}
		})
	}
}

// TestTorchGatesSkipAhead: a tile in the last gate of 27, past several marks, whose
// gates before it were not asked for.
func TestTorchGatesSkipAhead(t *testing.T) {
	c := configtest.Fixture(t, "states/deepseek-moe-16b")
	info := tensor.Info{Name: "model.layers.27.mlp.gate.weight", DType: tensor.BF16, Shape: []int{64, 2048}}
	got := make([]byte, 4000)
	s := Torch(c, 1)
	require.NoError(t, s.Fill(info, got, 1000))
	assert.Len(t, s.gates.marks, 4)

	values := make([]float32, 27*64*2048)
	newMT19937(1).kaimingUniform(values, 2048)
	last := tensortest.New(t, tensor.BF16, info.Shape, values[26*64*2048:])
	assert.Equal(t, last.Data[1000:5000], got)
}
