package plan

// Editing config.json without changing a byte elsewhere.

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// edit is a change to one key of a JSON object; a nil value removes the key.
type edit struct {
	key   string
	value []byte
}

// documentMember is a key of a JSON object with its value, as places in the text.
type documentMember struct {
	key   string
	start int // of the key, with its quotation mark
	value int // where the value begins
	end   int // the byte behind the value
}

// editDocument applies edits to the object in document, which is valid JSON. It adds missing
// keys at the end. A key such as "moe.num_experts" is one of the object moe in it.
func editDocument(document []byte, edits []edit) ([]byte, error) {
	members, err := documentMembers(document)
	if err != nil || len(edits) == 0 {
		return document, err
	}
	for _, m := range members {
		var inside, others []edit
		for _, e := range edits {
			if key, ok := strings.CutPrefix(e.key, m.key+"."); ok {
				inside = append(inside, edit{key, e.value})
			} else {
				others = append(others, e)
			}
		}
		if inside == nil {
			continue
		}
		changed, err := editDocument(document[m.value:m.end], inside)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.key, err)
		}
		edits = append(others, edit{m.key, changed})
	}
	if len(members) == 0 {
		return append(appendMembers([]byte("{"), "", edits, true), "}\n"...), nil
	}
	out := bytes.Clone(document[:members[0].start])
	separator, kept := "", 0
	for i, m := range members {
		if i > 0 {
			separator = string(document[members[i-1].end:m.start])
		}
		value := document[m.value:m.end]
		if j := slices.IndexFunc(edits, func(e edit) bool { return e.key == m.key }); j >= 0 {
			value = edits[j].value
			edits = slices.Delete(slices.Clone(edits), j, j+1)
		}
		if value == nil {
			continue
		}
		if kept > 0 {
			out = append(out, separator...)
		}
		out = append(append(out, document[m.start:m.value]...), value...)
		kept++
	}
	before := document[:members[0].start]
	out = appendMembers(out, string(before[len(bytes.TrimRight(before, " \t\r\n")):]), edits, kept == 0)
	return append(out, document[members[len(members)-1].end:]...), nil
}

// appendMembers adds the keys that edits set.
func appendMembers(out []byte, indent string, edits []edit, first bool) []byte {
	for _, e := range edits {
		if e.value == nil {
			continue
		}
		if !first {
			out = append(out, ',')
			out = append(out, indent...)
		}
		out, _ = jsontext.AppendQuote(out, e.key)
		out = append(append(out, ": "...), e.value...)
		first = false
	}
	return out
}

// documentMembers finds the members of the object in document.
func documentMembers(document []byte) (members []documentMember, err error) {
	d := jsontext.NewDecoder(bytes.NewReader(document))
	if d.PeekKind() != '{' {
		return nil, errors.New("not an object")
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, err
	}
	for d.PeekKind() != '}' {
		key, err := d.ReadValue()
		if err != nil {
			return nil, err
		}
		m := documentMember{start: int(d.InputOffset()) - len(key)}
		name, _ := jsontext.AppendUnquote(nil, key)
		m.key = string(name)
		value, err := d.ReadValue()
		if err != nil {
			return nil, err
		}
		m.end = int(d.InputOffset())
		m.value = m.end - len(value)
		members = append(members, m)
	}
	return members, nil
}
