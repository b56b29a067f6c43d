package stats

import (
	"context"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/inspect"
	"dsmoe/inspect/inspecttest"
	"dsmoe/model/tensor"
)

// benchmarked are BF16 weights of DeepSeek-V1's experts, whose bytes are in memory and are copied from there, and their
// number of bytes. With -cpu 1 a benchmark is the rate of one core without the disk.
func benchmarked(b *testing.B) (w inspect.Weights, bytes int64) {
	r := rand.New(rand.NewPCG(1, 2))
	one := inspecttest.Floats(tensor.BF16, []int{1408, 2048}, func(int) float32 { return float32(0.02 * r.NormFloat64()) })
	tensors := map[string]tensor.Tensor{}
	for i := range 12 {
		tensors["expert."+strconv.Itoa(i)] = one
	}
	return inspecttest.Only(b, tensors).Weights(), int64(12 * len(one.Data))
}

// BenchmarkCompute counts these weights.
func BenchmarkCompute(b *testing.B) {
	w, n := benchmarked(b)
	b.SetBytes(n)
	for b.Loop() {
		_, err := Compute(context.Background(), w, Options{By: inspect.ByTensor})
		require.NoError(b, err)
	}
}

// BenchmarkHashNumbers is Hash of these weights. The limit is the hash of their numbers as float32, twice as many bytes.
func BenchmarkHashNumbers(b *testing.B) {
	w, n := benchmarked(b)
	b.SetBytes(n)
	for b.Loop() {
		_, err := Hash(context.Background(), w, inspect.Selection{}, inspect.ByModel)
		require.NoError(b, err)
	}
}
