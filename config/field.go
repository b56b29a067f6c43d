package config

// How one value of config.json becomes one field of Config: readers bind the functions that parse
// values to fields.

import (
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// field is a row of a family's table: a key, and how its value is read and shown.
type field struct {
	key string
	reader
}

// reader is the way between the JSON value of a key and the Config.
type reader struct {
	// read stores value in d.config, or reports its problem with d.fail.
	read func(d *decoding, key string, value jsontext.Value)
	// value returns what c holds under the key: an integer, a number, a truth value, a
	// string, or nil for null. It is nil where no single field of Config is the key's.
	value func(c *Config) any
}

// integer reads a field that must be an integer in min..max.
func integer(get func(*Config) *int, min, max int) reader {
	return single(get, func(v jsontext.Value) (int, error) { return parseInteger(v, min, max) })
}

// optional reads an integer in 1..max that may be null: Python's None, our 0. A 0
// in the text is refused: no shared experts is null to the reference, and 0 would
// make it build empty ones.
func optional(get func(*Config) *int, max int) reader {
	r := single(get, func(v jsontext.Value) (int, error) { return parseOptional(v, max) })
	r.value = func(c *Config) any {
		if n := *get(c); n != 0 {
			return n
		}
		return nil
	}
	return r
}

// number reads a field that must be a finite number that fits accepts.
func number(get func(*Config) *float64, fits bound) reader {
	return single(get, func(v jsontext.Value) (float64, error) { return parseNumber(v, fits) })
}

// boolean reads a field that must be true or false.
func boolean(get func(*Config) *bool) reader { return single(get, parseBoolean) }

// str reads a field that must be a string.
func str(get func(*Config) *string) reader { return single(get, parseString) }

// single reads a key with parse into one field of Config.
func single[T any](get func(*Config) *T, parse func(jsontext.Value) (T, error)) reader {
	return reader{
		read: func(d *decoding, key string, value jsontext.Value) {
			store(d, key, get(&d.config), func() (T, error) { return parse(value) })
		},
		value: func(c *Config) any { return *get(c) },
	}
}

// dtypes are the torch_dtype that a checkpoint's own weights can have.
var dtypes = []string{"bfloat16", "float16", "float32", "float64"}

// readTorchDType reads torch_dtype and, after it, transformers 5's dtype. It ignores null;
// two names that differ are an error.
func readTorchDType(d *decoding, key string, value jsontext.Value) {
	if value.Kind() == 'n' {
		return
	}
	name, err := parseOneOf(value, dtypes...)
	if known := d.config.TorchDType; err == nil && known != "" && name != known {
		err = fmt.Errorf("%q disagrees with torch_dtype %q", name, known)
	}
	store(d, key, &d.config.TorchDType, func() (string, error) { return name, err })
}

// only returns the fields of these keys, in the order of the keys.
func only(fields []field, keys ...string) (some []field) {
	for _, key := range keys {
		some = append(some, fields[slices.IndexFunc(fields, func(f field) bool { return f.key == key })])
	}
	return some
}

// replaced returns fields with other readers of some keys.
func replaced(fields []field, by map[string]reader) []field {
	for i, f := range fields {
		if r, ok := by[f.key]; ok {
			fields[i].reader = r
		}
	}
	return fields
}

// natural reads an integer in 0..max, or null as 0.
func natural(get func(*Config) *int, max int) reader {
	return single(get, func(v jsontext.Value) (int, error) {
		if v.Kind() == 'n' {
			return 0, nil
		}
		return parseInteger(v, 0, max)
	})
}
