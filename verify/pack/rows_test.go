package pack

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestRowsAreDescribed by where they are, and by what they alone have in common.
func TestRowsAreDescribed(t *testing.T) {
	list := func(from, to int, also ...int) (rows []int) {
		for row := from; row < to; row++ {
			rows = append(rows, row)
		}
		return append(rows, also...)
	}
	one := &Rows{Compared: list(0, 48), Length: 48}
	decoded := &Rows{Compared: list(0, 48), Length: 48, Steps: []Step{{0, 0, 24, "prefill", 0, 24, 1}}}
	chunked := &Rows{Compared: list(0, 48), Length: 48}
	for row := 24; row < 48; row++ {
		decoded.Steps = append(decoded.Steps, Step{0, row, row + 1, "decode", row - 23, 1, 1})
	}
	for row := 0; row < 48; row += 8 {
		chunked.Steps = append(chunked.Steps, Step{0, row, row + 8, "chunk", row / 8, 8, 1})
	}
	// three sequences of up to 5 rows, the second of 3: the third began while the others decoded, with a cached row
	batch := &Rows{Compared: list(0, 5, 5, 6, 7, 10, 11, 12, 13, 14), Length: 5, Steps: []Step{{0, 0, 3, "prefill", 0, 5, 2},
		{1, 0, 2, "prefill", 0, 5, 2}, {0, 3, 4, "decode", 1, 2, 2}, {1, 2, 3, "decode", 1, 2, 2}, {2, 0, 1, "cached", 0, 5, 2},
		{2, 1, 3, "chunk", 2, 3, 2}, {0, 4, 5, "decode", 2, 3, 2}, {2, 3, 4, "decode", 3, 1, 1}, {2, 4, 5, "decode", 4, 1, 1}}}
	plain := &Rows{Compared: batch.Compared, Length: 5}
	for _, test := range []struct {
		rows    *Rows
		failing []int
		want    string
	}{
		{one, nil, "in no row by itself"},
		{one, list(0, 48), "in all 48 rows"},
		{&Rows{Compared: []int{3}, Length: 5}, []int{3}, "in its only row"},
		{one, list(24, 48), "in rows 24-47 alone, up to the end"},
		{one, list(0, 5), "in rows 0-4 alone, from the beginning on"},
		{one, list(7, 8), "in row 7 alone"},
		{one, list(0, 1), "in row 0 alone, the first of its sequence (1 of 1)"},
		{one, list(7, 9, 30), "in rows 7, 8, 30 alone"},
		{one, list(0, 1, 8, 16, 24, 32, 40), "in 6 scattered rows (0, 8, 16, …) alone"},

		{decoded, list(24, 48), "in rows 24-47 alone, all decode (24 of 24)"},
		{decoded, list(30, 48), "in rows 30-47 alone, all decode (18 of 24), up to the end"},
		{decoded, list(31, 32), "in row 31 alone, decode (1 of 24), of step 8 (1 of 1)"},
		{decoded, list(23, 48), "in rows 23-47 alone, up to the end, 1 of 24 prefill, 24 of 24 decode"},
		{decoded, list(0, 24), "in rows 0-23 alone, all prefill (24 of 24)"},

		{chunked, list(0, 1, 8, 16, 24, 32, 40), "in 6 scattered rows (0, 8, 16, …) alone, each the first of its step (6 of 6)"},
		{chunked, list(8, 9, 16), "in rows 8, 16 alone, each the first of its step (2 of 6)"},
		{chunked, list(8, 16), "in rows 8-15 alone, all of step 1 (8 of 8)"},
		{chunked, list(7, 8), "in row 7 alone, the last of its step (1 of 6), of step 0 (1 of 1)"},

		{batch, []int{3, 4, 7, 13, 14}, "in rows 3, 4 of sequences 0, 2; row 2 of sequence 1 alone, all decode (5 of 5)"},
		{batch, []int{5, 6, 7}, "in all rows of sequence 1 alone, all in steps of several requests (3 of 10), 2 of 5 prefill, 1 of 5 decode"},
		{batch, []int{13, 14}, "in rows 3, 4 of sequence 2 alone, all decode (2 of 5), all in steps of one request (2 of 2)"},
		{batch, []int{3, 7}, "in row 3 of sequence 0; row 2 of sequence 1 alone, all decode (2 of 5), all in steps of several requests (2 of 3), all of step 1 (2 of 2)"},
		{batch, []int{10}, "in row 0 of sequence 2 alone, cached (1 of 1)"},
		{plain, []int{5, 6, 7}, "in all rows of sequence 1 alone"},
		{plain, []int{0, 5, 10}, "in row 0 of sequences 0-2 alone, each the first of its sequence (3 of 3)"},
		{plain, []int{4, 7, 13, 14}, "in row 4 of sequence 0; row 2 of sequence 1; rows 3, 4 of sequence 2 alone, up to the end"},
	} {
		assert.Equal(t, test.want, test.rows.Describe(test.failing))
	}
}
