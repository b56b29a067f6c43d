package gguf

// The keys general.* of a file to be written that come from generation_config.json and from
// the front matter of README.md, as metadata.py of gguf-py writes them.

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"dsmoe/convert/format"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// The files of the metadata.
const (
	samplingName = "generation_config.json"
	cardName     = "README.md"
)

// metadata writes the keys general.* that describe the model.
func (w *keyWriter) metadata(d format.Description) (notes []string) {
	notes, c := w.sampling(d), readCard(d)
	defaults := map[string]string{nameKey: d.Name, sizeKey: sizeLabel(d.Tensors)}
	for _, s := range singles {
		value := cmp.Or(c.single(s.fields...), defaults[s.key])
		if s.key == nameKey {
			value = cmp.Or(d.Named, value)
		}
		w.putSome(s.key, value)
	}
	models := c.list("base_model") // as the hub names them: ORGANIZATION/NAME
	if len(models) > maxBaseModels {
		c.note("names %d in base_model, more than %d: they are not written", len(models), maxBaseModels)
		models = nil
	}
	if len(models) > 0 {
		w.put("general.base_model.count", uint32(len(models)))
	}
	for i, name := range models {
		prefix := fmt.Sprintf("general.base_model.%d.", i)
		organization, model, inHub := strings.Cut(name, "/")
		if !inHub || strings.Contains(model, "/") { // a directory, or an address
			w.put(prefix+"name", name)
			continue
		}
		w.put(prefix+"name", model)
		w.putSome(prefix+"organization", organization)
		w.put(prefix+"repo_url", "https://huggingface.co/"+name)
	}
	w.putSome("general.tags", c.list("tags", "pipeline_tag"))
	w.putSome("general.languages", c.list("languages", "language"))
	return append(notes, c.notes...)
}

// samplers are the keys of recommended samplers, and their fields in generation_config.json: the first that is there
// counts.
var samplers = []struct {
	key    string
	kind   kind
	ollama string // the parameter of a Modelfile; empty if Ollama has none
	fields []string
}{
	{"sequence", str, "", []string{"sequence"}}, {"top_k", i32, "top_k", []string{"top_k"}}, {"top_p", f32, "top_p", []string{"top_p"}},
	{"min_p", f32, "min_p", []string{"min_p"}}, {"xtc_probability", f32, "", []string{"xtc_probability"}},
	{"xtc_threshold", f32, "", []string{"xtc_threshold"}}, {"temp", f32, "temperature", []string{"temperature"}},
	{"penalty_last_n", i32, "repeat_last_n", []string{"penalty_last_n"}},
	{"penalty_repeat", f32, "repeat_penalty", []string{"penalty_repeat", "repetition_penalty"}}, {"mirostat", i32, "", []string{"mirostat"}},
	{"mirostat_tau", f32, "", []string{"mirostat_tau"}}, {"mirostat_eta", f32, "", []string{"mirostat_eta"}},
}

// sampling writes the recommended samplers.
func (w *keyWriter) sampling(d format.Description) (notes []string) {
	data := slurp(d, samplingName)
	if data == nil {
		return nil
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(data, &fields); err != nil {
		return []string{samplingName + " cannot be read: no sampling parameters are written: " + text.Line(text.JSONCause(data, err))}
	}
	for _, s := range samplers {
		i := slices.IndexFunc(s.fields, func(f string) bool { return fields[f] != nil })
		if i < 0 || string(fields[s.fields[i]]) == "null" {
			continue
		}
		raw, key := fields[s.fields[i]], "general.sampling."+s.key
		var word string
		var whole int32
		var number float64
		switch {
		case s.kind == str && json.Unmarshal(raw, &word) == nil:
			w.put(key, word)
		case s.kind == i32 && json.Unmarshal(raw, &whole) == nil:
			w.put(key, whole)
		case s.kind == f32 && json.Unmarshal(raw, &number) == nil && !math.IsInf(float64(float32(number)), 0):
			w.put(key, float32(number))
		default: // another type, or out of range
			notes = append(notes, fmt.Sprintf("%s: %s is %s: it is not written", samplingName, s.fields[i],
				text.Quote(strings.Trim(string(raw), `"`))))
		}
	}
	return notes
}

// singles are the keys with one text, and their fields in the front matter, the first
// that has a value.
var singles = []struct {
	key    string
	fields []string
}{
	{nameKey, []string{"name", "model_name"}},
	{"general.author", []string{"author", "model_author", "model_creator"}},
	{versionKey, []string{"version", "model_version"}},
	{"general.organization", []string{"organization", "model_organization"}},
	{finetuneKey, []string{"finetune", "model_finetune"}},
	{baseKey, []string{"basename", "model_basename", "model_type"}},
	{"general.description", []string{"description", "model_description"}},
	{sizeKey, []string{"size_label", "model_size_label"}},
	{"general.license", []string{licenseField}},
	{"general.license.name", []string{"license_name"}},
	{"general.license.link", []string{"license_link"}},
	{"general.source.url", []string{"url", "model_url"}},
	{"general.source.doi", []string{"doi", "model_doi"}},
	{"general.source.uuid", []string{"uuid", "model_uuid"}},
	{"general.source.repo_url", []string{"repo_url", "model_repo_url"}},
}

// licenseField is the one field with one key that may be a list.
const licenseField = "license"

// card is the front matter of README.md.
type card struct {
	fields map[string]*yaml.Node
	notes  []string
}

// maxCard bounds a front matter in bytes: tables of results are the longest, and have some
// hundred KiB.
const maxCard = 1 << 20

// readCard reads the front matter. One that cannot be read is ignored with a note.
func readCard(d format.Description) (c card) {
	data := firstBytes(d, cardName, maxCard)
	front, rest, found := strings.Cut(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(data)), "\n")
	if front != "---" || !found {
		return c
	}
	front, _, found = strings.Cut("\n"+rest+"\n", "\n---\n")
	if !found && len(data) > maxCard {
		c.note("has more than %s: it is ignored", text.Bytes(maxCard))
		return c
	}
	var document yaml.Node
	err := yaml.Unmarshal([]byte(strings.ReplaceAll(front, "\t", "  ")), &document)
	switch {
	case err != nil:
		c.note("is ignored: %s", text.Quote(err.Error()))
	case document.Kind == 0: // empty
	case document.Content[0].Kind != yaml.MappingNode:
		c.note("is ignored: it is not a mapping")
	case hasAlias(&document):
		c.note("is ignored: it has an alias (*name), which could make it larger than it is")
	default:
		c.note("goes into the keys general.*, nothing else of the file")
		c.fields = map[string]*yaml.Node{}
		pairs := document.Content[0].Content
		for i := 0; i+1 < len(pairs); i += 2 {
			c.fields[pairs[i].Value] = pairs[i+1] // of several with one name the last counts
		}
	}
	return c
}

// hasAlias reports whether a node, or one below it, is an alias.
func hasAlias(n *yaml.Node) bool {
	return n.Kind == yaml.AliasNode || slices.ContainsFunc(n.Content, hasAlias)
}

func (c *card) note(what string, args ...any) {
	c.notes = append(c.notes, "the front matter of "+cardName+" "+fmt.Sprintf(what, args...))
}

// isNull reports whether a field is missing or null.
func isNull(n *yaml.Node) bool {
	return n == nil || n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

// scalar returns a value as it is spelled; a list or a mapping gets a note.
func (c *card) scalar(field string, n *yaml.Node) string {
	switch {
	case isNull(n):
		return ""
	case n.Kind != yaml.ScalarNode:
		c.note("has a list or a mapping where a text is expected: %s is not written", text.Quote(field))
		return ""
	}
	return n.Value
}

// single is the text of the first of the fields that is not null; a list of licenses is
// joined with commas.
func (c *card) single(fields ...string) string {
	for _, field := range fields {
		n := c.fields[field]
		switch {
		case isNull(n):
		case field == licenseField:
			return strings.Join(c.list(field), ",")
		default:
			return c.scalar(field, n)
		}
	}
	return ""
}

// list joins the values of several fields.
func (c *card) list(fields ...string) (values []string) {
	for _, field := range fields {
		items := []*yaml.Node{c.fields[field]} // a single value, or the values of a list
		if n := items[0]; n != nil && n.Kind == yaml.SequenceNode {
			items = n.Content
		}
		for _, n := range items {
			if s := c.scalar(field, n); s != "" {
				values = append(values, s)
			}
		}
	}
	return values
}

// maxBaseModels bounds base_model: a file has 65,536 keys at most, and each model takes three.
const maxBaseModels = 1000

// maxTokenizer is the most bytes that a file of a tokenizer may have.
const maxTokenizer = 64 << 20

// readJSON decodes a file beside the weights; found is false if it is missing.
func readJSON(d format.Description, name string, into any) (found bool) {
	data := slurp(d, name)
	if data == nil {
		return false
	}
	if err := json.Unmarshal(data, into); err != nil {
		format.Fail(problem.New(name, "cannot be read: "+text.JSONCause(data, err), ""))
	}
	return true
}

// slurp returns the bytes of a file beside the weights, nil if it is missing.
func slurp(d format.Description, name string) []byte {
	data := firstBytes(d, name, maxTokenizer)
	if len(data) > maxTokenizer {
		format.Fail(problem.New(name, "has more than "+text.Bytes(maxTokenizer), ""))
	}
	if err := format.Substitute(name, data); err != nil {
		format.Fail(err)
	}
	return data
}

// firstBytes returns the first bytes of a file beside the weights, limit + 1 at most; nil if it is
// missing.
func firstBytes(d format.Description, name string, limit int64) (data []byte) {
	if d.Open == nil {
		return nil
	}
	f, err := d.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		defer f.Close()
		data, err = io.ReadAll(io.LimitReader(f, limit+1))
	}
	if err != nil {
		format.Fail(err)
	}
	return data
}
