package safetensors

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// FormatError says why a file cannot be read as the safetensors file it should
// be, and where. Its text is one line, with every untrusted part quoted and clipped.
type FormatError struct {
	File   string // the path as it was given
	Tensor string // the tensor at fault; empty when it is the whole file
	Offset int64  // the byte of the file at or before which the fault lies; 0 when it has no place
	Cause  string // what is wrong
	Hint   string // what the user can do about it; not part of Error

	err error // of the system, if it was the system that refused
}

// Error returns "file: tensor: byte: cause", without the parts that are not known.
func (e *FormatError) Error() string {
	var b strings.Builder
	b.WriteString(Quote(e.File))
	if e.Tensor != "" {
		b.WriteString(": tensor " + Quote(e.Tensor))
	}
	if e.Offset > 0 {
		fmt.Fprintf(&b, ": byte %d", e.Offset)
	}
	b.WriteString(": " + e.Cause)
	return b.String()
}

// Unwrap returns the system's error, such as fs.ErrNotExist, if there is one.
func (e *FormatError) Unwrap() error { return e.err }

// systemError is a FormatError made of an error of the system; what says what
// was being done and may be empty.
func systemError(file, what string, err error) error {
	cause := err
	var perr *fs.PathError
	if errors.As(err, &perr) {
		cause = perr.Err // the path is known
	}
	if what != "" {
		what += ": "
	}
	return &FormatError{File: file, Cause: what + cause.Error(), err: err}
}

// quoteMax is the most bytes of untrusted text that an error prints.
const quoteMax = 200

// Quote prepares untrusted text for an error or a terminal: plain printable text
// stays as it is, anything else is quoted as by %q, and more than 200 bytes are
// clipped.
func Quote(s string) string {
	if len(s) > quoteMax {
		return fmt.Sprintf("%s… (%d bytes)", quoted(clip(s, quoteMax)), len(s))
	}
	return quoted(s)
}

func quoted(s string) string {
	if s == "" || !printable(s) || strings.ContainsAny(s, " \"'`\\") {
		return strconv.Quote(s)
	}
	return s
}

// clip cuts s to at most n bytes, not inside a rune.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

func printable(s string) bool {
	for i, r := range s {
		if r == utf8.RuneError {
			if _, size := utf8.DecodeRuneInString(s[i:]); size == 1 {
				return false
			}
		}
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}
