package convert

import (
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/internal/fixture"
	"dsmoe/convert/plan"
	"dsmoe/convert/remote/remotetest"
	"dsmoe/model/tensor"
)

// TestConversionsOfTheHub: what is converted from the hub, with 30 % of the requests failing or breaking off,
// is what is converted from the disk, byte for byte but for the manifest.
func TestConversionsOfTheHub(t *testing.T) {
	options := map[string]map[string]plan.Options{
		"v3-fp8": {"copy": {}, "bf16": {DType: tensor.BF16}, "fused": {Experts: plan.FusedExperts, DType: tensor.F32},
			"q8_0": {Format: "gguf", Mixture: "q8_0", Name: "x"}},
		"v2-lite": {"gguf": {Format: "gguf", Name: "x"}, "f16": {Format: "gguf", DType: tensor.F16, Name: "x"},
			"fp8": {DType: tensor.F8E4M3}},
	}
	for _, name := range slices.Sorted(maps.Keys(options)) {
		path := fixture.Path(t, name+"/checkpoint")
		remotetest.Start(t, map[string]string{"model": path}).Fail(30)
		for _, what := range slices.Sorted(maps.Keys(options[name])) {
			o := options[name][what]
			want := converted(t, path, o)
			dst := filepath.Join(t.TempDir(), "out")
			r, err := Run(t.Context(), dst, open(t, "hf://org/model"), Options{o, inMemory()})
			require.NoError(t, err, what)
			require.True(t, r.Verified)
			requireSameOutput(t, want, dst)
			require.Contains(t, fixture.Read(t, dst, plan.ManifestName), `"origin": "hf://org/model@`+remotetest.Commit+`"`)
		}
	}
}

// requireSameOutput compares all files but the manifests.
func requireSameOutput(t *testing.T, want, got string) {
	t.Helper()
	a, b := fixture.Sums(t, want), fixture.Sums(t, got)
	delete(a, plan.ManifestName)
	delete(b, plan.ManifestName)
	require.Equal(t, a, b)
}
