package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// rows are the cells of a table in Markdown, without its head.
func rows(table string) (rows [][]string) {
	for line := range strings.Lines(table) {
		if cells, ok := strings.CutPrefix(strings.TrimSpace(line), "| "); ok {
			rows = append(rows, strings.Split(strings.TrimSuffix(cells, " |"), " | "))
		}
	}
	return rows
}

// TestTableOfMistakes holds one column of the table in MISTAKES.md against a run; the whole
// table is compared by scripts/check.sh.
func TestTableOfMistakes(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "MISTAKES.md"))
	require.NoError(t, err)
	_, table, _ := strings.Cut(string(text), "\n| mistake ")
	table, _, _ = strings.Cut("| mistake "+table, "\n\n")
	const pack = "v1-base/golden-bf16"
	got, _, err := run(filepath.Join("..", "..", "fixtures"), "", []string{pack})
	require.NoError(t, err)
	of := 2 + slices.Index(packs, pack)
	var want [][]string
	for _, row := range rows(table) {
		require.Len(t, row, 2+len(packs), row)
		want = append(want, []string{row[0], row[1], row[of]})
	}
	require.Equal(t, want, rows(got))
	for _, row := range rows(table) {
		for _, cell := range row[2:] {
			require.NotContains(t, []string{"MISSED", "inconclusive", "fails", "unnamed", "misnamed"}, cell, row)
		}
	}
}
