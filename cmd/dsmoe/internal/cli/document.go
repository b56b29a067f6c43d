package cli

import (
	"fmt"
	"io"
	"reflect"
	"slices"

	"dsmoe/text"
)

// OutputFlag is the name of -o, JSONForm its value that --json stands for.
const (
	OutputFlag = "output"
	JSONForm   = "json"
)

// Documents are the kinds of JSON documents that a command prints.
type Documents []Document

// Document is a kind of JSON document: the name of its schema, and the Go type that it is made of. The number
// in the name counts up when a member loses its name, type or meaning, and stays when a member is added.
// docs/schemas holds the JSON Schema.
type Document struct {
	Schema string
	Of     reflect.Type
}

// DocumentOf returns the kind of the documents that are made of a T.
func DocumentOf[T any](schema string) Document { return Document{schema, reflect.TypeFor[T]()} }

// schemaOf returns the schema of the document that v makes.
func (d Documents) schemaOf(v any) string {
	return d[slices.IndexFunc(d, func(k Document) bool { return k.Of == reflect.TypeOf(v) })].Schema
}

// write writes v as a JSON document that begins with its schema.
func (d Documents) write(w io.Writer, v any) error {
	w = &headed{w, fmt.Sprintf("{\n  \"schema\": %q,", d.schemaOf(v))}
	if large, ok := v.(interface{ WriteJSON(io.Writer) error }); ok {
		return large.WriteJSON(w)
	}
	return text.WriteJSON(w, v)
}

// headed puts head in the place of the first byte that is written.
type headed struct {
	w    io.Writer
	head string
}

// Write writes p, which is not empty the first time.
func (h *headed) Write(p []byte) (int, error) {
	if h.head == "" {
		return h.w.Write(p)
	}
	_, err := io.WriteString(h.w, h.head)
	if h.head = ""; err != nil {
		return 0, err
	}
	n, err := h.w.Write(p[1:])
	return n + 1, err
}
