package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/text/problem"
)

// decoding is a document on its way to a Config. Every field is read, every rule between valid fields is checked, and all
// problems are reported at once.
type decoding struct {
	config   Config
	rope     *ropeForm
	values   map[string]jsontext.Value
	thetaKey string // the key that RopeTheta is from, once an object was asked for it
	problems []problem.Problem
}

// rule is a condition between fields. It is checked if all of them are valid; a
// problem is reported under the first.
type rule struct {
	fields []string
	check  func(*Config) error
}

// errorIf returns an error if what the format tells is wrong.
func errorIf(wrong bool, format string, args ...any) error {
	if !wrong {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// fail records err, unless it is nil, as a problem of a key, or of a part of it: "key.part". What is only notRead does
// not keep the config from being used.
func (d *decoding) fail(key string, err error) {
	if err == nil {
		return
	}
	p, list := problem.Problem{Field: key, Cause: err.Error()}, &d.problems
	if errors.As(err, new(notRead)) {
		list = &d.config.Quantization.Unread
	}
	*list = append(*list, p)
}

// notRead is why a quantization_config that may be right is not read. fail keeps it apart from what is wrong.
type notRead struct{ error }

// unread marks err as notRead; nil stays nil.
func unread(err error) error {
	if err == nil {
		return nil
	}
	return notRead{err}
}

// valid reports whether no problem was found with the key or a part of it.
func (d *decoding) valid(key string) bool {
	return !slices.ContainsFunc(d.problems, func(p problem.Problem) bool {
		return p.Field == key || strings.HasPrefix(p.Field, key+".")
	})
}

// hasValid reports whether the document has the key, with a valid value.
func (d *decoding) hasValid(key string) bool {
	_, ok := d.values[key]
	return ok && d.valid(key)
}

// object returns the members of an object that may have only the known keys.
func (d *decoding) object(key string, value jsontext.Value, known ...string) (map[string]jsontext.Value, bool) {
	doc, ok := d.document(key, value)
	if !ok {
		return nil, false
	}
	for _, m := range doc {
		if !slices.Contains(known, m.key) {
			d.fail(key, fmt.Errorf("unknown key %s; it takes only %s", quote(m.key), strings.Join(known, ", ")))
		}
	}
	return doc.values(), true
}

// document reads an object, and refuses any other value.
func (d *decoding) document(key string, value jsontext.Value) (document, bool) {
	if value.Kind() != '{' {
		d.fail(key, fmt.Errorf("%s is not null or an object", show(value)))
		return nil, false
	}
	doc, err := readDocument(value)
	d.fail(key, err)
	return doc, err == nil
}

// part reads one required key of an object.
func (d *decoding) part(key, name string, o map[string]jsontext.Value, read func(jsontext.Value) error) {
	err := errors.New("missing")
	if v, ok := o[name]; ok {
		err = read(v)
	}
	d.fail(key+"."+name, err)
}

// ropeForm is the allowed content of a family's rope_scaling and rope_parameters.
type ropeForm struct {
	types []string // beside "default"
	// called maps other names, as the family's files have them, to types.
	called map[string]string
	keys   []string // beside type, factor
	others []string // of the object, beside the scaling's and rope_theta: partial_rotary_factor
	// number reads the factor and the like.
	number func(jsontext.Value, bound) (float64, error)
}

// store keeps the value of a key, unless err is what is wrong with it.
func store[T any](d *decoding, key string, dst *T, value T, err error) {
	if d.fail(key, err); err == nil {
		*dst = value
	}
}
