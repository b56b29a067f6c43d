package text

// Text from files and from the command line is foreign: it may hold line breaks and
// escape sequences that a terminal would act on, and it may be of any length.

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxQuoted is the number of bytes of foreign text that Quote prints.
const maxQuoted = 200

// Quote prepares a foreign word, such as a name or a path, for an error or a
// terminal, as Word does. Of more than 200 bytes the first are quoted, and the number of
// all is added: "… (1234 bytes)".
func Quote(s string) string {
	if len(s) > maxQuoted {
		return fmt.Sprintf("%s… (%d bytes)", Word(cut(s, maxQuoted)), len(s))
	}
	return Word(s)
}

// Word is a foreign word in full, for a listing that leaves nothing out. Printable text
// without spaces, quotation marks and backslashes stays as it is; any other, the empty
// one included, becomes a string literal of Go.
func Word(s string) string {
	if q := strconv.Quote(s); s == "" || q != `"`+s+`"` || strings.ContainsAny(s, " '`") {
		return q
	}
	return s
}

// Literal returns s as a string literal of Go, in quotation marks even if it is plain,
// as a value of a JSON document is shown. Of more than n bytes the first are quoted,
// and "…" follows.
func Literal(s string, n int) string {
	head := cut(s, n)
	if len(head) < len(s) {
		return strconv.Quote(head) + "…"
	}
	return strconv.Quote(s)
}

// Line returns a foreign sentence on one line: what is not printable is escaped as in
// a string literal of Go, the rest, spaces and quotation marks included, stays as it
// is.
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

// Clip returns s if it has at most n bytes; otherwise its first bytes, n or as many
// fewer as keep the last rune whole, and "…".
func Clip(s string, n int) string {
	if head := cut(s, n); len(head) < len(s) {
		return head + "…"
	}
	return s
}

// Printable reports whether s is valid UTF-8 and holds only what strconv.IsPrint
// accepts: letters, marks, numbers, punctuation, symbols and the ASCII space.
func Printable(s string) bool {
	for i, r := range s {
		if !strconv.IsPrint(r) || r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)) {
			return false
		}
	}
	return true
}

// cut returns the first bytes of s: n, or as many fewer as keep the last rune whole.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
