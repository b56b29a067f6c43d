// Package problem holds what errors and findings of the module consist of. A Problem is one thing that is wrong:
// its place, cause and hint. An Error is all that is wrong with one file, checkpoint or pack. The package knows no
// formats and reads nothing.
package problem

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"dsmoe/text"
)

// Problem is one thing that is wrong, and where. Every untrusted part of its texts is quoted and clipped.
type Problem struct {
	File   string `json:"file,omitempty"`   // relative to the checkpoint; empty for all of it
	Tensor string `json:"tensor,omitempty"` // empty if it is about no tensor
	Field  string `json:"-"`                // key of a document, such as rope_scaling.factor, or part of a pack, such as a stage
	Cause  string `json:"cause"`            // what is wrong
	Hint   string `json:"hint,omitempty"`   // where to look, or what to do
	Err    error  `json:"-"`                // the error behind the cause, such as fs.ErrNotExist; may be nil
}

// Place returns "file: tensor name: field", without the parts that are empty.
func (p Problem) Place() string {
	var parts []string
	if p.File != "" {
		parts = append(parts, text.Quote(p.File))
	}
	if p.Tensor != "" {
		parts = append(parts, "tensor "+text.Quote(p.Tensor))
	}
	if p.Field != "" {
		parts = append(parts, p.Field)
	}
	return strings.Join(parts, ": ")
}

// String returns "file: tensor name: field: cause" on one line.
func (p Problem) String() string {
	if place := p.Place(); place != "" {
		return place + ": " + p.Cause
	}
	return p.Cause
}

// Error holds everything that is wrong with one file, checkpoint or pack.
type Error struct {
	Path     string    // as it was given; empty if the caller adds it
	Problems []Problem // at least one, in reading order
}

// Error returns one line that spells out at most 20 problems:
//
//	path: config.json: missing
//	path: 2 problems: config.json: missing; model.safetensors: file is empty
func (e *Error) Error() string {
	const most = 20
	all := text.Some(e.Problems, most, "; ")
	if len(e.Problems) > 1 {
		all = fmt.Sprintf("%d problems: %s", len(e.Problems), all)
	}
	if e.Path == "" && e.Unwrap() == nil { // the system refused no path
		return all
	}
	return text.Quote(e.Path) + ": " + all
}

// Unwrap returns the errors behind the causes.
func (e *Error) Unwrap() (behind []error) {
	for _, p := range e.Problems {
		if p.Err != nil {
			behind = append(behind, p.Err)
		}
	}
	return behind
}

// New returns the error for one problem with all of path.
func New(path, cause, hint string) *Error { return &Error{path, []Problem{{Cause: cause, Hint: hint}}} }

// In returns the error for the problems in path, an *Error; nil without a problem.
func In(path string, problems ...Problem) error {
	if len(problems) == 0 {
		return nil
	}
	return &Error{path, problems}
}

// System returns the error for a failed action on path: err is the system's, what names the action and may be empty.
func System(path, what string, err error) *Error {
	cause, hint := err, ""
	var perr *fs.PathError
	if errors.As(err, &perr) {
		cause = perr.Err // the path is known
		if strings.Contains(path, "://") {
			hint = "a path on the disk is expected here, not a URL"
		}
	}
	if what != "" {
		what += ": "
	}
	return &Error{path, []Problem{{Cause: what + cause.Error(), Hint: hint, Err: err}}}
}

// Byte returns the cause of a problem at or before a byte of a file; byte 0 is no place.
func Byte(at int64, cause string) string {
	if at == 0 {
		return cause
	}
	return fmt.Sprintf("byte %d: %s", at, cause)
}

// Of returns the problems of an error about one file of a checkpoint, or of several such errors joined. A field becomes
// part of the cause.
func Of(file string, err error) (problems []Problem) {
	switch e := err.(type) {
	case nil:
		return nil
	case *Error:
		for _, p := range e.Problems {
			place := Problem{Field: p.Field, Cause: p.Cause}
			p.File, p.Field, p.Cause = cmp.Or(p.File, file), "", place.String()
			problems = append(problems, p)
		}
		return problems
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			problems = append(problems, Of(file, err)...)
		}
		return problems
	}
	var known *Error
	if errors.As(err, &known) {
		return Of(file, known)
	}
	return []Problem{{File: file, Cause: err.Error(), Err: err}}
}
