package config

import (
	"encoding/json"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// Value returns what c holds under a key of config.json, as JSON: the document's value,
// or the family's default where the document has none. It is nil for a key that the
// family does not know, and for one that several fields of Config hold, such as
// rope_scaling.
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
