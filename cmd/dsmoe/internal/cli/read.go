package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"

	"dsmoe/text"
)

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
			errs = append(errs, Named(path, err))
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
