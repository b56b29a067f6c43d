package text

// Text from files and from the command line is foreign: it may hold line breaks and escape
// sequences for terminals, and it may have any length.

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxQuoted is the most bytes of foreign text that Quote prints.
const maxQuoted = 200

// Quote prepares a foreign word, such as a name or a path, for an error or a terminal, as Word
// does. It cuts a word of more than 200 bytes and adds the full length: "… (1234 bytes)".
func Quote(s string) string {
	if len(s) > maxQuoted {
		return fmt.Sprintf("%s… (%d bytes)", Word(cut(s, maxQuoted)), len(s))
	}
	return Word(s)
}

// Word returns a foreign word in full, for complete listings. Printable text without spaces and quotation marks is
// unchanged. Of other text a path with backslashes is put in apostrophes, in which they stay single; the rest, and the
// empty word, becomes a string literal of Go.
func Word(s string) string {
	switch {
	case s == "" || !Printable(s):
	case !strings.ContainsAny(s, " \"'`"):
		return s
	case strings.Contains(s, `\`) && !strings.Contains(s, "'"):
		return "'" + s + "'"
	}
	return strconv.Quote(s)
}

// Literal returns s as a string literal of Go, always in quotation marks, such as a value of a
// JSON document. It cuts s after n bytes and adds "…".
func Literal(s string, n int) string {
	head := cut(s, n)
	if len(head) < len(s) {
		return strconv.Quote(head) + "…"
	}
	return strconv.Quote(s)
}

// Line returns a foreign sentence on one line: unprintable characters are escaped as in a string
// literal of Go, all others, spaces and quotation marks included, are unchanged.
func Line(s string) string {
	if Printable(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		_, size := utf8.DecodeRuneInString(s)
		if Printable(s[:size]) {
			b.WriteString(s[:size])
		} else {
			q := strconv.Quote(s[:size])
			b.WriteString(q[1 : len(q)-1])
		}
		s = s[size:]
	}
	return b.String()
}

// Clip returns s if it has at most n bytes, otherwise cut(s, n) and "…".
func Clip(s string, n int) string {
	if head := cut(s, n); len(head) < len(s) {
		return head + "…"
	}
	return s
}

// Printable reports whether s is valid UTF-8 and holds only runes that strconv.IsPrint accepts:
// letters, marks, numbers, punctuation, symbols and the ASCII space.
func Printable(s string) bool {
	for i, r := range s {
		if !strconv.IsPrint(r) || r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)) {
			return false
		}
	}
	return true
}

// cut returns the first n bytes of s, or fewer to keep the last rune whole.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
