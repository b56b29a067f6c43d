package model

// Pooling says how a compressor makes entries of tokens, one of each full window of Rate tokens. The
// tokens behind the last full window have no entry.
//
// With Overlap a token has two series of Width columns: the second is for the entry of its own
// window, the first for the entry of the next window.
type Pooling struct {
	Rate    int  // tokens of a window
	Width   int  // columns of an entry
	Overlap bool // entries see the window before, too
}

// Slot is a place whose value takes part in an entry.
type Slot struct {
	Token  int // position in the sequence
	Column int // first column of the series
	Row    int // row of the position bias: the token's position in its window
}

// Entries returns the number of entries of seq tokens.
func (g *Pooling) Entries(seq int) int { return seq / g.Rate }

// Slots returns the slots of entry n, in the reference's order.
func (g *Pooling) Slots(n int) (slots []Slot) {
	column := 0
	if g.Overlap {
		column = g.Width
		for i := range min(n, 1) * g.Rate {
			slots = append(slots, Slot{Token: (n-1)*g.Rate + i, Row: i})
		}
	}
	for i := range g.Rate {
		slots = append(slots, Slot{Token: n*g.Rate + i, Column: column, Row: i})
	}
	return slots
}
