package checkpoint

import (
	"errors"
	"fmt"
	"strings"

	"dsmoe/config"
	"dsmoe/convert/format"
	"dsmoe/text"
)

// Problem is one thing that is wrong with a checkpoint, and where.
type Problem struct {
	File   string `json:"file,omitempty"`   // relative to the checkpoint's directory; empty for the directory
	Tensor string `json:"tensor,omitempty"` // empty when it is about the whole file
	Cause  string `json:"cause"`            // what is wrong
	Hint   string `json:"hint,omitempty"`   // a remedy for the user
}

// Place returns "file: tensor name", without the parts that are not known.
func (p Problem) Place() string {
	var parts []string
	if p.File != "" {
		parts = append(parts, text.Quote(p.File))
	}
	if p.Tensor != "" {
		parts = append(parts, "tensor "+text.Quote(p.Tensor))
	}
	return strings.Join(parts, ": ")
}

// String returns "file: tensor name: cause" on one line.
func (p Problem) String() string {
	if place := p.Place(); place != "" {
		return place + ": " + p.Cause
	}
	return p.Cause
}

// Error holds everything that is wrong with one checkpoint, files in reading order.
type Error struct {
	Path     string    // as it was given
	Problems []Problem // at least one
}

// maxListed is the number of problems that an error spells out.
const maxListed = 20

// Error returns one line that spells out at most 20 problems:
//
//	path: config.json: missing
//	path: 2 problems: config.json: missing; model.safetensors: file is empty
func (e *Error) Error() string {
	all := text.Some(e.Problems, maxListed, "; ")
	if len(e.Problems) > 1 {
		all = fmt.Sprintf("%d problems: %s", len(e.Problems), all)
	}
	return text.Quote(e.Path) + ": " + all
}

// Refusal is the error for one problem with all of path.
func Refusal(path, cause, hint string) *Error {
	return &Error{Path: path, Problems: []Problem{{Cause: cause, Hint: hint}}}
}

// ProblemsOf turns an error about one file into problems.
func ProblemsOf(file string, err error) []Problem {
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		var problems []Problem
		for _, err := range several.Unwrap() {
			problems = append(problems, ProblemsOf(file, err)...)
		}
		return problems
	}
	var bad *format.Error
	if errors.As(err, &bad) {
		cause := bad.Cause
		if bad.Offset > 0 {
			cause = fmt.Sprintf("byte %d: %s", bad.Offset, cause)
		}
		return []Problem{{File: file, Tensor: bad.Tensor, Cause: cause, Hint: bad.Hint}}
	}
	var fields *config.Error
	if errors.As(err, &fields) {
		problems := make([]Problem, len(fields.Problems))
		for i, p := range fields.Problems {
			problems[i] = Problem{File: file, Cause: p.String()}
		}
		return problems
	}
	return []Problem{{File: file, Cause: err.Error()}}
}
