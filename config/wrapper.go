package config

import (
	"bytes"
	"errors"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// wrapper is a model_type of a model that has a language model and more, such as a vision
// tower: config.json holds the language model's configuration in one of its objects.
type wrapper struct {
	modelType    string
	architecture string // the first of architectures; "" for any
	key          string // of the object
	prefix       string // of the language model's names among the tensors
	family       string // of the language model; "" if its own model_type names it
}

// wrappers lists every model_type that Parse reads the language model of.
var wrappers = []wrapper{
	{"kimi_k25", "", "text_config", "language_model.", ""},       // Kimi-K2.5
	{vl2, "DeepseekOCRForCausalLM", "language_config", "", vl2},  // DeepSeek-OCR
	{vl2, "DeepseekOCR2ForCausalLM", "language_config", "", vl2}, // DeepSeek-OCR-2
	{vl2, "", "language_config", "language.", vl2},               // DeepSeek-VL2
	{"deepseek_v41", "", "text_config", "", "deepseek_v41"},      // DeepSeek-V4.1
}

// wrapperOf returns the wrapper that model_type and architectures name; nil if there is none.
func wrapperOf(values map[string]jsontext.Value) *wrapper {
	name, _ := parseString(values["model_type"])
	architectures, _ := parseNames(values["architectures"])
	for i, w := range wrappers {
		if w.modelType == name && (w.architecture == "" || slices.Contains(architectures, w.architecture)) {
			return &wrappers[i]
		}
	}
	return nil
}

// beside are keys that may stand beside the language model's configuration in place of in it.
var beside = []string{"torch_dtype", "dtype", quantization}

const quantization = "quantization_config"

// decode reads the language model's configuration.
func (w *wrapper) decode(doc document) (*Config, error) {
	inner, err := w.inner(doc)
	if err != nil {
		return nil, err
	}
	values := inner.values()
	for _, m := range doc {
		if _, said := values[m.key]; !said && slices.Contains(beside, m.key) {
			inner = append(inner, m)
		}
	}
	c, err := decodeFamily(w, inner)
	var wrong *Error
	if errors.As(err, &wrong) {
		for i := range wrong.Problems {
			field := &wrong.Problems[i].Field
			if key, _, _ := strings.Cut(*field, "."); values[key] != nil || !slices.Contains(beside, key) {
				*field = strings.TrimSuffix(w.key+"."+*field, ".")
			}
		}
		return nil, wrong
	}
	if err != nil {
		return nil, err
	}
	c.doc, c.wrapper = doc, w
	if problems := w.contradictions(doc, values); problems != nil {
		return nil, &Error{Problems: problems}
	}
	return c, nil
}

// contradictions compares the keys of the language model that stand around its configuration once more with those
// in it. DeepSeek-OCR's files say all twice: the published code goes by the one, others by the other. How weights are
// stored no two places may say differently.
func (w *wrapper) contradictions(doc document, inner map[string]jsontext.Value) (problems []Problem) {
	for _, m := range doc {
		if m.key == quantization && inner[m.key] != nil && m.value.Kind() != 'n' && !equalJSON(m.value, inner[m.key]) {
			problems = append(problems, Problem{w.key + "." + m.key, "is not what config.json itself has there; leave out the wrong one"})
		}
		if !w.says(m.key) || m.key == quantization || bytes.Equal(m.value, inner[m.key]) {
			continue
		}
		told := "missing"
		if v, ok := inner[m.key]; ok {
			told = show(v)
		}
		problems = append(problems, Problem{w.key + "." + m.key, told + "; config.json itself says " + show(m.value)})
	}
	return problems
}

// equalJSON reports whether values are the same, however they are spelled.
func equalJSON(a, b jsontext.Value) bool {
	a, b = a.Clone(), b.Clone()
	return a.Canonicalize() == nil && b.Canonicalize() == nil && bytes.Equal(a, b)
}

// says reports whether a key around the language model's configuration is one of it.
func (w *wrapper) says(key string) bool {
	f, err := familyIn(w, nil)
	return err == nil && w.prefix == "" && key != "model_type" &&
		slices.ContainsFunc(f.fields, func(row field) bool { return row.key == key })
}

// inner reads the object with the language model's configuration.
func (w *wrapper) inner(doc document) (document, error) {
	value := doc.values()[w.key]
	if value.Kind() != '{' {
		return nil, &Error{Problems: []Problem{{w.key, "is not an object with the language model's configuration"}}}
	}
	return readDocument(value)
}

// Within returns the key of the object of config.json that holds the language model's
// configuration; "" if the document itself does.
func (c *Config) Within() string {
	if c.wrapper == nil {
		return ""
	}
	return c.wrapper.key
}

// Prefix returns what a checkpoint puts before the names of the language model's tensors, such
// as "language_model."; usually "".
func (c *Config) Prefix() string {
	if c.wrapper == nil {
		return ""
	}
	return c.wrapper.prefix
}
