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
)

// detailLines returns the lines of docs/detection.md with all values, by the heading of a pack.
func detailLines(t *testing.T) map[string][]string {
	page := string(must(os.ReadFile(filepath.Join("..", "..", "docs", "detection.md"))))
	lines := map[string][]string{}
	for _, section := range strings.Split(page, "\n### ")[1:] {
		name, text, found := strings.Cut(section, "\n\n```text\n")
		require.True(t, found, name)
		lines[name] = strings.Split(strings.TrimSuffix(strings.TrimSpace(text), "\n```"), "\n")
	}
	return lines
}

// TestDetectionPage: docs/detection.md has the packs and mistakes of this command; dsmoe fails all
// known mistakes, passes the right model, and passes some of each kind out of reach. The values of
// some mistakes are those of a run; scripts/check.sh compares all.
func TestDetectionPage(t *testing.T) {
	t.Parallel()
	lines, missed := detailLines(t), map[string]bool{}
	for _, pack := range headings(detectionPacks) {
		require.Regexp(t, `^none +pass `, lines[pack][1])
		for _, line := range lines[pack][3:] {
			name := strings.TrimSpace(string([]rune(line)[:52]))
			if slices.ContainsFunc(mistakes(), func(m mistake) bool { return m.name == name }) {
				require.Equal(t, "fail", strings.Fields(string([]rune(line)[52:]))[0], "%s: %s", pack, name)
			} else if strings.Contains(line, "  pass  ") {
				missed[name] = true
			}
		}
	}
	require.Len(t, missed, len(outOfReach()))

	study, err := newStudy(filepath.Join("..", "..", "fixtures"), "router", []string{"v1-base/golden-bf16"})
	require.NoError(t, err)
	got := strings.Split(strings.TrimSpace(study.detail(0)), "\n")
	require.Len(t, got, 1+rightModels+6, got)
	for _, line := range got {
		require.True(t, slices.Contains(lines["v1-base BF16"], line), line)
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
