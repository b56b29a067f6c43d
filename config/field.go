package config

// How one value of config.json becomes one field of Config: readers bind the functions that parse
// values to fields.

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// field is a row of a family's table: a key, the value of its field where the key is absent, and how the key's value is
// read, shown and compared.
type field struct {
	key     string
	missing any // of the field's type, 0 for null; nil: the zero value
	reader
}

// reader is the way between the JSON value of a key and the Config.
type reader struct {
	// read stores value in d.config, or reports its problem with d.fail.
	read func(d *decoding, key string, value jsontext.Value)
	// value returns what c holds under the key: an integer, a number, a truth value, a
	// string, or nil for null. It is nil where no single field of Config is the key's.
	value func(c *Config) any
	// set puts a value into the one field of Config that is the key's.
	set func(c *Config, value any)
	// shown is what Differences shows in place of value.
	shown func(c *Config) jsontext.Value
	// decides reports whether a difference under the key changes the model's computation; nil: it does.
	decides func(a, b *Config) bool
}

// readBy reads a key with a function of its own. In a delta the field of the base's row stays the key's.
func readBy(read func(d *decoding, key string, value jsontext.Value)) reader {
	return reader{read: read}
}

// ifSet returns r with null taken as if the key were absent.
func (r reader) ifSet() reader {
	read := r.read
	r.read = func(d *decoding, key string, value jsontext.Value) {
		if value.Kind() != 'n' {
			read(d, key, value)
		}
	}
	return r
}

// refusal reads a key without a field: check returns what is wrong with its value.
func refusal(check func(value jsontext.Value) error) reader {
	return readBy(func(d *decoding, key string, value jsontext.Value) { d.fail(key, check(value)) })
}

// always reads a truth value without a field, which is want; otherwise tells what is wrong with the other value.
func always(want bool, otherwise string) reader {
	return refusal(func(value jsontext.Value) error {
		got, err := parseBoolean(value)
		if err != nil {
			return err
		}
		return errorIf(got != want, "%t: %s", got, otherwise)
	})
}

// refused reads a key without a field that may only be null; why tells what is wrong with other values.
func refused(why string) reader {
	return refusal(func(jsontext.Value) error { return notRead{errors.New(why)} }).ifSet()
}

// showing returns r of a key that no single field of Config is the key's.
func (r reader) showing(shown func(c *Config) jsontext.Value) reader {
	r.shown = shown
	return r
}

// deciding returns r of a key whose differences change the model's computation on a condition.
func (r reader) deciding(decides func(a, b *Config) bool) reader {
	r.decides = decides
	return r
}

// integer reads a field that must be an integer in min..max.
func integer(get func(*Config) *int, min, max int) reader {
	return single(get, func(v jsontext.Value) (int, error) { return parseInteger(v, min, max) })
}

// optional reads an integer in 1..max that may be null: Python's None, our 0. A 0
// in the text is refused: no shared experts is null to the reference, and 0 would
// make it build empty ones.
func optional(get func(*Config) *int, max int) reader {
	r := single(get, func(v jsontext.Value) (int, error) {
		if v.Kind() == 'n' {
			return 0, nil
		}
		n, err := parseInteger(v, 1, max)
		if err != nil {
			return 0, fmt.Errorf("%w, nor null", err)
		}
		return n, nil
	})
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
			v, err := parse(value)
			store(d, key, get(&d.config), v, err)
		},
		value: func(c *Config) any { return *get(c) },
		set:   func(c *Config, value any) { *get(c) = value.(T) },
	}
}

// oneOf is the row of a key without a field whose value is one of these.
func oneOf(key string, names ...string) field {
	return field{key, nil, refusal(func(value jsontext.Value) error {
		_, err := parseOneOf(value, names...)
		return err
	})}
}

// dtypes are the torch_dtype that a checkpoint's own weights can have.
var dtypes = []string{"bfloat16", "float16", "float32", "float64"}

// readTorchDType reads torch_dtype and, after it, transformers 5's dtype. Two names that differ are an error.
func readTorchDType(d *decoding, key string, value jsontext.Value) {
	name, err := parseOneOf(value, dtypes...)
	if known := d.config.TorchDType; err == nil && known != "" && name != known {
		err = fmt.Errorf("%q disagrees with torch_dtype %q", name, known)
	}
	store(d, key, &d.config.TorchDType, name, err)
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

// layerTypes reads a list of types of layers, all of them known.
func layerTypes(get func(*Config) *[]string, known ...string) reader {
	return single(get, func(v jsontext.Value) ([]string, error) {
		types, err := parseNames(v)
		for i, t := range types {
			if !slices.Contains(known, t) {
				return nil, fmt.Errorf("layer %d: %s is not one of %s", i, quote(t), strings.Join(known, ", "))
			}
		}
		return types, err
	}).ifSet()
}
