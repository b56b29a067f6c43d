package config

// How one value of config.json becomes one field of Config. The parse functions
// know the JSON and the range; the readers bind them to a field for the table.

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

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

// store keeps what parse returns, or its error.
func store[T any](d *decoding, key string, dst *T, parse func() (T, error)) {
	v, err := parse()
	if err != nil {
		d.fail(key, err)
		return
	}
	*dst = v
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

// parseInteger reads an integer in min..max. A fraction or an exponent makes a
// number a float to Python, which torch refuses as a size, so 64.0 is refused.
func parseInteger(v jsontext.Value, min, max int) (int, error) {
	if v.Kind() != '0' {
		return 0, fmt.Errorf("%s is not an integer", show(v))
	}
	if isFloat(v) {
		return 0, fmt.Errorf("%s is a float, not an integer", show(v))
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil || n < int64(min) || n > int64(max) {
		return 0, fmt.Errorf("%s is not in %d..%d", show(v), min, max)
	}
	return int(n), nil
}

// parseOptional reads an integer in 1..max, or null as 0.
func parseOptional(v jsontext.Value, max int) (int, error) {
	if v.Kind() == 'n' {
		return 0, nil
	}
	n, err := parseInteger(v, 1, max)
	if err != nil {
		return 0, fmt.Errorf("%w, nor null", err)
	}
	return n, nil
}

// isFloat reports whether Python's json module parses the number as a float.
func isFloat(v jsontext.Value) bool { return strings.ContainsAny(string(v), ".eE") }

// bound is a condition on a number, with its wording.
type bound struct {
	rule string
	ok   func(float64) bool
}

var (
	positive    = bound{"above 0", func(x float64) bool { return x > 0 }}
	notNegative = bound{"0 or above", func(x float64) bool { return x >= 0 }}
	aboveOne    = bound{"above 1", func(x float64) bool { return x > 1 }}
)

// parseNumber reads a finite number, integers included, that fits accepts.
func parseNumber(v jsontext.Value, fits bound) (float64, error) {
	if v.Kind() != '0' {
		return 0, fmt.Errorf("%s is not a number", show(v))
	}
	x, err := strconv.ParseFloat(string(v), 64)
	if err != nil || math.IsInf(x, 0) {
		return 0, fmt.Errorf("%s is beyond float64", show(v))
	}
	if !fits.ok(x) {
		return 0, fmt.Errorf("%s is not %s", show(v), fits.rule)
	}
	return x, nil
}

// parseFloat reads a number that Python's json module makes a float of.
func parseFloat(v jsontext.Value, fits bound) (float64, error) {
	x, err := parseNumber(v, fits)
	if err == nil && !isFloat(v) {
		return 0, fmt.Errorf("%s is an integer; the reference demands a float, such as %s.0", show(v), show(v))
	}
	return x, err
}

// parseBoolean reads true or false.
func parseBoolean(v jsontext.Value) (bool, error) {
	if k := v.Kind(); k != 't' && k != 'f' {
		return false, fmt.Errorf("%s is not true or false", show(v))
	}
	return v.Kind() == 't', nil
}

// parseString reads a string.
func parseString(v jsontext.Value) (string, error) {
	if v.Kind() != '"' {
		return "", fmt.Errorf("%s is not a string", show(v))
	}
	return unquote(v), nil
}

// parseOneOf reads a string that must be one of names.
func parseOneOf(v jsontext.Value, names ...string) (string, error) {
	s, err := parseString(v)
	if err != nil {
		return "", err
	}
	if !slices.Contains(names, s) {
		return "", fmt.Errorf("%s is not one of %s", quote(s), strings.Join(names, ", "))
	}
	return s, nil
}

// Upper limits of the integers. With maxParameters they keep every product of
// dimensions far inside int64.
const (
	maxDim     = 1 << 24
	maxLayers  = 10000
	maxExperts = 1 << 16
)
