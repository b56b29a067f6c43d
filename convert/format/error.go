package format

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"dsmoe/text"
)

// Error is the cause, and the position, for which a file cannot be read as its format.
// Its text is one line, with every untrusted part quoted and clipped.
type Error struct {
	File   string // the path as it was given
	Tensor string // the tensor at fault; empty when it is the whole file
	Offset int64  // the byte of the file at or before which the fault lies; 0 when it has no place
	Cause  string // what is wrong
	Hint   string // what the user can do about it; not part of Error's text

	err error // of the system, if it was the system that refused
}

// Error returns "file: tensor: byte: cause", without the parts that are not known.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(text.Quote(e.File))
	if e.Tensor != "" {
		b.WriteString(": tensor " + text.Quote(e.Tensor))
	}
	if e.Offset > 0 {
		fmt.Fprintf(&b, ": byte %d", e.Offset)
	}
	b.WriteString(": " + e.Cause)
	return b.String()
}

// Unwrap returns the system's error, such as fs.ErrNotExist; it may be nil.
func (e *Error) Unwrap() error { return e.err }

// SystemError is an Error with an error of the system as its cause; what names the action
// and may be empty.
func SystemError(file, what string, err error) error {
	cause := err
	var perr *fs.PathError
	if errors.As(err, &perr) {
		cause = perr.Err // the path is known
	}
	if what != "" {
		what += ": "
	}
	return &Error{File: file, Cause: what + cause.Error(), err: err}
}
