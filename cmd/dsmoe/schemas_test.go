package main

import (
	"bytes"
	"encoding"
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/jsonschema-go/jsonschema"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/config"
	"dsmoe/convert/operation"
	"dsmoe/inspect/matrix"
)

var update = flag.Bool("update", false, "TestSchemas writes docs/schemas, TestPicture docs/images")

// TestSchemas: docs/schemas has the schema of each document, as the Go types give it, and no other file;
// docs/json.md has a link to each.
func TestSchemas(t *testing.T) {
	dir := filepath.Join("..", "..", "docs", "schemas")
	var want []string
	page := readPage(t, filepath.Join("docs", "json.md"))
	for _, d := range allDocuments() {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		require.NoError(t, e.Encode(schemaOf(t, d)))
		file := filepath.Join(dir, schemaFile(d.Schema))
		if want = append(want, file); *update {
			require.NoError(t, os.WriteFile(file, b.Bytes(), 0o666))
		}
		assert.Contains(t, page.prose, "["+strings.TrimPrefix(d.Schema, "dsmoe.")+"](schemas/"+schemaFile(d.Schema)+")")
		committed, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.True(t, bytes.Equal(committed, b.Bytes()),
			"%s is not what the Go types give; go test ./cmd/dsmoe -run TestSchemas -update writes it", file)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	assert.ElementsMatch(t, want, files)
}

// allDocuments are the documents of all commands.
func allDocuments() cli.Documents {
	all := slices.Concat(cli.ErrorDocuments, verifyDocuments, convertDocuments, diffDocuments, synthDocuments,
		demoDocuments, versionDocuments, summaryInspection().documents)
	for _, i := range inspections() {
		all = append(all, i.documents...)
	}
	return all
}

// schemaFile names the file of a schema: dsmoe.inspect.ls/1 is inspect.ls.json.
func schemaFile(schema string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(schema, "dsmoe."), "/")
	return name + ".json"
}

// object is a JSON object: a schema, or a part of one.
type object = map[string]any

// schemas makes the JSON Schemas of Go types as package json writes them.
type schemas struct {
	t        *testing.T
	defs     object
	comments map[string]map[string]string // package -> Type.Field -> its comment
}

func schemaOf(t *testing.T, d cli.Document) object {
	s := schemas{t: t, defs: object{}, comments: map[string]map[string]string{}}
	root := d.Of
	if root.Kind() == reflect.Pointer {
		root = root.Elem()
	}
	o := s.structure(root)
	o["properties"].(object)["schema"] = object{"const": d.Schema}
	o["required"] = append([]string{"schema"}, o["required"].([]string)...)
	o["$schema"], o["title"], o["$defs"] = "https://json-schema.org/draft/2020-12/schema", d.Schema, s.defs
	return o
}

// operations are the types that a plan's operation can have.
var operations = []reflect.Type{reflect.TypeFor[operation.Cast](), reflect.TypeFor[operation.Copy](),
	reflect.TypeFor[operation.Dequantise](), reflect.TypeFor[operation.DequantiseBlocks](),
	reflect.TypeFor[operation.Encode](), reflect.TypeFor[operation.Make](), reflect.TypeFor[operation.Narrow](),
	reflect.TypeFor[operation.Quantise](), reflect.TypeFor[operation.Scales]()}

// of returns the schema of the values of a type.
func (s *schemas) of(t reflect.Type) object {
	switch {
	case t == reflect.TypeFor[config.Config]():
		return object{"type": "object"} // a config.json
	case t == reflect.TypeFor[jsontext.Value]():
		return object{} // a value of a config.json
	case t == reflect.TypeFor[matrix.Cosines]():
		return s.of(reflect.TypeFor[[][]float64]())
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return object{"type": "string"}
	case t.Implements(reflect.TypeFor[json.Marshaler]()):
		s.t.Fatalf("%s: what does it write?", t)
	}
	switch t.Kind() {
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Float32, reflect.Float64:
		return object{"type": []string{"number", "null"}} // null: not finite
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return object{"type": "integer"}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return object{"type": "integer", "minimum": 0}
	case reflect.Slice, reflect.Array:
		return object{"type": "array", "items": s.of(t.Elem())}
	case reflect.Map:
		return object{"type": []string{"object", "null"}, "additionalProperties": s.of(t.Elem())}
	case reflect.Pointer:
		o := s.of(t.Elem())
		if types, ok := o["type"].([]string); ok && slices.Contains(types, "null") {
			return o
		}
		return object{"anyOf": []object{o, {"type": "null"}}}
	case reflect.Interface:
		return s.choice(t)
	case reflect.Struct:
		return s.reference(t)
	}
	s.t.Fatalf("%s has no schema", t)
	return nil
}

// choice is the schema of an interface.
func (s *schemas) choice(t reflect.Type) object {
	if t != reflect.TypeFor[operation.Operation]() {
		return object{"type": "object"} // the options of a plan
	}
	var all []object
	for _, o := range operations {
		all = append(all, s.of(o))
	}
	return object{"anyOf": all}
}

// reference is the schema of a struct, which stands in $defs.
func (s *schemas) reference(t reflect.Type) object {
	if t.Name() == "" {
		return s.structure(t)
	}
	name := strings.ReplaceAll(strings.TrimPrefix(t.PkgPath(), "dsmoe/"), "/", ".") + "." + t.Name()
	if _, known := s.defs[name]; !known {
		s.defs[name] = nil // a struct may hold itself
		s.defs[name] = s.structure(t)
	}
	return object{"$ref": "#/$defs/" + name}
}

// structure is the schema of a struct: its members, no others.
func (s *schemas) structure(t reflect.Type) object {
	properties, required := object{}, []string{}
	s.members(t, properties, &required)
	return object{"type": "object", "properties": properties, "required": required, "additionalProperties": false}
}

// members adds the members of a struct, those of embedded structs among them.
func (s *schemas) members(t reflect.Type, properties object, required *[]string) {
	for f := range t.Fields() {
		tag, tagged := f.Tag.Lookup("json")
		name, options, _ := strings.Cut(tag, ",")
		switch {
		case f.Anonymous && !tagged:
			for f.Type.Kind() == reflect.Pointer {
				f.Type = f.Type.Elem()
			}
			s.members(f.Type, properties, required)
			continue
		case name == "-" || !f.IsExported():
			continue
		}
		require.NotEmpty(s.t, name, "%s.%s", t, f.Name)
		optional := strings.HasPrefix(options, "omit")
		if optional && f.Type.Kind() == reflect.Pointer {
			f.Type = f.Type.Elem()
		}
		member := s.of(f.Type)
		if comment := s.comment(t, f.Name); comment != "" {
			member["description"] = comment
		}
		if properties[name] = member; !optional {
			*required = append(*required, name)
		}
	}
}

// comment returns the comment of a field.
func (s *schemas) comment(t reflect.Type, field string) string {
	pkg := strings.TrimPrefix(t.PkgPath(), "dsmoe/")
	if _, parsed := s.comments[pkg]; !parsed {
		s.comments[pkg] = fieldComments(s.t, filepath.Join("..", "..", filepath.FromSlash(pkg)))
	}
	return s.comments[pkg][t.Name()+"."+field]
}

// fieldComments returns the comments of the fields of a package's structs, by Type.Field.
func fieldComments(t *testing.T, dir string) map[string]string {
	comments := map[string]string{}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		require.NoError(t, err)
		for n := range ast.Preorder(file) {
			spec, is := n.(*ast.TypeSpec)
			if !is {
				continue
			}
			if st, is := spec.Type.(*ast.StructType); is {
				for _, f := range st.Fields.List {
					comment := strings.Join(strings.Fields(f.Doc.Text()+" "+f.Comment.Text()), " ")
					for _, n := range f.Names {
						comments[spec.Name.Name+"."+n.Name] = comment
					}
				}
			}
		}
	}
	return comments
}

// schemaChecker holds documents against the committed schemas, and knows which it has seen.
type schemaChecker struct {
	sync.Mutex
	resolved map[string]*jsonschema.Resolved
	seen     map[string]bool
	scripts  atomic.Int64 // that have begun
}

func newSchemaChecker(t *testing.T) *schemaChecker {
	c := &schemaChecker{resolved: map[string]*jsonschema.Resolved{}, seen: map[string]bool{}}
	for _, d := range allDocuments() {
		data, err := os.ReadFile(filepath.Join("..", "..", "docs", "schemas", schemaFile(d.Schema)))
		require.NoError(t, err)
		var schema jsonschema.Schema
		require.NoError(t, json.Unmarshal(data, &schema))
		c.resolved[d.Schema], err = schema.Resolve(nil)
		require.NoError(t, err)
	}
	return c
}

// check holds a JSON document that a command has printed against its schema.
func (c *schemaChecker) check(ts *testscript.TestScript, args []string, stdout string) {
	if !strings.HasPrefix(stdout, "{") {
		return
	}
	var v object
	ts.Check(json.Unmarshal([]byte(stdout), &v))
	name, _ := v["schema"].(string)
	c.Lock()
	defer c.Unlock()
	if c.resolved[name] == nil {
		ts.Fatalf("a document of schema %q", name)
	}
	ts.Check(c.resolved[name].Validate(v))
	c.seen[name] = true
}

// finish demands a document of each schema, if all scripts were run.
func (c *schemaChecker) finish(t *testing.T) {
	scripts, err := filepath.Glob(filepath.Join("testdata", "*.txtar"))
	require.NoError(t, err)
	if int(c.scripts.Load()) == len(scripts) {
		for _, d := range allDocuments() {
			assert.True(t, c.seen[d.Schema], "no script prints a %s", d.Schema)
		}
	}
}
