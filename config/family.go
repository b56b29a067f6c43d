package config

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/text/problem"
)

// family describes a model_type: its keys with the values that hold where they are absent, in the order in which
// problems are reported, and the conditions between keys. A new family is a file family_NAME.go, which derives it from
// another one, and one more entry in families.go.
type family struct {
	modelType string
	class     string    // of transformers or of the published code, as packs name it
	reference Reference // without auto_map
	fields    []field   // an alias stands after the key it spells anew
	unread    []field   // keys that the reference does not read: their fields always have the missing value
	rules     []rule
	rope      *ropeForm
	renamed   map[string]string // the keys that stand here for others', by those: rules and Config.Key take these
	aliases   map[string]string // other names of keys, with the keys: a document that has both says the same twice

	references map[Reference]Rules // what each implementation does in its own way

	also string // another family's model_type, which files of this one have whose architectures name its class
	// blockOnly: of layers the mixtures of experts and dense MLPs alone are computed, see Config.BlockOnly
	blockOnly bool
	within    bool // only a wrapper's: model_type alone does not name it
}

// delta is how a family differs from the one that it derives from.
type delta struct {
	missing map[string]any    // other values of absent keys
	fields  []field           // of keys that the base has: what they set; of other keys: behind the base's
	before  map[string]field  // put before the row of a key
	unread  []string          // keys of the base that the reference does not read
	renamed map[string]string // keys of the base that have other names: these, by the base's
	aliases map[string]string // other names of keys, with the keys as they are called here

	// In place of the base's, where they are set.
	class      string
	also       string
	reference  Reference
	rules      []rule
	rope       *ropeForm
	references map[Reference]Rules
	within     bool
}

// derive returns a family like f under another model_type, but for the delta.
func (f *family) derive(modelType string, d delta) family {
	derived := *f
	derived.modelType, derived.reference = modelType, cmp.Or(d.reference, f.reference)
	derived.class, derived.renamed, derived.aliases = cmp.Or(d.class, f.class), d.renamed, d.aliases
	derived.fields, derived.unread = slices.Clone(f.fields), slices.Clone(f.unread)
	derived.rope, derived.also, derived.within = cmp.Or(d.rope, f.rope), d.also, d.within
	if d.rules != nil {
		derived.rules = d.rules
	}
	if d.references != nil {
		derived.references = d.references
	}
	for key, row := range d.before {
		derived.fields = slices.Insert(derived.fields, derived.index(key), row)
	}
	for _, row := range d.fields {
		i := derived.index(row.key)
		if i < 0 {
			derived.fields = append(derived.fields, row)
			derived.unread = slices.DeleteFunc(derived.unread, named(row.key))
			continue
		}
		old := &derived.fields[i]
		old.read = row.read
		if row.value != nil {
			old.value, old.set = row.value, row.set
		}
		if row.missing != nil {
			old.missing = row.missing
		}
	}
	for _, key := range d.unread {
		i := derived.index(key)
		derived.unread = append(derived.unread, derived.fields[i])
		derived.fields = slices.Delete(derived.fields, i, i+1)
	}
	for key, value := range d.missing {
		if i := derived.index(key); i >= 0 {
			derived.fields[i].missing = value
		} else {
			derived.unread[slices.IndexFunc(derived.unread, named(key))].missing = value
		}
	}
	for key, name := range d.renamed {
		derived.fields[derived.index(key)].key = name
	}
	return derived
}

// named returns whether a row is that of a key.
func named(key string) func(row field) bool { return func(row field) bool { return row.key == key } }

// index returns the place of a key among the family's; -1 without it.
func (f *family) index(key string) int {
	return slices.IndexFunc(f.fields, named(key))
}

// row returns the row of a key that f reads or leaves unread, with another value for where the key is absent.
func (f *family) row(key string, missing any) field {
	rows, i := f.fields, f.index(key)
	if i < 0 {
		rows, i = f.unread, slices.IndexFunc(f.unread, named(key))
	}
	row := rows[i]
	row.missing = missing
	return row
}

// native are the rules of a family whose only reference is transformers' class: another family's, changed.
func (f *family) native(change func(r *Rules)) map[Reference]Rules {
	rules := f.references[Native]
	change(&rules)
	return map[Reference]Rules{Native: rules}
}

// defaults returns the Config of a document without keys.
func (f *family) defaults() Config {
	c := Config{ModelType: f.modelType, Reference: f.reference, family: f}
	for _, rows := range [...][]field{f.fields, f.unread} {
		for _, row := range rows {
			if row.missing != nil {
				row.set(&c, row.missing)
			}
		}
	}
	return c
}

// decode reads a document by the family's table.
func (f *family) decode(doc document) (*Config, error) {
	d := &decoding{config: f.defaults(), rope: f.rope, values: doc.values()}
	d.config.doc = doc
	for _, row := range f.fields {
		said := d.values[row.key]
		if said != nil {
			row.read(d, row.key, said)
		}
		for _, alias := range f.aliasesOf(row.key) {
			switch v := d.values[alias]; {
			case v == nil:
			case said != nil && !bytes.Equal(v, said):
				d.fail(alias, fmt.Errorf("%s; %s, another name of it, is %s", show(v), row.key, show(said)))
			default:
				row.read(d, alias, v)
				said = v
			}
		}
	}
	if d.config.Attention.NumKeyValueHeads == 0 {
		d.config.Attention.NumKeyValueHeads = d.config.Attention.NumAttentionHeads
	}
	for _, r := range f.rules {
		if !slices.ContainsFunc(r.fields, func(key string) bool { return !d.valid(f.keyIn(d.values, key)) }) {
			d.fail(f.keyIn(d.values, r.fields[0]), r.check(&d.config))
		}
	}
	if d.problems == nil {
		return &d.config, nil
	}
	d.problems = append(d.problems, d.config.Quantization.Unread...)
	slices.SortStableFunc(d.problems, func(a, b problem.Problem) int { return f.position(a) - f.position(b) })
	return nil, problem.In("", d.problems...)
}

// position is the place of a problem's field in the table.
func (f *family) position(p problem.Problem) int {
	if i := f.index(p.Field); i >= 0 {
		return i
	}
	key, _, _ := strings.Cut(p.Field, ".")
	return f.index(cmp.Or(f.aliases[key], key))
}

// aliasesOf lists the other names of a key.
func (f *family) aliasesOf(key string) []string {
	return slices.Sorted(func(yield func(string) bool) {
		for alias, of := range f.aliases {
			if of == key && !yield(alias) {
				return
			}
		}
	})
}

// keyIn returns the key of the family that stands for another family's, by the name that a document with these values has
// for it.
func (f *family) keyIn(values map[string]jsontext.Value, key string) string {
	key = cmp.Or(f.renamed[key], key)
	for _, alias := range f.aliasesOf(key) {
		if values[key] == nil && values[alias] != nil {
			return alias
		}
	}
	return key
}
