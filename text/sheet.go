package text

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Form is how a Sheet is printed.
type Form string

// The forms. Table and Markdown are for readers: numbers are rounded and have units. TSV
// and CSV are for programs: numbers are exact, and every line has the same fields.
const (
	AsTable  Form = "table" // aligned columns
	TSV      Form = "tsv"   // tabs between fields
	CSV      Form = "csv"   // RFC 4180, lines that end in LF
	Markdown Form = "md"    // a table of GitHub's Markdown
)

// Sheet is a table with named columns.
type Sheet struct {
	columns []Column
	rows    [][]Cell
}

// Column is a column of a Sheet.
type Column struct {
	Name  string // in the first line: one word of lower case, for programs too
	Right bool   // aligned to the right, as numbers are
}

// Cell is a value in a Sheet, for readers and for programs.
type Cell struct{ Shown, Exact string }

// NewSheet returns a sheet of these columns: "name" is aligned to the left, ">name" to the
// right.
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
		panic("text: Sheet.Add: as many cells as columns are wanted")
	}
	s.rows = append(s.rows, cells)
}

// Row appends a row of values: whole numbers, reals, text of our own, cells, and lists of cells, which stand for as
// many columns.
func (s *Sheet) Row(values ...any) {
	var cells []Cell
	for _, v := range values {
		cells = append(cells, cellsOf(v)...)
	}
	s.Add(cells...)
}

// cellsOf returns the cells of a value.
func cellsOf(v any) []Cell {
	switch v := v.(type) {
	case int:
		return []Cell{Whole(v)}
	case int64:
		return []Cell{Whole(v)}
	case float64:
		return []Cell{Real(&v)}
	case *float64:
		return []Cell{Real(v)}
	case string:
		return []Cell{Plain(v)}
	case Cell:
		return []Cell{v}
	case []Cell:
		return v
	case fmt.Stringer:
		return []Cell{Plain(v.String())}
	}
	panic(fmt.Sprintf("text: Sheet.Row: no cell for a %T", v))
}

// Columns returns the columns.
func (s *Sheet) Columns() []Column { return s.columns }

// Rows returns the rows, each of which has a cell for each column.
func (s *Sheet) Rows() [][]Cell { return s.rows }

// Plain is a cell of text of our own.
func Plain(s string) Cell { return Cell{s, s} }

// Foreign is a cell of text that may hold anything: a name.
func Foreign(s string) Cell { return Cell{Word(s), Line(s)} }

// Whole is a cell of a whole number.
func Whole[T ~int | ~int64](n T) Cell { return Cell{Grouped(n), strconv.FormatInt(int64(n), 10)} }

// Size is a cell of a number of bytes.
func Size(n int64) Cell { return Cell{Bytes(n), strconv.FormatInt(n, 10)} }

// Share is a cell of part / whole: in per cent for readers.
func Share(part, whole int64) Cell {
	if whole == 0 {
		return Cell{"-", ""}
	}
	return Cell{Percent(part, whole), strconv.FormatFloat(float64(part)/float64(whole), 'g', -1, 64)}
}

// Real is a cell of a number: four digits for readers, the shortest text that reads as the
// same float64 for programs. nil is a number that there is none of: "-", and nothing for
// programs.
func Real(v *float64) Cell {
	if v == nil {
		return Cell{"-", ""}
	}
	return Cell{Figure("%.4g", *v), strconv.FormatFloat(*v, 'g', -1, 64)}
}

// WriteAs writes the names of the columns and the rows in a form.
func (s *Sheet) WriteAs(w io.Writer, f Form) error {
	switch f {
	case TSV:
		return s.writeTSV(w)
	case CSV:
		return s.writeCSV(w)
	case Markdown:
		return s.writeMarkdown(w)
	}
	return s.writeTable(w)
}

// names returns the names of the columns.
func (s *Sheet) names() (names []string) {
	for _, c := range s.columns {
		names = append(names, c.Name)
	}
	return names
}

// exact returns a row for programs, shown one for readers.
func exact(row []Cell) (fields []string) {
	for _, c := range row {
		fields = append(fields, c.Exact)
	}
	return fields
}

func shown(row []Cell) (fields []string) {
	for _, c := range row {
		fields = append(fields, c.Shown)
	}
	return fields
}

func (s *Sheet) writeTable(w io.Writer) error {
	t := Table{}
	for _, c := range s.columns {
		if c.Right {
			t.Align += "r"
		} else {
			t.Align += "l"
		}
	}
	t.Add(strings.Fields(strings.ToUpper(strings.Join(s.names(), " ")))...)
	for _, row := range s.rows {
		t.Add(shown(row)...)
	}
	return t.WriteText(w)
}

func (s *Sheet) writeTSV(w io.Writer) error {
	lines := []string{strings.Join(s.names(), "\t")}
	for _, row := range s.rows {
		lines = append(lines, strings.Join(exact(row), "\t"))
	}
	_, err := io.WriteString(w, strings.Join(lines, "\n")+"\n")
	return err
}

func (s *Sheet) writeCSV(w io.Writer) error {
	c := csv.NewWriter(w)
	c.Write(s.names())
	for _, row := range s.rows {
		c.Write(exact(row))
	}
	c.Flush()
	return c.Error()
}

func (s *Sheet) writeMarkdown(w io.Writer) error {
	var b strings.Builder
	line := func(fields []string) {
		for _, f := range fields {
			b.WriteString("| " + strings.ReplaceAll(f, "|", `\|`) + " ")
		}
		b.WriteString("|\n")
	}
	line(s.names())
	for _, c := range s.columns {
		if c.Right {
			b.WriteString("|---:")
		} else {
			b.WriteString("|---")
		}
	}
	b.WriteString("|\n")
	for _, row := range s.rows {
		line(shown(row))
	}
	_, err := io.WriteString(w, b.String())
	return err
}
