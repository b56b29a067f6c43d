package config

import (
	"encoding/json"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// HasKey reports whether a key of config.json is one that c's family reads, or that c's document has. The keys are the
// language model's: see Within.
func (c *Config) HasKey(key string) bool {
	for _, f := range families {
		if f.defaults.ModelType == c.ModelType && slices.ContainsFunc(f.fields, func(row field) bool { return row.key == key }) {
			return true
		}
	}
	_, has := c.language().values()[key]
	return has
}

// Value returns the value in c of a key of config.json, as JSON: the document's value, or the
// family's default for an absent key. It is nil for a key unknown to the family, and for a key
// that several fields of Config hold, such as rope_scaling.
func (c *Config) Value(key string) jsontext.Value {
	for _, f := range families {
		if f.defaults.ModelType != c.ModelType {
			continue
		}
		i := slices.IndexFunc(f.fields, func(row field) bool { return row.key == key })
		if i < 0 || f.fields[i].value == nil {
			return nil
		}
		value, err := json.Marshal(f.fields[i].value(c))
		if err != nil {
			panic("config: Value: " + key + ": " + err.Error()) // fields are finite numbers, strings and truth values
		}
		return value
	}
	return nil
}
