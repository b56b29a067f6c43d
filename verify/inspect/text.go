package inspect

// How reports look as text: tables with aligned columns, grouped digits, sizes in
// binary units. Names come from files and are quoted where they are not plain.

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// table is rows of cells. Columns are padded to the widest cell; those that align
// marks with 'r' to the right, others to the left.
type table struct {
	align  string
	indent string
	rows   [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) widths() []int {
	widths := make([]int, len(t.align))
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	return widths
}

func (t *table) write(w io.Writer) error {
	widths := t.widths()
	for _, row := range t.rows {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if t.align[i] == 'r' {
				cell, pad = pad+cell, ""
			}
			line.WriteString(cell + pad + "  ")
		}
		if _, err := fmt.Fprintln(w, t.indent+strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

// grouped returns 16375728128 as "16,375,728,128".
func grouped[T int | int64](n T) string { return groupDigits(strconv.FormatInt(int64(n), 10)) }

func groupDigits(digits string) string {
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// iec returns bytes in binary units: "512 B", "30.50 GiB".
func iec(bytes int64) string {
	return scaled(float64(bytes), 1024, "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
}

// flop returns a number of floating point operations: "5.24 GFLOP".
func flop[T int | int64 | float64](n T) string {
	return scaled(float64(n), 1000, "FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP")
}

func scaled(v, step float64, units ...string) string {
	i := 0
	for ; v >= step && i < len(units)-1; i++ {
		v /= step
	}
	if i == 0 {
		return fmt.Sprintf("%.0f %s", v, units[0])
	}
	return fmt.Sprintf("%.2f %s", v, units[i])
}

// percent returns part of whole as "17.27 %".
func percent(part, whole int64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f %%", 100*float64(part)/float64(whole))
}

// plural returns "1 shard", "3 shards".
func plural(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return grouped(n) + " " + noun
}

// plain makes text from a file safe to print: quoted unless all of it is printable.
func plain(text string) string {
	odd := func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError || r == '"' }
	if text == "" || strings.ContainsFunc(text, odd) {
		return strconv.Quote(text)
	}
	return text
}
