package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/plan"
)

// TestManifestIsStreamed: the tensors of a manifest are read one after the other, in their
// order, and none of them is kept.
func TestManifestIsStreamed(t *testing.T) {
	const tensors = 20_000
	var b strings.Builder
	b.WriteString(`{"format":"dsmoe.manifest/2","tensors":[`)
	for i := range tensors {
		fmt.Fprintf(&b, `%s{"name":"model.layers.%d.weight","shape":[3,4],"hash":%q,"sources":[{"tensor":"x"}]}`, strings.Repeat(",", min(i, 1)), i, strings.Repeat("0", 64))
	}
	dir := t.TempDir()
	fixture.Write(t, dir, plan.ManifestName, b.String()+"]}")
	size := b.Len()
	b.Reset()
	inUse := func() int {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return int(stats.HeapAlloc)
	}
	before, n := inUse(), 0
	m, err := readManifest(filepath.Join(dir, plan.ManifestName), func(x *ManifestTensor) error {
		require.Equal(t, fmt.Sprintf("model.layers.%d.weight", n), x.Name)
		if n++; n == tensors {
			require.Less(t, inUse()-before, size/4, "bytes in memory of a manifest of %d", size)
		}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, tensors, n)
	require.Empty(t, m.Tensors)
}

// TestFinishedIsHeldAgainstThePlan: a finished output whose header changed, or that is
// shorter, or whose manifest lists other tensors, is not complete.
func TestFinishedIsHeldAgainstThePlan(t *testing.T) {
	t.Parallel()
	src := open(t, fixture.Path(t, "v1-dense/checkpoint"))
	const file = "model.safetensors"
	for want, spoil := range map[string]func(dst string){
		"the header changed":                  func(dst string) { fixture.Flip(t, filepath.Join(dst, file), 20) },
		"model.norm.weight: the data changed": func(dst string) { flipLast(t, filepath.Join(dst, file)) },
		"model.safetensors: has ":             func(dst string) { cutLast(t, filepath.Join(dst, file)) },
		"model.norm.weights: missing": func(dst string) {
			fixture.Replace(t, dst, plan.ManifestName, `"name":"model.norm.weight"`, `"name":"model.norm.weights"`)
		},
		"dsmoe.manifest.json: lists 0 tensors, not 21": func(dst string) { emptyList(t, dst) },
	} {
		dst := converted(t, src.Path, plan.Options{}, inMemory())
		spoil(dst)
		_, err := convert(t.Context(), t, dst, src, plan.Options{}, inMemory())
		require.ErrorContains(t, err, "was changed since", want)
		require.ErrorContains(t, err, want)
	}
}

func flipLast(t *testing.T, path string) {
	stat, err := os.Stat(path)
	require.NoError(t, err)
	fixture.Flip(t, path, stat.Size()-1)
}

func cutLast(t *testing.T, path string) {
	stat, err := os.Stat(path)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(path, stat.Size()-1))
}

// emptyList takes all tensors from a manifest.
func emptyList(t *testing.T, dst string) {
	head, _, found := strings.Cut(fixture.Read(t, dst, plan.ManifestName), `"tensors": [`)
	require.True(t, found)
	fixture.Write(t, dst, plan.ManifestName, head+`"tensors": []}`)
}
