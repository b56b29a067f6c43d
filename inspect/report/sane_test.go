package report

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/inspect/inspecttest"
	"dsmoe/inspect/stats"
)

// found returns the findings of all parts of a report on a checkpoint.
func found(t *testing.T, s *inspecttest.Stored) (all []string) {
	t.Helper()
	w := s.Weights()
	r, err := Make(t.Context(), Input{Checkpoint: s.Checkpoint, Values: stats.Values{Reader: s}, Weights: &w})
	require.NoError(t, err)
	for _, f := range r.Findings {
		all = append(all, fmt.Sprint(f.Level, ": ", f.ID, ": ", f.Tensor, ": ", f.Text))
	}
	return all
}

// TestSaneModelsHaveNoFinding_every: healthy models of every kind, and trained ones.
func TestSaneModelsHaveNoFinding_every(t *testing.T) {
	t.Parallel()
	const seeds = 2
	for i, k := range inspecttest.SaneKinds() {
		for seed := range uint64(seeds) {
			if !configtest.Every(t) && (i%12 > 0 || int(seed) != i/12%seeds) {
				continue
			}
			require.Empty(t, found(t, inspecttest.Model(t, k, seed)), "%s %d", k.Name, seed)
		}
	}
	for _, fixture := range []string{"v1-trained", "v3-trained"} {
		if fixture == "v1-trained" && !configtest.Every(t) {
			continue // TestPlantedFaults_every finds no more in it than it planted
		}
		require.Empty(t, found(t, inspecttest.Trained(t, fixture)), fixture)
	}
}
