package text

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Table is rows of cells in aligned columns, two spaces apart.
type Table struct {
	Align  string // a byte per column: 'r' aligns the column to the right, other bytes to the left
	Indent string // start of every line

	rows [][]string
}

// Add appends a row of at most len(Align) cells. Cells are printed unchanged: quote foreign
// text first.
func (t *Table) Add(cells ...string) {
	if len(cells) > len(t.Align) {
		panic("text: Table.Add: more cells than columns")
	}
	t.rows = append(t.rows, cells)
}

// WriteText writes a line per row. A column is as wide as its widest cell, in runes; no
// line ends in a space.
func (t *Table) WriteText(w io.Writer) error {
	widths := t.widths()
	var b strings.Builder
	for _, row := range t.rows {
		line := t.Indent
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if t.Align[i] == 'r' {
				cell, pad = pad+cell, ""
			}
			line += cell + pad + "  "
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteFitting writes the table without the last columns that a Screen w has no room for. A line below names these;
// names are the columns' names.
func (t *Table) WriteFitting(w io.Writer, names []string) error {
	screen, _ := w.(Screen)
	n, end := len(t.Align), utf8.RuneCountInString(t.Indent)
	for i, width := range t.widths() {
		if end += width; screen.Columns > 0 && i > 0 && end > screen.Columns {
			n = i
			break
		}
		end += len("  ")
	}
	cut := Table{Align: t.Align[:n], Indent: t.Indent}
	for _, row := range t.rows {
		cut.rows = append(cut.rows, row[:min(n, len(row))])
	}
	if err := cut.WriteText(w); err != nil || n == len(t.Align) {
		return err
	}
	_, err := fmt.Fprintf(w, "%s without room: %s; --wide shows all\n", Plural(len(t.Align)-n, "column"),
		strings.Join(names[n:], ", "))
	return err
}

// widths returns the width of each column in runes.
func (t *Table) widths() []int {
	widths := make([]int, len(t.Align))
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	return widths
}
