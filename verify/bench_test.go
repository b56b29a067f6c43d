//go:build unix

package verify

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/checkpoint"
	"dsmoe/model"
	"dsmoe/model/tensor"
)

// BenchmarkRun verifies a pack of n tokens in local mode. The metric "forwards" is its time as a multiple of
// that of our own forward pass over the same tokens, with float64 sums, too. "cpu-forwards" is the same ratio of
// user processor time, which other programs on the machine hardly change.
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
	var forward, verify, forwardCPU, verifyCPU time.Duration
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		start, cpu := time.Now(), userTime(b)
		_, err := m.Forward(context.Background(), in, model.Options{DType: d})
		require.NoError(b, err)
		forward, forwardCPU = forward+time.Since(start), forwardCPU+userTime(b)-cpu
		b.StartTimer()
		start, cpu = time.Now(), userTime(b)
		_, err = Run(context.Background(), c.Config, c, golden, Options{Undiagnosed: true})
		require.NoError(b, err)
		verify, verifyCPU = verify+time.Since(start), verifyCPU+userTime(b)-cpu
	}
	b.ReportMetric(float64(verify)/float64(forward), "forwards")
	b.ReportMetric(float64(verifyCPU)/float64(forwardCPU), "cpu-forwards")
}

// userTime returns the user processor time of this process.
func userTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano())
}
