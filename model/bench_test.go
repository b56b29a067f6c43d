package model_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/count"
	"dsmoe/model/synth"
	"dsmoe/model/weights"
)

// benchConfig has the proportions of DeepSeekMoE-16B at a quarter of its widths.
const benchConfig = `{"model_type":"deepseek","vocab_size":4096,"hidden_size":512,"intermediate_size":2736,
"moe_intermediate_size":352,"num_hidden_layers":3,"num_attention_heads":4,"num_key_value_heads":4,
"n_shared_experts":2,"n_routed_experts":64,"num_experts_per_tok":6,"first_k_dense_replace":1}`

// BenchmarkForward runs the decoder on BF16 weights; GFLOP/s counts the matrix products
// of the activated weights.
func BenchmarkForward(b *testing.B) {
	c, err := config.Parse(strings.NewReader(benchConfig))
	if err != nil {
		b.Fatal(err)
	}
	m, err := model.Load(c, held(b, synth.New(c, 1)))
	if err != nil {
		b.Fatal(err)
	}
	flop := 2 * float64(count.Modules(c).Sum().MACs)
	for _, acc := range []model.Accumulator{model.Float64, model.Float32} {
		for _, tokens := range []int{1, 16, 128} {
			b.Run(fmt.Sprintf("float%d/tokens=%d", 64-32*int(acc), tokens), func(b *testing.B) {
				in := &model.Input{Batch: 1, Seq: tokens, InputIDs: make([]int, tokens)}
				for i := range in.InputIDs {
					in.InputIDs[i] = i * 37 % 4096
				}
				b.ReportAllocs()
				for b.Loop() {
					if _, err := m.Forward(context.Background(), in, model.Options{Accumulate: acc}); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(flop*float64(tokens)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			})
		}
	}
}

// held keeps a source's tensors in memory.
func held(b testing.TB, src weights.Source) memory {
	b.Helper()
	m := memory{}
	for i := range src.Tensors() {
		w, err := src.Tensor(i.Name)
		if err != nil {
			b.Fatal(err)
		}
		m[i.Name] = w
	}
	return m
}
