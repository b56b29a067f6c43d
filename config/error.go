package config

import (
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/text"
)

const (
	maxListed = 20 // problems that Error spells out
	maxQuoted = 40 // bytes of a foreign text in a problem
)

// Error holds all problems of one config.json, in the order of the family's table of fields.
// The caller adds the file's name.
type Error struct {
	Problems []problem // at least one, in the order of the family's fields
}

// problem is one broken rule.
type problem struct {
	Field string // the JSON key, such as hidden_size or rope_scaling.factor; "" is the document
	Cause string // the value and the rule it breaks
}

// Error returns one line, whatever the document held:
//
//	hidden_size: 0 is not in 1..16777216
//	2 problems: hidden_size: …; hidden_act: …
//
// It spells out at most 20 problems.
func (e *Error) Error() string {
	message := text.Some(e.Problems, maxListed, "; ")
	if len(e.Problems) == 1 {
		return message
	}
	return fmt.Sprintf("%d problems: %s", len(e.Problems), message)
}

// String returns "field: cause".
func (p problem) String() string {
	if p.Field == "" {
		return p.Cause
	}
	return p.Field + ": " + p.Cause
}

// documentError is an *Error about the document as a whole.
func documentError(format string, args ...any) error {
	return &Error{Problems: []problem{{Cause: fmt.Sprintf(format, args...)}}}
}

// quote shows foreign text, such as a key or a string of the document, as a string
// literal of limited length.
func quote(s string) string { return text.Literal(s, maxQuoted) }

// clip keeps a message of the JSON library short and on one line.
func clip(message string) string { return text.Line(text.Clip(message, 4*maxQuoted)) }

// show renders a JSON value for a problem.
func show(v jsontext.Value) string {
	switch v.Kind() {
	case '"':
		return quote(unquote(v))
	case '0':
		return text.Clip(string(v), maxQuoted)
	}
	return kindName(v.Kind())
}

// kindName names a kind of JSON value.
func kindName(k jsontext.Kind) string {
	switch k {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case '0':
		return "a number"
	}
	return k.String()
}

// unquote returns the text of a JSON string that was read, and so is valid.
func unquote(v jsontext.Value) string {
	text, _ := jsontext.AppendUnquote(nil, v)
	return string(text)
}
