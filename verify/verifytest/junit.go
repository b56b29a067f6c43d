// Package verifytest holds reports against the formats that they are to have, and records golden packs of what
// dsmoe computes. It is imported by tests and scripts only.
package verifytest

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// element is what the schema says of one: its attributes, what may be in it, and whether
// text may.
type element struct {
	required, optional, children string
	text                         bool
}

// schema is the grammar of junit-10.xsd, the schema of Jenkins' xUnit plugin, for the
// elements that it has beside those of repeated runs. Attributes are strings there, but for
// the time of suites.
var schema = map[string]element{
	"testsuites": {optional: "name time tests failures errors", children: "testsuite"},
	"testsuite": {required: "name tests failures errors",
		optional: "group time skipped timestamp hostname id package file log url",
		children: "testsuite properties testcase system-out system-err"},
	"properties": {children: "property"},
	"property":   {required: "name value"},
	"testcase": {required: "name", optional: "time classname group",
		children: "skipped error failure system-out system-err"},
	"skipped":    {optional: "type message", text: true},
	"error":      {optional: "type message", text: true},
	"failure":    {optional: "type message", text: true},
	"system-out": {text: true},
	"system-err": {text: true},
}

// seconds is the schema's type of the time of suites.
var seconds = regexp.MustCompile(`^(([0-9]{0,3},)*[0-9]{3}|[0-9]{0,3})*(\.[0-9]*)?$`)

// Schema holds a JUnit document against junit-10.xsd, and returns the attributes of the elements
// of each name. The error is the first rule that the document breaks.
func Schema(document string) (found map[string][]map[string]string, err error) {
	found = map[string][]map[string]string{}
	open := []string{}
	d := xml.NewDecoder(strings.NewReader(document))
	for {
		token, err := d.Token()
		switch x := token.(type) {
		case nil:
			if errors.Is(err, io.EOF) && len(open) == 0 {
				return found, nil
			}
			return nil, fmt.Errorf("in %v: %w", open, err)
		case xml.StartElement:
			attributes, err := opened(x, open)
			if err != nil {
				return nil, err
			}
			found[x.Name.Local] = append(found[x.Name.Local], attributes)
			open = append(open, x.Name.Local)
		case xml.EndElement:
			open = open[:len(open)-1]
		case xml.CharData:
			if text := strings.TrimSpace(string(x)); text != "" && (len(open) == 0 || !schema[open[len(open)-1]].text) {
				return nil, fmt.Errorf("in %v: text %.40q", open, text)
			}
		}
	}
}

// opened holds the beginning of an element within others against the schema, and returns its
// attributes.
func opened(x xml.StartElement, within []string) (map[string]string, error) {
	name := x.Name.Local
	rule, ok := schema[name]
	switch {
	case !ok:
		return nil, fmt.Errorf("element %s: not in the schema", name)
	case len(within) == 0 && name != "testsuites":
		return nil, fmt.Errorf("element %s: not a root", name)
	case len(within) > 0 && !slices.Contains(strings.Fields(schema[within[len(within)-1]].children), name):
		return nil, fmt.Errorf("element %s: not allowed within %v", name, within)
	}
	attributes := map[string]string{}
	for _, a := range x.Attr {
		if a.Name.Space != "" || !slices.Contains(strings.Fields(rule.required+" "+rule.optional), a.Name.Local) {
			return nil, fmt.Errorf("element %s: attribute %s: not in the schema", name, a.Name.Local)
		}
		attributes[a.Name.Local] = a.Value
	}
	for _, a := range strings.Fields(rule.required) {
		if _, ok := attributes[a]; !ok {
			return nil, fmt.Errorf("element %s: attribute %s: missing", name, a)
		}
	}
	if v, ok := attributes["time"]; ok && name != "testcase" && !seconds.MatchString(v) {
		return nil, fmt.Errorf("element %s: time %q", name, v)
	}
	return attributes, nil
}
