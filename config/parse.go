package config

import (
	"bytes"
	"io"
	"maps"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/text"
)

// MaxSize is the largest config.json that Parse reads, in bytes.
const MaxSize = 16 << 20

// Parse reads a config.json of at most MaxSize bytes. The JSON is strict: exact
// keys, no key twice in any object, at most 65536 keys in one, at most 64 levels,
// valid UTF-8, nothing after the object. Keys that the family does not have are kept for JSON and ignored.
// What is wrong with the document or its fields is returned as one *Error; an
// error of r is returned as it is.
func Parse(r io.Reader) (*Config, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxSize+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxSize {
		return nil, documentError("larger than %s", text.Bytes(MaxSize))
	}
	doc, err := readDocument(data)
	if err != nil {
		return nil, err
	}
	return decode(doc)
}

// language returns a copy of the language model's document: c's own, or the wrapper's object of it.
func (c *Config) language() document {
	if c.wrapper == nil {
		return slices.Clone(c.doc)
	}
	doc, _ := c.wrapper.inner(c.doc) // it was read before
	return doc
}

// Override returns a copy in which the given config.json keys have the given JSON
// values, parsed and validated anew. The keys are the language model's: see Within. A key that the
// document has keeps its place; others are added at the end, sorted. Golden packs name such keys
// in config_overrides. Problems are returned as one *Error.
func (c *Config) Override(fields map[string]jsontext.Value) (*Config, error) {
	doc := c.language()
	var problems []Problem
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		m, err := newMember(key, fields[key])
		if err != nil {
			problems = append(problems, Problem{Field: quote(key), Cause: err.Error()})
			continue
		}
		doc = doc.with(m)
	}
	if problems != nil {
		return nil, &Error{Problems: problems}
	}
	if c.wrapper != nil {
		values := doc.values()
		doc = slices.Clone(c.doc).with(member{key: c.wrapper.key, value: doc.JSON()})
		for i, m := range doc {
			if _, changed := fields[m.key]; changed && c.wrapper.says(m.key) {
				doc[i].value = values[m.key]
			}
		}
	}
	return Parse(bytes.NewReader(doc.JSON()))
}
