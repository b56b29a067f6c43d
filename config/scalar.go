package config

// JSON values that stand alone: their kinds and their ranges.

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

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

// parseNames reads null or a list of strings.
func parseNames(v jsontext.Value) (names []string, err error) {
	if v.Kind() != 'n' && v.Kind() != '[' || json.Unmarshal(v, &names) != nil {
		return nil, errors.New("not a list of names, nor null")
	}
	return names, nil
}
