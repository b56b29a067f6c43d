package config

// The document is a JSON object as it was written: encoding/json would match keys
// in any case, take the last of two equal keys and forget their order.

import (
	"bytes"
	"errors"
	"io"

	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/text"
)

const (
	maxDepth = 64      // levels of a document, the outermost object included
	maxKeys  = 1 << 16 // keys of one object: bounds the memory of the search for duplicates
)

const jsonSpace = " \t\r\n"

// document is the members of an object in the order of the text.
type document []member

// member is a key with its value. raw and value are the bytes of the text.
type member struct {
	key   string
	raw   jsontext.Value
	value jsontext.Value
}

// put replaces the value of m's key, or appends m. It changes doc.
func (doc document) put(m member) document {
	for i := range doc {
		if doc[i].key == m.key {
			doc[i].value = m.value
			return doc
		}
	}
	return append(doc, m)
}

// values returns the members by key.
func (doc document) values() map[string]jsontext.Value {
	values := make(map[string]jsontext.Value, len(doc))
	for _, m := range doc {
		values[m.key] = m.value
	}
	return values
}

// JSON writes the object with one member a line.
func (doc document) JSON() []byte {
	out := []byte("{")
	for i, m := range doc {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(out, "\n  "...), m.raw...)
		out = append(append(out, ": "...), m.value...)
	}
	return append(out, "\n}\n"...)
}

// readDocument reads data, which must hold one JSON object and nothing else. The
// document aliases data. The error is a *problem.Error.
func readDocument(data []byte) (document, error) {
	s := scanner{data: data, decoder: jsontext.NewDecoder(bytes.NewBuffer(data))}
	if kind := s.decoder.PeekKind(); kind != '{' && kind != jsontext.KindInvalid {
		return nil, documentError("the document is %s, not an object", kindName(kind))
	}
	if err := s.token(); err != nil {
		return nil, err
	}
	var doc document
	for s.decoder.PeekKind() != '}' {
		raw, err := s.decoder.ReadValue()
		if err != nil {
			return nil, s.syntaxError(err)
		}
		key, level, start := unquote(raw), s.decoder.StackDepth(), s.decoder.InputOffset()
		for more := true; more; more = s.decoder.StackDepth() > level {
			if err := s.token(); err != nil {
				return nil, err
			}
		}
		value := bytes.TrimLeft(data[start:s.decoder.InputOffset()], jsonSpace+":")
		doc = append(doc, member{key, data[start-int64(len(raw)) : start], value})
	}
	if err := s.token(); err != nil {
		return nil, err
	}
	at := s.decoder.InputOffset()
	if rest := bytes.TrimLeft(data[at:], jsonSpace); len(rest) > 0 {
		return nil, documentError("%s follows the document at byte %d", quote(string(rest)), len(data)-len(rest))
	}
	return doc, nil
}

// scanner reads one document, keeping the place of every member in the text.
type scanner struct {
	data    []byte
	decoder *jsontext.Decoder
}

// token reads one token and checks the depth and the object it leads to.
func (s *scanner) token() error {
	if _, err := s.decoder.ReadToken(); err != nil {
		return s.syntaxError(err)
	}
	depth, at := s.decoder.StackDepth(), s.decoder.InputOffset()
	if depth > maxDepth {
		return documentError("nested deeper than %d levels at byte %d", maxDepth, at)
	}
	if kind, n := s.decoder.StackIndex(depth); kind == '{' && n > 2*maxKeys { // names and values
		return documentError("an object has more than %d keys at byte %d", maxKeys, at)
	}
	return nil
}

// syntaxError describes a syntax error and its position in one line.
func (s *scanner) syntaxError(err error) error {
	var syntactic *jsontext.SyntacticError
	switch {
	case errors.Is(err, io.EOF):
		return documentError("the document is empty")
	case !errors.As(err, &syntactic):
		return documentError("%s", clip(err.Error()))
	case errors.Is(err, jsontext.ErrDuplicateName):
		return documentError("key %s appears twice at byte %d", quote(syntactic.JSONPointer.LastToken()),
			syntactic.ByteOffset)
	}
	return documentError("byte %d: %s", syntactic.ByteOffset, clip(text.SyntaxCause(syntactic)))
}
