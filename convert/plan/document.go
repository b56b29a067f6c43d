package plan

// Changing config.json without touching a byte of what stays.

import (
	"bytes"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// edit is a change to one key of a JSON object; a nil value removes the key.
type edit struct {
	key   string
	value []byte
}

// documentMember is a key of a JSON object with its value, as places in the text.
type documentMember struct {
	key               string
	start, value, end int
}

// editDocument applies edits to the object in text, which is valid JSON. Keys that
// are not there are added at the end, unless they are to be removed.
func editDocument(text []byte, edits []edit) ([]byte, error) {
	members, err := documentMembers(text)
	if err != nil || len(edits) == 0 {
		return text, err
	}
	if len(members) == 0 {
		return append(appendMembers([]byte("{"), "", edits, true), "}\n"...), nil
	}
	out := bytes.Clone(text[:members[0].start])
	separator, kept := "", 0
	for i, m := range members {
		if i > 0 {
			separator = string(text[members[i-1].end:m.start])
		}
		value := text[m.value:m.end]
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
		out = append(append(out, text[m.start:m.value]...), value...)
		kept++
	}
	out = appendMembers(out, indentOf(text, members[0].start), edits, kept == 0)
	return append(out, text[members[len(members)-1].end:]...), nil
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

// indentOf returns the white space before the first key.
func indentOf(text []byte, start int) string {
	space := text[:start]
	return string(space[len(bytes.TrimRight(space, " \t\r\n")):])
}

// documentMembers finds the members of the object in text.
func documentMembers(text []byte) (members []documentMember, err error) {
	d := jsontext.NewDecoder(bytes.NewReader(text))
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
