package verify

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/checkpoint"
	"dsmoe/model"
	"dsmoe/model/tensor"
)

// BenchmarkRun verifies a pack of n tokens in local mode. The metric "forwards" is its time as a multiple of
// that of our own forward pass over the same tokens, with float64 sums, too.
func BenchmarkRun(b *testing.B) {
	for _, d := range []tensor.DType{tensor.F32, tensor.BF16} {
		for _, tokens := range []int{16, 128, 2048} {
			b.Run(fmt.Sprintf("%s/tokens=%d", d, tokens), func(b *testing.B) { benchmarkRun(b, d, tokens) })
		}
	}
}

func benchmarkRun(b *testing.B, d tensor.DType, tokens int) {
	c, err := checkpoint.Open(filepath.Join("..", "fixtures", "v3-trained", "checkpoint"))
	require.NoError(b, err)
	defer c.Close()
	in, random := &model.Input{Batch: 1, Seq: tokens}, rand.New(rand.NewPCG(1, 2))
	for range tokens {
		in.InputIDs = append(in.InputIDs, random.IntN(c.Config.VocabSize))
	}
	golden := recorded(b, c.Config, c, in, d)
	m, err := model.Load(c.Config, c)
	require.NoError(b, err)
	var forward, verify time.Duration
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		start := time.Now()
		_, err := m.Forward(context.Background(), in, model.Options{DType: d})
		require.NoError(b, err)
		forward += time.Since(start)
		b.StartTimer()
		start = time.Now()
		_, err = Run(context.Background(), c.Config, c, golden, Options{Undiagnosed: true})
		require.NoError(b, err)
		verify += time.Since(start)
	}
	b.ReportMetric(float64(verify)/float64(forward), "forwards")
}
