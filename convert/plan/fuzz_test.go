package plan

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/text"
)

// FuzzLayers: whatever reads as layers is written as what reads the same, and has the
// layers of its ranges.
func FuzzLayers(f *testing.F) {
	for _, list := range []string{"0", "0-3,7", "1, 2-2", "", "3-1", "-", "1048576", "0-1048575", "00-01"} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		l, err := text.ParseSpans(list, "layers")
		if err != nil {
			require.EqualError(t, err, "not layers such as 0-3,7")
			return
		}
		require.NotEmpty(t, l)
		again, err := text.ParseSpans(l.String(), "layers")
		require.NoError(t, err)
		require.Equal(t, l, again)
		for _, r := range l {
			require.LessOrEqual(t, r[0], r[1])
			require.True(t, l.Has(r[0]) && l.Has(r[1]))
		}
	})
}

// FuzzEditDocument: an object that is edited is an object, with what was edited and
// nothing else changed. TestEditDocument has keys of objects within it.
func FuzzEditDocument(f *testing.F) {
	for _, document := range []string{`{}`, `{"a":1}`, "{\n  \"b\": [1, {}],\n  \"a\": null\n}\n", `{"\u0061":"x","c":2}`, ` { "a" : 1 , "b":2 } `} {
		f.Add(document, "a", "b")
	}
	f.Fuzz(func(t *testing.T, document, set, removed string) {
		members := membersOf(document)
		if members == nil || set == removed || !json.Valid([]byte(document)) {
			return
		}
		if _, err := documentMembers([]byte(document)); err != nil {
			return // such as a key that is there twice
		}
		if set != jsonText(t, set) || removed != jsonText(t, removed) {
			return // no key of a document
		}
		for key := range members {
			if strings.HasPrefix(set, key+".") || strings.HasPrefix(removed, key+".") {
				return // a key of an object within it
			}
		}
		edited, err := editDocument([]byte(document), []edit{{set, []byte("7")}, {removed, nil}})
		require.NoError(t, err)
		want := membersOf(document)
		want[set] = json.RawMessage("7")
		delete(want, removed)
		require.Equal(t, texts(want), texts(membersOf(string(edited))), "%s", edited)
	})
}

// membersOf decodes an object by other hands; nil if the document is none.
func membersOf(document string) (members map[string]json.RawMessage) {
	if json.Unmarshal([]byte(document), &members) != nil {
		return nil
	}
	return members
}

// texts are members as text.
func texts(members map[string]json.RawMessage) map[string]string {
	all := map[string]string{}
	for key, value := range members {
		all[key] = string(value)
	}
	return all
}

// jsonText is what becomes of a string as a JSON document.
func jsonText(t *testing.T, s string) (decoded string) {
	b, err := json.Marshal(s)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &decoded))
	return decoded
}
