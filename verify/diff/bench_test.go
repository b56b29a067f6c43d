package diff

import (
	"math/rand/v2"
	"testing"

	"dsmoe/model/tensor"
)

// BenchmarkDifferent measures tiles of two BF16 weights of which every element differs, in
// bytes of one side.
func BenchmarkDifferent(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	x, y := make([]float32, tileElements), make([]float32, tileElements)
	for i := range x {
		x[i] = tensor.Rounded(float32(r.NormFloat64()), tensor.BF16)
		y[i] = tensor.Rounded(float32(r.NormFloat64()), tensor.BF16)
	}
	b.SetBytes(tensor.BF16.Bytes(tileElements))
	for b.Loop() {
		var m metrics
		m.add(x, y, 0, tensor.BF16, tensor.BF16)
	}
}
