package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/verify/inspect"
)

// TestInspectedValues: statistics and hashes of the fixtures are those that numpy and
// Python's blake3 give (scripts/inspect_values.py).
func TestInspectedValues(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "inspect_values.json"))
	require.NoError(t, err)
	var fixtures map[string]struct {
		Model   string
		Tensors map[string]struct {
			Elements, Zeros     int64
			Min, Max, Mean, Std float64
			Quantiles           []inspect.QuantileValue
			Median              float64 `json:"median_absmax"`
		}
	}
	require.NoError(t, json.Unmarshal(data, &fixtures))
	require.Len(t, fixtures, 5)
	for name, want := range fixtures {
		path := filepath.Join("..", "..", "fixtures", name, "checkpoint")
		var got inspect.StatsReport
		document(t, &got, "inspect", "stats", "--json", "--quantiles", "0.001,0.07,0.5,0.99", path)
		found := 0
		for _, x := range got.Tensors {
			w, ok := want.Tensors[x.Name]
			if !ok {
				continue
			}
			found++
			assert.Equal(t, []any{w.Elements, w.Zeros, w.Min, w.Max, w.Quantiles, w.Median},
				[]any{x.Elements, x.Zeros, *x.Min, *x.Max, x.Quantiles, x.Rows.Median}, "%s %s", name, x.Name)
			assert.InDelta(t, w.Mean, *x.Mean, 1e-14, "%s %s", name, x.Name)
			assert.InDelta(t, w.Std, *x.Std, 1e-14, "%s %s", name, x.Name)
		}
		assert.Len(t, want.Tensors, found)
		var hashes inspect.HashReport
		document(t, &hashes, "inspect", "hash", "--json", path)
		assert.Equal(t, want.Model, *hashes.Model, name)
	}
}

// document reads what a command prints.
func document(t *testing.T, v any, args ...string) {
	t.Helper()
	status, stdout, stderr := dsmoe(t.Context(), args...)
	require.Equal(t, exitYes, status, stderr)
	require.NoError(t, json.Unmarshal([]byte(stdout), v))
}

// BenchmarkStats reads a checkpoint of 350 MB that is in the page cache, on one core and on
// all, and reports GB/s per core, beside what copying memory reaches in the same run.
func BenchmarkStats(b *testing.B) {
	benchmarkInspection(b, func(w inspect.Weights) error {
		_, err := inspect.Stats(b.Context(), w, inspect.StatsOptions{})
		return err
	})
}

// BenchmarkHash is BenchmarkStats for hashes.
func BenchmarkHash(b *testing.B) {
	benchmarkInspection(b, func(w inspect.Weights) error {
		_, err := inspect.Hash(b.Context(), w, inspect.Selection{}, inspect.HashModel)
		return err
	})
}

// benchmarkInspection reads a checkpoint again and again.
func benchmarkInspection(b *testing.B, run func(w inspect.Weights) error) {
	c := benchmarkCheckpoint(b)
	list, err := orderedWeights(c)
	require.NoError(b, err)
	copied := copyBandwidth()
	for _, threads := range []int{1, runtime.NumCPU()} {
		b.Run(threadsName(threads), func(b *testing.B) {
			for b.Loop() {
				require.NoError(b, run(inspect.Weights{Config: c.Config, List: list, Reader: c, Threads: threads}))
			}
			reportPerCore(b, c, threads, copied)
		})
	}
}
