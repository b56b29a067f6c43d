package config

import (
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/text"
	"dsmoe/text/problem"
)

// maxQuoted is the most bytes of a foreign text in a problem.
const maxQuoted = 40

// documentError is a *problem.Error about the document as a whole.
func documentError(format string, args ...any) error {
	return problem.New("", fmt.Sprintf(format, args...), "")
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
