// Package text holds the renderers that all reports and errors of the module share: foreign
// text made safe to print (Quote, Word, Literal, Line), counts and sizes (Plural, Grouped,
// Bytes, ExactBytes, Percent), ranges of numbers (Ranges; Spans reads them), globs (CheckGlob), the order of tensor
// names (CompareNames), tables with aligned columns (Table) and with named columns (Sheet: TSV,
// CSV and Markdown too). It knows no models, imports no package of the module and prints nothing.
package text

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// named matches the begin of a line of a report: indentation, or a name and the spaces up to what it names.
var named = regexp.MustCompile(`^(?: +|\S+(?: \S+)* {2,})`)

// Wrap cuts a line at spaces into lines of at most columns runes; 0 is any number. Lines after the first begin below
// what the line's name names. A word that is longer is not cut, and neither is a command line of dsmoe, which is to be
// copied.
func Wrap(line string, columns int) (lines []string) {
	indent := utf8.RuneCountInString(named.FindString(line))
	if columns == 0 || strings.HasPrefix(line[len(named.FindString(line)):], "dsmoe ") {
		return []string{line}
	}
	if indent > columns/2 {
		indent = 2
	}
	for utf8.RuneCountInString(line) > columns {
		runes, at := []rune(line), 0
		for i, r := range runes {
			if r == ' ' && i > indent && (i <= columns || at == 0) {
				at = i
			}
		}
		if at == 0 {
			break
		}
		lines = append(lines, strings.TrimRight(string(runes[:at]), " "))
		line = strings.Repeat(" ", indent) + strings.TrimLeft(string(runes[at:]), " ")
	}
	return append(lines, line)
}
