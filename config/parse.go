package config

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/text"
	"dsmoe/text/problem"
)

// MaxSize is the largest config.json that Parse reads, in bytes.
const MaxSize = 16 << 20

// Parse reads a config.json of at most MaxSize bytes. The JSON is strict: exact
// keys, no key twice in any object, at most 65536 keys in one, at most 64 levels,
// valid UTF-8, nothing after the object. Keys that the family does not have are kept for JSON and ignored.
// What is wrong with the document or its fields is returned as one *problem.Error; an
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

// beside are keys that may stand beside the language model's configuration in place of in it.
var beside = []string{"torch_dtype", "dtype", quantization}

const quantization = "quantization_config"

// decode reads the language model's configuration by the table of its family.
func decode(doc document) (c *Config, err error) {
	if doc, err = doc.named(); err != nil {
		return nil, err
	}
	w := wrapperOf(doc.values())
	inner, err := w.inner(doc)
	if err != nil {
		return nil, err
	}
	values := inner.values()
	for _, m := range doc {
		_, said := values[m.key]
		switch f := w.inside(); {
		case !said && slices.Contains(beside, m.key):
			inner = append(inner, m)
		case m.key == "dtype" && f != nil && !f.within: // save_pretrained writes another one inside
			inner = inner.put(m)
		}
	}
	f, err := familyOf(w, inner.values())
	if err == nil {
		c, err = f.decode(inner)
	}
	if w.key == "" {
		return c, err
	}
	var wrong *problem.Error
	listed := errors.As(err, &wrong)
	if err == nil {
		wrong = &problem.Error{Problems: c.Quantization.Unread}
	}
	for i := 0; wrong != nil && i < len(wrong.Problems); i++ {
		field := &wrong.Problems[i].Field
		if key, _, _ := strings.Cut(*field, "."); values[key] != nil || !slices.Contains(beside, key) {
			*field = strings.TrimSuffix(w.key+"."+*field, ".")
		}
	}
	if listed {
		return nil, wrong
	}
	if err != nil {
		return nil, err
	}
	c.doc, c.wrapper = doc, w
	if problems := w.contradictions(doc, values); problems != nil {
		return nil, problem.In("", problems...)
	}
	return c, nil
}

// contradictions compares the keys of the language model that stand around its configuration once more with those
// in it. DeepSeek-OCR's files say all twice: the published code goes by the one, others by the other. How weights are
// stored no two places may say differently.
func (w wrapper) contradictions(doc document, inner map[string]jsontext.Value) (problems []problem.Problem) {
	for _, m := range doc {
		value, has := inner[m.key]
		cause := ""
		switch {
		case m.key == quantization:
			a, b := m.value.Clone(), value.Clone() // which may be spelled in two ways
			if has && a.Kind() != 'n' && (a.Canonicalize() != nil || b.Canonicalize() != nil || !bytes.Equal(a, b)) {
				cause = "is not what config.json itself has there; leave out the wrong one"
			}
		case w.says(m.key) && !has:
			cause = "missing; config.json itself says " + show(m.value)
		case w.says(m.key) && !bytes.Equal(m.value, value):
			cause = show(value) + "; config.json itself says " + show(m.value)
		}
		if cause != "" {
			problems = append(problems, problem.Problem{Field: w.key + "." + m.key, Cause: cause})
		}
	}
	return problems
}

// says reports whether a key around the language model's configuration is one of it.
func (w wrapper) says(key string) bool {
	f, err := familyOf(w, nil)
	return err == nil && f.within && w.prefix == "" && key != "model_type" && f.index(key) >= 0
}

// Override returns a copy in which the given config.json keys have the given JSON
// values, parsed and validated anew. The keys are the language model's: see Within. A key that the
// document has keeps its place; others are added at the end, sorted. Golden packs name such keys
// in config_overrides. Problems are returned as one *problem.Error.
func (c *Config) Override(fields map[string]jsontext.Value) (*Config, error) {
	doc, err := c.wrapper.inner(c.doc)
	if err != nil {
		return nil, err
	}
	var problems []problem.Problem
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		raw, err := jsontext.AppendQuote(nil, key)
		switch {
		case err != nil:
			problems = append(problems, problem.Problem{Field: quote(key), Cause: "the key is not valid UTF-8"})
		case !fields[key].IsValid():
			problems = append(problems, problem.Problem{Field: quote(key), Cause: "the value is not one valid JSON value"})
		default:
			doc = doc.put(member{key, raw, bytes.Trim(bytes.Clone(fields[key]), jsonSpace)})
		}
	}
	if problems != nil {
		return nil, problem.In("", problems...)
	}
	if c.wrapper.key != "" {
		values := doc.values()
		doc = slices.Clone(c.doc).put(member{key: c.wrapper.key, value: doc.JSON()})
		for i, m := range doc {
			if _, changed := fields[m.key]; changed && c.wrapper.says(m.key) {
				doc[i].value = values[m.key]
			}
		}
	}
	return Parse(bytes.NewReader(doc.JSON()))
}
