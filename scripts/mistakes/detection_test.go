package main

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/model"
	"dsmoe/text"
)

// TestDetectionPage: the table of docs/detection has the packs and mistakes of this command. dsmoe fails all known
// mistakes, passes the right model, and passes each mistake out of reach in some pack. A run gives the same values for some
// mistakes; scripts/nightly.sh compares all.
func TestDetectionPage(t *testing.T) {
	t.Parallel()
	table := string(must(os.ReadFile(filepath.Join("..", "..", "docs", "detection", "values.tsv"))))
	verdicts, missed := map[string]map[string]string{}, map[string]bool{}
	for line := range strings.Lines(table) {
		fields := strings.Split(line, "\t") // pack, mistake, dsmoe, …
		pack, name, verdict := fields[0], fields[1], fields[2]
		if verdicts[pack] == nil {
			verdicts[pack] = map[string]string{}
		}
		verdicts[pack][name] = verdict
		missed[name] = missed[name] || verdict == "pass" && name != "none"
	}
	for _, pack := range headings(detectionPacks) {
		require.Equal(t, "pass", verdicts[pack]["none"], pack)
		for _, m := range mistakes() {
			require.Contains(t, []string{"fail", ""}, verdicts[pack][m.name], "%s: %s", pack, m.name) // "": cannot be made
		}
	}
	for _, m := range outOfReach() {
		require.True(t, missed[m.name], m.name)
	}

	study, err := newStudy(filepath.Join("..", "..", "fixtures"), "router", []string{"v1-base/golden-bf16"})
	require.NoError(t, err)
	require.Len(t, study.values().Rows(), rightModels+6)
	for line := range strings.Lines(written(study.values(), text.TSV)) {
		require.Contains(t, table, line)
	}
}

// TestLogitChecks: the value of each check on logits that can be worked out by hand.
func TestLogitChecks(t *testing.T) {
	t.Parallel()
	in := &model.Input{Batch: 2, Seq: 3, InputIDs: []int{9, 1, 0, 1, 0, 9}, AttentionMask: []int{0, 1, 1, 1, 1, 0}}
	three := float32(math.Log(3))
	want := []float32{7, 7, 0, three, 0, three, three, 0, 0, 2, 7, 7} // padding first and last
	same := newLogits(in, want, slices.Concat([]float32{5, 6}, want[2:10], []float32{6, 5}))
	require.Equal(t, []int{0, -1, 0, -1}, same.next)
	broken := newLogits(in, want, []float32{7, 7, three, 0, 0, three, three, 0, 0, 2, 7, 7})
	none := newLogits(in, want, slices.Repeat([]float32{float32(math.NaN())}, 12))

	ln3 := math.Log(3)
	norm := math.Sqrt(3*ln3*ln3 + 4)
	expected := []float64{0.75, 0, math.Sqrt2 * ln3 / norm, ln3 * ln3 / norm / norm, ln3 / 2 / 4, 100 * (math.Sqrt(1./3) - 1)}
	for i, check := range logitChecks() {
		require.True(t, check.passes(check.value(same)), check.name)
		require.InDelta(t, expected[i], check.value(broken), 1e-6, check.name)
		require.False(t, check.passes(check.value(broken)), check.name)
		require.False(t, check.passes(check.value(none)), check.name)
	}
}
