package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"

	"dsmoe/text"
)

// outputFlag is the name of -o, jsonForm its value that --json stands for.
const (
	outputFlag = "output"
	jsonForm   = "json"
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

// fault is an error in parts, as --json shows it.
type fault struct {
	Thing      string `json:"thing"`      // what the error is about: a path as it was given, or a command
	Coordinate string `json:"coordinate"` // the place in it, "file: tensor name"; empty if it is the whole
	Cause      string `json:"cause"`      // what is wrong
	Hint       string `json:"hint"`       // what the user can do about it; empty if nothing is known
}

// ErrorDocument is the document that takes the place of a report.
type ErrorDocument struct {
	Error struct {
		fault
		Problems []fault `json:"problems,omitempty"` // each of them, if there are several
	} `json:"error"`
}

// ErrorDocuments is the document of an error, of every command.
var ErrorDocuments = Documents{DocumentOf[ErrorDocument]("dsmoe.error/1")}

// joinParts joins the parts of a coordinate that are known.
func joinParts(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ": ")
}

// ReadReports reads JSON documents of the type T, as this dsmoe writes them. The error names every file that is
// not such a document, or that check refuses.
func ReadReports[T any](d Documents, paths []string, check func(*T) error) ([]*T, error) {
	var all []*T
	var errs []error
	for _, path := range paths {
		r := new(T)
		err := d.read(path, r)
		if err == nil {
			err = check(r)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", text.Quote(path), err))
		}
		all = append(all, r)
	}
	return all, errors.Join(errs...)
}

// read reads a JSON document into r. It must be what is written of r again, beside white space and order.
func (d Documents) read(path string, r any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return errors.Unwrap(err)
	}
	var head struct {
		Schema string `json:"schema"`
		Error  fault  `json:"error"`
	}
	if err := json.Unmarshal(data, new(jsontext.Value)); err != nil {
		return fmt.Errorf("no whole JSON document: %w", err)
	}
	_ = json.Unmarshal(data, &head) // without a schema it is no report
	switch schema := d.schemaOf(r); head.Schema {
	case schema:
	case ErrorDocuments[0].Schema:
		return fmt.Errorf("of a run that ended with an error: %s", joinParts(head.Error.Thing, head.Error.Coordinate,
			head.Error.Cause))
	default:
		return fmt.Errorf("schema %q, where %s is expected: the --json of a run", head.Schema, schema)
	}
	var again bytes.Buffer
	if err := json.Unmarshal(data, r, jsonv1.DefaultOptionsV1()); err != nil {
		return fmt.Errorf("not of schema %s: %w", head.Schema, err)
	}
	if err := d.write(&again, r); err != nil {
		return err
	}
	a, b := jsontext.Value(data), jsontext.Value(again.Bytes())
	if err := errors.Join(a.Canonicalize(), b.Canonicalize()); err != nil {
		return err
	}
	if !isPrintable(a) {
		return errors.New("a string has a control character, which no report prints")
	}
	if !bytes.Equal(a, b) {
		return errors.New("members are missing or unknown: it was changed, or made by another dsmoe")
	}
	return nil
}

// isPrintable reports whether no string of a JSON document has a control character, such as one that begins a line.
func isPrintable(document []byte) bool {
	d := jsontext.NewDecoder(bytes.NewReader(document))
	for {
		token, err := d.ReadToken()
		if err != nil {
			return err == io.EOF
		}
		if token.Kind() == '"' && !text.Printable(token.String()) {
			return false
		}
	}
}
