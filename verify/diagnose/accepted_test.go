package diagnose

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAcceptable: each id of a cause, as the sources name them, is one that can be accepted or one of the others.
func TestAcceptable(t *testing.T) {
	t.Parallel()
	others := []string{"bias-wrong", "cache-rounded", "columns-permuted", "embedding-rows", "embedding-scaled",
		"embedding-tokens", "expert-order", "expert-slots", "experts-missing", "experts-renumbered",
		"experts-repeated", "experts-rotated", "experts-swapped", "fp4-nibbles", "gate-up-swapped", "hash-table",
		"hash-table-shifted", "head-norms-exchanged", "latent-cache", "layers-exchanged", "mlp-neurons", "mtp-copy",
		"mtp-norms", "newest-key", "norm-off-by-one", "other-weight", "overflow", "positions", "prefix-lost",
		"products-rounded", "projections-exchanged", "reference-overflow", "reference-zeros", "router-rows",
		"rows-of-others", "rows-permuted", "scale-exponent", "scales-transposed", "sequences-mixed", "transposed", "weight-coded",
		"low-rank", "weight-column", "weight-copied", "weight-not-finite", "weight-zero", "weights-of-others"}
	sources, err := filepath.Glob("*.go")
	require.NoError(t, err)
	all := ""
	for _, name := range sources {
		if name != "accepted.go" && name != "accepted_test.go" {
			code, err := os.ReadFile(name)
			require.NoError(t, err)
			all += string(code)
		}
	}
	ids := regexp.MustCompile(`(?:\b(?:id|ID): |\badd\(|\bid(?:, how)? :?= |\t{)"([a-z0-9]+(?:-[a-z0-9]+)+)"`)
	for _, id := range ids.FindAllStringSubmatch(all, -1) {
		require.True(t, slices.Contains(Acceptable, id[1]) != slices.Contains(others, id[1]),
			"%s: list it in Acceptable, or here if it is no rule that an engine may have", id[1])
	}
	require.True(t, slices.IsSorted(Acceptable))
	for _, id := range Acceptable {
		require.Contains(t, all, `"`+id+`"`, "no cause has this id")
	}
}
