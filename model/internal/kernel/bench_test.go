package kernel

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"
)

// BenchmarkMatMul reports GFLOP/s on as many cores as -cpu says, and what share that
// is of those cores' peak, measured beside it. The shapes are DeepSeekMoE-16B's.
func BenchmarkMatMul(b *testing.B) {
	shapes := []struct{ in, out int }{{2048, 1408}, {1408, 2048}, {2048, 2048}, {2048, 64}}
	for _, name := range Implementations() {
		for _, f := range []Format{BF16, F32, F16, F8E4M3} {
			for _, acc := range []Accumulator{Float32, Float64} {
				for _, shape := range shapes {
					for _, tokens := range []int{1, 8, 16, 64, 128, 512} {
						if name == "portable" && tokens > 8 {
							continue // takes seconds, at the same rate
						}
						label := fmt.Sprintf("%s/%v/float%d/%d→%d/tokens=%d", name, f, 64-32*int(acc), shape.in, shape.out, tokens)
						b.Run(label, func(b *testing.B) {
							defer Use(name)()
							dst := make([]float32, tokens*shape.out)
							rotate(b, name, f, acc, shape.in, shape.out, tokens, 2, func(x []float32, w Matrix) {
								MatMul(dst, x, w, nil, acc, runtime.GOMAXPROCS(0))
							})
						})
					}
				}
			}
		}
	}
}

// BenchmarkPartial is BenchmarkMatMul of partialSums, by themselves and beside a product with
// float64 sums: two multiply-adds, or three, are counted of each number of a token and a row.
func BenchmarkPartial(b *testing.B) {
	for _, name := range Implementations() {
		for _, f := range []Format{BF16, F32} {
			for _, tokens := range []int{1, 2, 4, 16, 128} {
				if name == "portable" && tokens > 4 {
					continue
				}
				const in, out = 2048, 1408
				p := &Partial{Plans: []int{512, 192}, Each: func(_, _ int, _, _, _ []float64) {}}
				b.Run(fmt.Sprintf("%s/%v/alone/tokens=%d", name, f, tokens), func(b *testing.B) {
					defer Use(name)()
					rotate(b, name, f, Float32, in, out, tokens, 4, func(x []float32, w Matrix) {
						p.X = x
						MatPartial(w, p, runtime.GOMAXPROCS(0))
					})
				})
				b.Run(fmt.Sprintf("%s/%v/with product/tokens=%d", name, f, tokens), func(b *testing.B) {
					defer Use(name)()
					dst := make([]float32, tokens*out)
					rotate(b, name, f, Float32, in, out, tokens, 6, func(x []float32, w Matrix) {
						p.X = x
						MatMulPartial(dst, x, w, nil, Float64, p, runtime.GOMAXPROCS(0))
					})
				})
			}
		}
	}
}

// weights are bytes that are ordinary numbers in every format.
var weights = sync.OnceValue(func() []byte {
	data := make([]byte, 64<<20)
	for i := range data {
		data[i] = byte(0x30 + i%15)
	}
	return data
})

// rotate rotates over matrices that do not fit the caches together, as layers do. It counts so
// many operations of each number of a token and a row.
func rotate(b *testing.B, name string, f Format, acc Accumulator, cols, rows, tokens, operations int, run func(x []float32, w Matrix)) {
	r := rand.New(rand.NewPCG(9, 9))
	matrices := []Matrix{}
	size := rows * cols * f.Size()
	for data := weights(); len(data) >= size; data = data[size:] {
		w := Matrix{Format: f, Rows: rows, Cols: cols, Data: data[:size]}
		if f == F8E4M3 {
			w.BlockRows, w.BlockCols = 128, 128
			w.Scales = random(r, (rows+127)/128*((cols+127)/128))
		}
		matrices = append(matrices, w)
	}
	x := random(r, tokens*cols)
	peak, workers := measuredPeak(name, acc), runtime.GOMAXPROCS(0)
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		run(x, matrices[i%len(matrices)])
		i++
	}
	rate := float64(operations*tokens) * float64(rows*cols) * float64(b.N) / b.Elapsed().Seconds() / 1e9
	b.ReportMetric(rate, "GFLOP/s")
	if peak = max(peak, measuredPeak(name, acc)); peak > 0 {
		b.ReportMetric(100*rate/peak/float64(workers), "%peak")
	}
}

// measuredPeak returns the GFLOP/s of fused multiply-adds alone, 0 if unknown.
func measuredPeak(name string, acc Accumulator) float64 {
	run, flops := peakLoop(name, acc)
	if run == nil {
		return 0
	}
	best := 0.0
	const rounds = 50_000
	for range 10 {
		start := time.Now()
		run(rounds)
		best = max(best, float64(flops*rounds)/time.Since(start).Seconds()/1e9)
	}
	return best
}

// BenchmarkCodec reports GB/s, read and written, on one core, and what share of
// the rate of copying beside it that is.
func BenchmarkCodec(b *testing.B) {
	for _, name := range Implementations() {
		for _, size := range []int{32 << 10, 32 << 20} {
			values, stored := make([]float32, size), make([]byte, size*2)
			for i := range stored {
				stored[i] = byte(0x30 + i%15)
			}
			for i := range values {
				values[i] = float32(i)
			}
			run := func(label string, bytes int, f func()) {
				b.Run(fmt.Sprintf("%s/%s/%d", name, label, size), func(b *testing.B) {
					defer Use(name)()
					copied := copyRate(size)
					for b.Loop() {
						f()
					}
					rate := float64(size*bytes) * float64(b.N) / b.Elapsed().Seconds() / 1e9
					b.ReportMetric(rate, "GB/s")
					b.ReportMetric(100*rate/max(copied, copyRate(size)), "%memcpy")
				})
			}
			run("BF16→F32", 6, func() { Widen(values, stored, BF16) })
			run("F32→BF16", 6, func() { Narrow(stored, values, BF16) })
			run("F16→F32", 6, func() { Widen(values, stored, F16) })
			run("F32→F16", 6, func() { Narrow(stored, values, F16) })
			run("FP8→F32", 5, func() { Widen(values, stored[:size], F8E4M3) })
			run("round to BF16", 8, func() { RoundTo(values, BF16) })
		}
	}
}

// copyRate returns the GB/s, read and written, of copying 2·size bytes.
func copyRate(size int) float64 {
	from, to := make([]byte, 2*size), make([]byte, 2*size)
	for i := range from {
		from[i], to[i] = 1, 1
	}
	best := 0.0
	for range 5 {
		start := time.Now()
		n := max(1, 1<<25/size)
		for range n {
			copy(to, from)
		}
		best = max(best, float64(4*size*n)/time.Since(start).Seconds()/1e9)
	}
	return best
}
