package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/checkpoint"
	"dsmoe/verify"
	"dsmoe/verify/pack"
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

// TestTableOfMistakes compares one column of the table in MISTAKES.md, for exchanged matrices, with a run;
// scripts/check.sh compares the whole table.
func TestTableOfMistakes(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "MISTAKES.md"))
	require.NoError(t, err)
	_, table, _ := strings.Cut(string(text), "\n| mistake ")
	table, _, _ = strings.Cut("| mistake "+table, "\n\n")
	const pack = "v1-base/golden-bf16"
	const only = "gate and up"
	got, _, err := run(filepath.Join("..", "..", "fixtures"), only, []string{pack}, false)
	require.NoError(t, err)
	of := 2 + slices.Index(packs, pack)
	var want [][]string
	for _, row := range rows(table) {
		require.Len(t, row, 2+len(packs), row)
		if row[0] == "mistake" || strings.Contains(row[0], only) {
			want = append(want, []string{row[0], row[1], row[of]})
		}
	}
	require.Equal(t, want, rows(got))
	for _, row := range rows(table) {
		for _, cell := range row[2:] {
			require.NotContains(t, []string{"MISSED", "inconclusive", "fails", "misnamed"}, cell, row)
		}
	}
}

// TestStreamsAreNamed: mistakes of DeepSeek-V4 have their stage and their name, in weights as they are published and,
// in both modes, in all forms of reports. All of these are rows of the table, which scripts/check.sh compares.
func TestStreamsAreNamed(t *testing.T) {
	t.Parallel()
	for i, m := range ofStreams() {
		if i%8 > 0 {
			continue
		}
		grade, said, err := try(m, filepath.Join("..", "..", "fixtures"), "v4-fp4/golden-f32", true)
		require.NoError(t, err, m.name)
		require.Equal(t, "named", grade, said)
	}
}

// TestDocumentsAgree: all forms of reports of failures of V3's routing, in both modes. All other
// mistakes are made by scripts/check.sh.
func TestDocumentsAgree(t *testing.T) {
	t.Parallel()
	table, said, err := run(filepath.Join("..", "..", "fixtures"), "group", []string{"v3/golden-f32"}, true)
	require.NoError(t, err)
	require.Equal(t, 3, strings.Count(table, "named"), table)

	printed := said[strings.Index(said, "\n")+1 : strings.LastIndex(said, "== ")]
	c, p := must(checkpoint.Open(filepath.Join("..", "..", "fixtures", "v3", "checkpoint"))), must(pack.Open(filepath.Join("..", "..", "fixtures", "v3", "golden-f32")))
	r := must(verify.Run(t.Context(), c.Config, c, p, verify.Options{}))
	require.ErrorContains(t, documents(r, printed), "text: verdict is not PASS")
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
