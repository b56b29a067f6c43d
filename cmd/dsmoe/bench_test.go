package main

import (
	"context"
	"flag"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/checkpoint"
	"dsmoe/model"
)

var benchmarked = flag.String("checkpoint", "../../fixtures/v1-base/checkpoint", "`DIR` of the model that BenchmarkForward runs")

// BenchmarkForward runs whole forward passes on as many cores as -cpu says. With the
// fixture's small model it only shows that it works; scripts/bench gives it the
// widths of DeepSeekMoE-16B.
func BenchmarkForward(b *testing.B) {
	ckpt, err := checkpoint.Open(*benchmarked)
	require.NoError(b, err)
	defer func() { require.NoError(b, ckpt.Close()) }()
	m, err := model.Load(ckpt.Config, ckpt)
	require.NoError(b, err)
	for _, acc := range []model.Accumulator{model.Float32, model.Float64} {
		for _, tokens := range []int{1, 16, 128, 512} {
			b.Run(fmt.Sprintf("f%d/tokens=%d", 64-32*int(acc), tokens), func(b *testing.B) {
				in := &model.Input{Batch: 1, Seq: tokens, InputIDs: make([]int, tokens)}
				for i := range in.InputIDs {
					in.InputIDs[i] = (7*i + 11) % min(1000, ckpt.Config.VocabSize)
				}
				forward := func() {
					_, err := m.Forward(context.Background(), in, model.Options{Accumulate: acc})
					require.NoError(b, err)
				}
				forward() // the first pass maps the weights
				b.ReportAllocs()
				for b.Loop() {
					forward()
				}
				b.ReportMetric(float64(tokens*b.N)/b.Elapsed().Seconds(), "tokens/s")
			})
		}
	}
}
