package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// family describes a model_type: its keys, the order in which problems are reported, the
// defaults of absent keys, and the conditions between keys. A new family is a file
// family_NAME.go and one more entry in families.
type family struct {
	defaults Config  // of the reference's __init__; ModelType names the family
	fields   []field // its keys; an alias stands after the key it spells anew
	rules    []rule
	rope     ropeForm

	references map[Reference]Rules // what each implementation does in its own way

	within bool // only a wrapper's: model_type alone does not name it
}

// families lists every model_type that Parse accepts.
var families = []family{
	{defaults: v1Defaults, fields: v1Fields, rules: v1Rules,
		rope: ropeForm{types: []string{"linear", "dynamic"}, number: parseFloat}, references: v1References},
	{defaults: v2Defaults, fields: mlaFields, rules: v2Rules, rope: yarnForm, references: v2References},
	{defaults: v3Defaults, fields: v3Fields, rules: v3Rules, rope: yarnForm, references: v3References},
	{defaults: kimiK2Defaults, fields: v3Fields, rules: v3Rules, rope: yarnForm, references: v3References},
	{defaults: glm4MoELiteDefaults, fields: glm4MoELiteFields, rules: v3Rules, rope: yarnForm,
		references: glm4MoELiteReferences},
	{defaults: axk1Defaults, fields: axk1Fields, rules: axk1Rules, rope: yarnForm, references: axk1References},
	{defaults: vl2Defaults, fields: vl2Fields, rules: vl2Rules, rope: yarnForm, references: vl2References,
		within: true},
	{defaults: v32Defaults, fields: v32Fields, rules: v32Rules, rope: yarnForm, references: v32References},
	{defaults: glmMoEDsaDefaults, fields: glmMoEDsaFields, rules: glmMoEDsaRules, rope: yarnForm,
		references: glmMoEDsaReferences},
	{defaults: v4Defaults, fields: v4Fields, rules: v4Rules, rope: yarnForm, references: v4References},
	{defaults: v41Defaults, fields: v41Fields, rules: v41Rules, within: true},
}

// decode reads a document by the family's table.
func (f *family) decode(doc document) (*Config, error) {
	values := doc.values()
	d := &decoding{config: f.defaults, rope: f.rope, values: values}
	d.config.doc = doc
	d.readFields(f.fields)
	if d.config.NumKeyValueHeads == 0 {
		d.config.NumKeyValueHeads = d.config.NumAttentionHeads
	}
	d.checkRules(f.rules)
	if d.problems == nil {
		return &d.config, nil
	}
	slices.SortStableFunc(d.problems, func(a, b Problem) int { return f.position(a) - f.position(b) })
	return nil, &Error{Problems: d.problems}
}

// familyIn finds the family of a language model within a wrapper, which may be nil.
func familyIn(w *wrapper, values map[string]jsontext.Value) (*family, error) {
	for i := range families {
		if w != nil && families[i].within && families[i].defaults.ModelType == w.family {
			return &families[i], nil
		}
	}
	return familyOf(values)
}

// familyOf finds the family that model_type names.
func familyOf(values map[string]jsontext.Value) (*family, error) {
	v, ok := values["model_type"]
	if !ok {
		return nil, unsupported("missing")
	}
	name, err := parseString(v)
	if err != nil {
		return nil, unsupported(err.Error())
	}
	for i := range families {
		if families[i].defaults.ModelType == name && !families[i].within {
			return &families[i], nil
		}
	}
	return nil, unsupported(quote(name))
}

// unsupported is the *Error for a model_type that no family has.
func unsupported(cause string) error {
	var names []string
	for _, f := range families {
		if !f.within {
			names = append(names, f.defaults.ModelType)
		}
	}
	for _, w := range wrappers {
		if !slices.Contains(names, w.modelType) {
			names = append(names, w.modelType)
		}
	}
	cause = fmt.Sprintf("%s; supported: %s", cause, strings.Join(names, ", "))
	return &Error{Problems: []Problem{{Field: "model_type", Cause: cause}}}
}

// position is the place of a problem's field in the table.
func (f *family) position(p Problem) int {
	key, _, _ := strings.Cut(p.Field, ".")
	return slices.IndexFunc(f.fields, func(row field) bool { return row.key == key })
}

func (d *decoding) readFields(fields []field) {
	for _, f := range fields {
		if v, ok := d.values[f.key]; ok {
			f.read(d, f.key, v)
		}
	}
}

func (d *decoding) checkRules(rules []rule) {
	for _, r := range rules {
		if slices.ContainsFunc(r.fields, func(key string) bool { return !d.valid(key) }) {
			continue
		}
		d.fail(r.fields[0], r.check(&d.config))
	}
}
