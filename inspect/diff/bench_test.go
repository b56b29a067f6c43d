package diff

import (
	"math/rand/v2"
	"testing"

	"dsmoe/model/tensor"
	"dsmoe/model/weights"
)

// BenchmarkDifferent measures tiles of two BF16 weights of which every element differs, in
// bytes of one side.
func BenchmarkDifferent(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	x, y := make([]float32, weights.TileElements), make([]float32, weights.TileElements)
	for i := range x {
		x[i] = tensor.Rounded(float32(r.NormFloat64()), tensor.BF16)
		y[i] = tensor.Rounded(float32(r.NormFloat64()), tensor.BF16)
	}
	b.SetBytes(tensor.BF16.Bytes(weights.TileElements))
	for b.Loop() {
		var m Measures
		m.add(x, y, 0, tensor.BF16, tensor.BF16)
	}
}
