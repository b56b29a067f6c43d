package router

import (
	"encoding/binary"
	"fmt"
	"slices"

	"dsmoe/inspect/matrix"
	"dsmoe/text"
)

// Table is mlp.gate.tid2eid [vocabulary, experts of a token], by which a layer chooses experts.
type Table struct {
	Tensor  string `json:"tensor"`  // its name
	Tokens  int    `json:"tokens"`  // rows: tokens of the vocabulary
	Chosen  int    `json:"chosen"`  // experts of a token
	Least   int64  `json:"least"`   // tokens of the expert with the fewest
	Most    int64  `json:"most"`    // tokens of the expert with the most
	Repeats int    `json:"repeats"` // tokens that have an expert more than once
	Outside int64  `json:"outside"` // numbers that no expert has
}

// readTable reads the table of a layer that has one, and counts the tokens of each expert.
func (r *router) readTable(x *matrix.Reader) error {
	w := r.tableWeight
	if w == nil {
		return nil
	}
	t := &Table{Tensor: w.Name, Tokens: w.Shape[0], Chosen: w.Shape[1]}
	tokens, row := make([]int64, len(r.Rows)), []uint64{}
	for tile, err := range x.Bytes(x.Reader, w, 0, int64(w.Len())) {
		if err != nil {
			return w.Failed(err)
		}
		for ; len(tile) > 0; tile = tile[8:] {
			if row = append(row, binary.LittleEndian.Uint64(tile)); len(row) < t.Chosen {
				continue
			}
			slices.Sort(row)
			for i, e := range row {
				switch {
				case e >= uint64(len(tokens)):
					t.Outside++
				case i == 0 || e != row[i-1]: // each expert of a token once
					tokens[e]++
				}
			}
			if len(slices.Compact(row)) < t.Chosen {
				t.Repeats++
			}
			row = row[:0]
		}
	}
	for e := range r.Rows {
		r.Rows[e].Tokens = &tokens[e]
	}
	t.Least, t.Most = slices.Min(tokens), slices.Max(tokens)
	r.Table = t
	return nil
}

// String returns "table of 90 tokens: an expert has 32 to 47 of them, 3 tokens repeat an expert".
func (t *Table) String() string {
	return fmt.Sprintf("table of %s: an expert has %s to %s of them, %s repeat an expert", text.Plural(t.Tokens, "token"),
		text.Grouped(t.Least), text.Grouped(t.Most), text.Plural(t.Repeats, "token"))
}
