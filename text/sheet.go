package text

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Form is a printed form of a Sheet.
type Form string

// AsTable and Markdown are for readers: numbers are rounded and have units. TSV and CSV are for
// programs: numbers are exact, and every line has the same fields.
const (
	AsTable  Form = "table" // aligned columns
	TSV      Form = "tsv"   // tabs between fields
	CSV      Form = "csv"   // RFC 4180, lines that end in LF
	Markdown Form = "md"    // a table of GitHub's Markdown
)

// Screen is a writer whose lines have room for Columns runes; 0 is any number. A Sheet, or a Table by WriteFitting,
// leaves out its last columns if it is wider.
type Screen struct {
	io.Writer
	Columns int
}

// Sheet is a table with named columns.
type Sheet struct {
	columns []Column
	rows    [][]Cell
}

// Column is a column of a Sheet.
type Column struct {
	Name  string // one word in lower case, in the first line
	Right bool   // aligned to the right, as for numbers
}

// Cell is a value in a Sheet, for readers and for programs.
type Cell struct{ Shown, Exact string }

// NewSheet returns a sheet with columns of these names: "name" is aligned to the left, ">name" to
// the right.
func NewSheet(names ...string) *Sheet {
	s := &Sheet{}
	for _, name := range names {
		name, right := strings.CutPrefix(name, ">")
		s.columns = append(s.columns, Column{name, right})
	}
	return s
}

// Add appends a row, which has a cell for each column.
func (s *Sheet) Add(cells ...Cell) {
	if len(cells) != len(s.columns) {
		panic("text: Sheet.Add: cells do not match the columns")
	}
	s.rows = append(s.rows, cells)
}

// Row appends a row of values: whole numbers, reals, trusted text, cells, and lists of cells, each
// cell a column.
func (s *Sheet) Row(values ...any) {
	var cells []Cell
	for _, v := range values {
		switch v := v.(type) {
		case int:
			cells = append(cells, Whole(v))
		case int64:
			cells = append(cells, Whole(v))
		case float64:
			cells = append(cells, Real(&v))
		case *float64:
			cells = append(cells, Real(v))
		case string:
			cells = append(cells, Plain(v))
		case Cell:
			cells = append(cells, v)
		case []Cell:
			cells = append(cells, v...)
		case fmt.Stringer:
			cells = append(cells, Plain(v.String()))
		default:
			panic(fmt.Sprintf("text: Sheet.Row: no cell for a %T", v))
		}
	}
	s.Add(cells...)
}

// Columns returns the columns.
func (s *Sheet) Columns() []Column { return s.columns }

// Rows returns the rows, each of which has a cell for each column.
func (s *Sheet) Rows() [][]Cell { return s.rows }

// Plain is a cell of trusted text.
func Plain(s string) Cell { return Cell{s, s} }

// Foreign is a cell of foreign text, such as a name.
func Foreign(s string) Cell { return Cell{Word(s), Line(s)} }

// Whole is a cell of a whole number.
func Whole[T ~int | ~int64](n T) Cell { return Cell{Grouped(n), strconv.FormatInt(int64(n), 10)} }

// Size is a cell of a number of bytes.
func Size(n int64) Cell { return Cell{Bytes(n), strconv.FormatInt(n, 10)} }

// Share is a cell of part / whole, in per cent for readers.
func Share(part, whole int64) Cell {
	if whole == 0 {
		return Cell{"-", ""}
	}
	return Cell{Percent(part, whole), strconv.FormatFloat(float64(part)/float64(whole), 'g', -1, 64)}
}

// Real is a cell of a number: four digits for readers, the shortest text that reads as the same
// float64 for programs. A missing number, nil, is "-" for readers and "" for programs.
func Real(v *float64) Cell {
	if v == nil {
		return Cell{"-", ""}
	}
	return Cell{Figure("%.4g", *v), strconv.FormatFloat(*v, 'g', -1, 64)}
}

// WriteAs writes the names of the columns and the rows in a form.
func (s *Sheet) WriteAs(w io.Writer, f Form) error {
	lines := [][]string{s.names()}
	for _, row := range s.rows {
		var fields []string
		for _, c := range row {
			if f == TSV || f == CSV {
				fields = append(fields, c.Exact)
			} else {
				fields = append(fields, c.Shown)
			}
		}
		lines = append(lines, fields)
	}
	var b strings.Builder
	switch f {
	case TSV:
		for _, line := range lines {
			b.WriteString(strings.Join(line, "\t") + "\n")
		}
	case CSV:
		return csv.NewWriter(w).WriteAll(lines)
	case Markdown:
		for i, line := range lines {
			for _, field := range line {
				b.WriteString("| " + strings.ReplaceAll(field, "|", `\|`) + " ")
			}
			b.WriteString("|\n")
			if i == 0 {
				b.WriteString(s.align("|---", "|---:") + "|\n")
			}
		}
	default:
		t := Table{Align: s.align("l", "r")}
		for i, name := range lines[0] {
			lines[0][i] = strings.ToUpper(name)
		}
		for _, line := range lines {
			t.Add(line...)
		}
		return t.WriteFitting(w, s.names())
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// names returns the names of the columns.
func (s *Sheet) names() (names []string) {
	for _, c := range s.columns {
		names = append(names, c.Name)
	}
	return names
}

// align returns right for each column aligned to the right, and left for the others.
func (s *Sheet) align(left, right string) (aligned string) {
	for _, c := range s.columns {
		if c.Right {
			aligned += right
		} else {
			aligned += left
		}
	}
	return aligned
}
