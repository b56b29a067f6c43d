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

// BenchmarkCompute counts BF16 weights of DeepSeek-V1's experts, whose bytes are in memory and are copied from
// there. With -cpu 1 it is the rate of one core without the disk.
func BenchmarkCompute(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	one := inspecttest.Floats(tensor.BF16, []int{1408, 2048}, func(int) float32 { return float32(0.02 * r.NormFloat64()) })
	tensors := map[string]tensor.Tensor{}
	for i := range 12 {
		tensors["expert."+strconv.Itoa(i)] = one
	}
	w := inspecttest.Only(b, tensors).Weights()
	b.SetBytes(int64(12 * len(one.Data)))
	for b.Loop() {
		_, err := Compute(context.Background(), w, Options{By: inspect.ByTensor})
		require.NoError(b, err)
	}
}
