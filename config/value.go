package config

import (
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/text/problem"
)

// HasKey reports whether a key of config.json is one that c's family reads, or that c's document has. The keys are the
// language model's: see Within.
func (c *Config) HasKey(key string) bool {
	if c.row(key) != nil {
		return true
	}
	doc, _ := c.wrapper.inner(c.doc) // it was read before
	_, has := doc.values()[key]
	return has
}

// Key returns the key of config.json that c's family has for what DeepSeek's families say under key: "num_experts" for
// "n_routed_experts".
func (c *Config) Key(key string) string {
	if c.family == nil {
		return key
	}
	doc, _ := c.wrapper.inner(c.doc) // it was read before
	return c.family.keyIn(doc.values(), key)
}

// row returns the row of a key in the table of c's family; nil without one.
func (c *Config) row(key string) *field {
	if c.family != nil {
		if i := c.family.index(key); i >= 0 {
			return &c.family.fields[i]
		}
	}
	return nil
}

// Value returns the value in c of a key of config.json, as JSON: the document's value, or the
// family's default for an absent key. It is nil for a key unknown to the family, and for a key
// that several fields of Config hold, such as rope_scaling.
func (c *Config) Value(key string) jsontext.Value {
	row := c.row(key)
	if row == nil || row.value == nil {
		return nil
	}
	return toJSON(row.value(c))
}

// inner returns a copy of the language model's document: the object that holds it, or doc itself.
func (w wrapper) inner(doc document) (document, error) {
	if w.key == "" {
		return slices.Clone(doc), nil
	}
	value := doc.values()[w.key]
	if value.Kind() != '{' {
		return nil, problem.In("", problem.Problem{Field: w.key,
			Cause: "is not an object with the language model's configuration"})
	}
	return readDocument(value)
}
