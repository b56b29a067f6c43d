package engine

import (
	"fmt"
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
