package config

// The differences between two configs, after defaults and aliases, and which of them change
// the model's computation.

import (
	"bytes"
	"reflect"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// Difference is a key of config.json under which two configs hold different values, be it
// spelled out, left to the family's default, or said by another key.
type Difference struct {
	Key     string         `json:"key"`     // such as "rms_norm_eps"; "auto_map" where the references to follow differ
	A       jsontext.Value `json:"a"`       // the one's value, as JSON
	B       jsontext.Value `json:"b"`       // the other's
	Meaning bool           `json:"meaning"` // it changes the model's computation, the training loss included
}

// Differences compares all that a Config holds, in the order of the families' keys.
func Differences(a, b *Config) []Difference {
	differences, seen := []Difference{}, map[string]bool{}
	for _, family := range families {
		for _, row := range family.fields {
			if a.row(row.key) == nil && b.row(row.key) == nil {
				continue // both may say it under another key
			}
			x, y := row.json(a), row.json(b)
			if !seen[row.key] && !bytes.Equal(x, y) {
				meaning := row.decides == nil || row.decides(a, b)
				differences = append(differences, Difference{row.key, x, y, meaning})
			}
			seen[row.key] = seen[row.key] || x != nil
		}
	}
	return differences
}

// Fields lists the exported fields of Config, with the Index that reflect.Value.FieldByIndex takes. A field that is a
// group of fields stands for these.
func Fields() (list []reflect.StructField) {
	var add func(t reflect.Type, index []int)
	add = func(t reflect.Type, index []int) {
		for i := range t.NumField() {
			f := t.Field(i)
			f.Index = append(slices.Clip(index), i)
			switch {
			case !f.IsExported():
			case f.Type.Kind() == reflect.Struct && f.Type != reflect.TypeFor[Quantization]():
				add(f.Type, f.Index)
			default:
				list = append(list, f)
			}
		}
	}
	add(reflect.TypeFor[Config](), nil)
	return list
}

// json returns what c holds under the row's key, by its own family's row of that key if it has one; nil under a key that
// is an alias of one before it, or that no Config can hold a value of.
func (row field) json(c *Config) jsontext.Value {
	if own := c.row(row.key); own != nil && row.value != nil && own.value != nil {
		row = *own
	}
	switch {
	case row.shown != nil:
		return row.shown(c)
	case row.value != nil:
		return toJSON(row.value(c))
	}
	return nil
}
