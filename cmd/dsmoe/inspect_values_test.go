package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/config/configtest"
	"dsmoe/inspect"
	"dsmoe/inspect/experts"
	"dsmoe/inspect/matrix"
	"dsmoe/inspect/router"
	"dsmoe/inspect/stats"
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
			Quantiles           []stats.QuantileValue
			Median              float64 `json:"median_absmax"`
		}
	}
	require.NoError(t, json.Unmarshal(data, &fixtures))
	require.Len(t, fixtures, 5)
	for name, want := range fixtures {
		path := filepath.Join("..", "..", "fixtures", name, "checkpoint")
		args := []string{"inspect", "stats", "--json", "--quantiles", "0.001,0.07,0.5,0.99", path}
		for tensor := range want.Tensors {
			args = append(args, "--match", tensor)
		}
		var got stats.Report
		document(t, &got, args...)
		found := 0
		for _, x := range got.Tensors {
			w, ok := want.Tensors[x.Name]
			if !ok {
				continue // --match selects the scales of a tensor, too
			}
			found++
			assert.Equal(t, []any{w.Elements, w.Zeros, w.Min, w.Max, w.Quantiles, w.Median},
				[]any{x.Elements, x.Zeros, *x.Min, *x.Max, x.Quantiles, x.Rows.Median}, "%s %s", name, x.Name)
			assert.InDelta(t, w.Mean, *x.Mean, 1e-14, "%s %s", name, x.Name)
			assert.InDelta(t, w.Std, *x.Std, 1e-14, "%s %s", name, x.Name)
		}
		assert.Len(t, want.Tensors, found)
		var hashes stats.HashReport
		document(t, &hashes, "inspect", "hash", "--json", path)
		assert.Equal(t, want.Model, *hashes.Model, name)
	}
}

// nearestValue is a cosine and whose it is.
type nearestValue [2]float64

// matrixValues is one matrix of each expert of a layer, by numpy.
type matrixValues struct {
	Norm, Distinct []float64
	SpectralNorm   []float64 `json:"spectral_norm"`
	Nearest        []nearestValue
}

// TestInspectedExperts: the numbers of experts, of their likeness and their rounding to BF16 are
// those of numpy (scripts/inspect_values.py). Cosines are sums in float32.
func TestInspectedExperts(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "inspect_values.json"))
	require.NoError(t, err)
	var fixtures map[string]struct {
		Layer   int
		Experts struct {
			Function       []nearestValue
			Gate, Up, Down matrixValues
		}
		Rounding []float64
	}
	require.NoError(t, json.Unmarshal(data, &fixtures))
	for name, want := range fixtures {
		path := filepath.Join("..", "..", "fixtures", name, "checkpoint")
		layer := fmt.Sprint(want.Layer)
		var got experts.Report
		document(t, &got, "inspect", "experts", "--json", "--layers", layer, path)
		require.Len(t, got.Layers, 1)
		require.Len(t, got.Layers[0].Experts, len(want.Experts.Function))
		for e, x := range got.Layers[0].Experts {
			assertNearest(t, want.Experts.Function[e], x.Function, 2e-5)
			for i, m := range []*experts.MatrixNumbers{x.Gate, x.Up, x.Down} {
				w := []matrixValues{want.Experts.Gate, want.Experts.Up, want.Experts.Down}[i]
				assert.InEpsilon(t, w.Norm[e], *m.Norm, 1e-13)
				assert.InEpsilon(t, w.SpectralNorm[e], *m.SpectralNorm, 1e-4)
				assert.InEpsilon(t, w.Norm[e]*w.Norm[e]/(w.SpectralNorm[e]*w.SpectralNorm[e]), *m.StableRank, 2e-4)
				assert.Equal(t, w.Distinct[e], *m.Distinct)
				assertNearest(t, w.Nearest[e], m.Nearest, 2e-6)
			}
		}
		rounded := filepath.Join(t.TempDir(), "rounded")
		status, _, stderr := dsmoe(t.Context(), "convert", "--type", "bf16", path, rounded)
		require.Contains(t, []int{cli.ExitYes, cli.ExitNo}, status, stderr)
		var errors experts.ErrorReport
		document(t, &errors, "inspect", "experts", "--json", "--layers", layer, "--against", path, rounded)
		for e, w := range want.Rounding {
			assert.InDelta(t, w, *errors.Layers[0].Experts[e].Gate.RelativeRMS, 1e-15+1e-12*w, name)
		}
	}
}

func assertNearest(t *testing.T, want nearestValue, got *matrix.Neighbour, within float64) {
	t.Helper()
	assert.InDelta(t, want[0], got.Cosine, within)
	assert.Equal(t, int(want[1]), got.Expert)
}

// TestInspectedRouters: the numbers of routers are those of numpy.
func TestInspectedRouters(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "inspect_values.json"))
	require.NoError(t, err)
	var fixtures map[string]struct {
		Layer  int
		Router struct {
			Norm, Singular []float64
			MaxLogit       []float64 `json:"max_logit"`
			Nearest        []nearestValue
		}
	}
	require.NoError(t, json.Unmarshal(data, &fixtures))
	for name, want := range fixtures {
		var got router.Report
		document(t, &got, "inspect", "router", "--json", "--layers", fmt.Sprint(want.Layer), filepath.Join("..", "..", "fixtures", name, "checkpoint"))
		require.Len(t, got.Layers, 1)
		l := got.Layers[0]
		assert.InEpsilonSlice(t, want.Router.Singular, l.Singular, 1e-12, name)
		assert.InEpsilon(t, want.Router.Singular[0]/want.Router.Singular[len(want.Router.Singular)-1], *l.Condition, 1e-12)
		for e, row := range l.Rows {
			assert.InEpsilon(t, want.Router.Norm[e], *row.Norm, 1e-14)
			assert.InEpsilon(t, want.Router.MaxLogit[e], *row.MaxLogit, 1e-14)
			assertNearest(t, want.Router.Nearest[e], row.Nearest, 1e-14)
		}
	}
}

// TestFixturesHaveNoFindings_every, but for one whose second prediction layer is the first in another order,
// and one with two equal rows in a router.
func TestFixturesHaveNoFindings_every(t *testing.T) {
	t.Parallel()
	fixtures, err := filepath.Glob(filepath.Join("..", "..", "fixtures", "*", "checkpoint", "*.safetensors*"))
	require.NoError(t, err)
	checked := map[string]bool{}
	for _, file := range fixtures {
		dir := filepath.Dir(file)
		name := filepath.Base(filepath.Dir(dir))
		if checked[name] {
			continue
		}
		checked[name] = true
		if len(checked)%6 > 0 && name != "v3-mtp-two" && name != "v1-router-ties" && !configtest.Every(t) {
			continue
		}
		want := map[string][]int{"v1-dense": {cli.ExitUnknown, cli.ExitUnknown}, "v3-mtp-two": {cli.ExitNo, cli.ExitYes}, "v1-router-ties": {cli.ExitYes, cli.ExitNo}}[name]
		if want == nil {
			want = []int{cli.ExitYes, cli.ExitYes}
		}
		experts, _, stderr := dsmoe(t.Context(), "inspect", "experts", dir)
		routers, _, more := dsmoe(t.Context(), "inspect", "router", "--coupling", dir)
		assert.Equal(t, want, []int{experts, routers}, "%s: %s%s", name, stderr, more)
	}
	assert.GreaterOrEqual(t, len(checked), 17)
}

// document reads what a command prints.
func document(t *testing.T, v any, args ...string) {
	t.Helper()
	status, stdout, stderr := dsmoe(t.Context(), args...)
	require.Equal(t, cli.ExitYes, status, stderr)
	require.NoError(t, json.Unmarshal([]byte(stdout), v))
}

// BenchmarkStats reads a checkpoint of 350 MB that is in the page cache, on one core and on
// all, and reports GB/s per core, beside what copying memory reaches in the same run.
func BenchmarkStats(b *testing.B) {
	benchmarkInspection(b, func(w inspect.Weights) error {
		_, err := stats.Compute(b.Context(), w, stats.Options{})
		return err
	})
}

// BenchmarkHash is BenchmarkStats for hashes.
func BenchmarkHash(b *testing.B) {
	benchmarkInspection(b, func(w inspect.Weights) error {
		_, err := stats.Hash(b.Context(), w, inspect.Selection{}, inspect.ByModel)
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
