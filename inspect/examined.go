package inspect

import (
	"io"
	"slices"

	"dsmoe/text"
)

// Examined is what an examination of weights reports beside its numbers.
type Examined struct {
	Findings   []Observation `json:"findings"`    // by causes: see inspect.Cluster
	NotCounted []NotCounted  `json:"not_counted"` // selected weights that have no numbers

	Observed []Observation `json:"-"` // Findings one by one
}

// Conclude sets what was observed, and the findings, which have one cause each.
func (x *Examined) Conclude(found []Observation) { x.Observed, x.Findings = found, Cluster(found) }

// Passes reports whether no finding is as grave as a level.
func (x *Examined) Passes(least Level) bool {
	return !slices.ContainsFunc(x.Findings, func(o Observation) bool { return o.Level.AtLeast(least) })
}

// WriteNotes writes the findings, if there are any.
func (x *Examined) WriteNotes(w io.Writer) error {
	if len(x.Findings) == 0 {
		return nil
	}
	return writeObservations(w, x.Findings)
}

// WriteBelow is WriteSheet, with the findings below it.
func (x *Examined) WriteBelow(w io.Writer, s *text.Sheet, lines []string) error {
	WriteSheet(w, s, lines, x.NotCounted)
	return writeObservations(w, x.Findings)
}

// BrokenFiles are the files that a report on tensors lacks.
type BrokenFiles struct {
	Broken []Finding `json:"broken"` // files that are not in the list, or not as the index has them
}

// Passes reports whether no file is broken.
func (b *BrokenFiles) Passes(Level) bool { return len(b.Broken) == 0 }

// WriteNotes writes the broken files.
func (b *BrokenFiles) WriteNotes(w io.Writer) error { return WriteFindings(w, b.Broken, MaxLines) }
