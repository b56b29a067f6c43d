package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hostile documents, with a part of the cause.
var hostile = map[string]struct{ text, want string }{
	"empty":                  {``, `the document is empty`},
	"white space":            {" \n", `the document is empty`},
	"null":                   {`null`, `the document is null, not an object`},
	"array":                  {`[{"model_type":"deepseek"}]`, `the document is an array, not an object`},
	"string":                 {`"deepseek"`, `the document is a string, not an object`},
	"number":                 {`1`, `the document is a number, not an object`},
	"byte order mark":        {"\ufeff" + `{"model_type":"deepseek"}`, `byte 0: a byte order mark (BOM), which JSON does not allow; save the file as UTF-8 without one`},
	"git-lfs pointer":        {"version https://git-lfs.github.com/spec/v1\n", `byte 0: invalid character 'v'`},
	"truncated":              {`{"model_type":"deepseek"`, `byte 24: unexpected EOF`},
	"truncated in a value":   {`{"model_type":"deep`, `unexpected EOF`},
	"trailing garbage":       {`{"model_type":"deepseek"} x`, `"x" follows the document at byte 26`},
	"trailing NUL":           {`{"model_type":"deepseek"}` + "\x00", `"\x00" follows the document at byte 25`},
	"second document":        {`{"model_type":"deepseek"}{}`, `"{}" follows the document at byte 25`},
	"trailing comma":         {`{"model_type":"deepseek",}`, `byte 24: invalid character`},
	"comment":                {`{"model_type":"deepseek"/**/}`, `byte 24: invalid character '/'`},
	"NaN":                    {`{"model_type":"deepseek","rms_norm_eps":NaN}`, `byte 40: invalid character 'N'`},
	"Infinity":               {`{"model_type":"deepseek","rms_norm_eps":-Infinity}`, `invalid character 'I'`},
	"leading zero":           {`{"model_type":"deepseek","hidden_size":064}`, `invalid character '6'`},
	"key not a string":       {`{1:2}`, `byte 1: `},
	"duplicate":              {`{"model_type":"deepseek","hidden_size":32,"hidden_size":64}`, `key "hidden_size" appears twice`},
	"duplicate by escape":    {`{"model_type":"deepseek","hidden_size":32,"hidden\u005fsize":64}`, `key "hidden_size" appears twice`},
	"duplicate of model":     {`{"model_type":"deepseek","model_type":"llama"}`, `key "model_type" appears twice`},
	"nested duplicate":       {`{"model_type":"deepseek","x":[{"a":{"b":1,"b":1}}]}`, `key "b" appears twice`},
	"duplicate in scaling":   {`{"model_type":"deepseek","rope_scaling":{"type":"linear","factor":2.0,"factor":3.0}}`, `key "factor" appears twice`},
	"invalid UTF-8":          {"{\"model_type\":\"deepseek\",\"x\":\"\xff\"}", `invalid UTF-8`},
	"invalid UTF-8 in a key": {"{\"model_type\":\"deepseek\",\"\xc3\x28\":1}", `invalid UTF-8`},
	"lone surrogate":         {`{"model_type":"deepseek","x":"\ud800"}`, `surrogate`},
	"lone surrogate in key":  {`{"model_type":"deepseek","\udc00":1}`, `surrogate`},
	"raw control character":  {"{\"model_type\":\"deepseek\",\"x\":\"\n\"}", `invalid character`},
	"long duplicate":         {`{"` + strings.Repeat("k", 500) + `":1,"` + strings.Repeat("k", 500) + `":1}`, `key "` + strings.Repeat("k", 40) + `"… appears twice`},
	"deep":                   {`{"x":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`, `nested deeper than 64 levels at byte 69`},
	"very deep":              {`{"x":` + strings.Repeat(`{"a":`, 1<<20), `nested deeper than 64 levels`},
}

func TestHostileDocuments(t *testing.T) {
	for name, test := range hostile {
		t.Run(name, func(t *testing.T) {
			got := problems(t, test.text)
			require.Len(t, got, 1)
			assert.Empty(t, got[0].Field)
			assert.Contains(t, got[0].Cause, test.want)
			assert.Less(t, len(got[0].Cause), 200)
		})
	}
}

func TestLimits(t *testing.T) {
	const head = `{"model_type":"deepseek"`
	many := head + strings.Repeat(" ", MaxSize-len(head)-1) + "}"
	_, err := Parse(strings.NewReader(many))
	require.NoError(t, err)
	_, err = Parse(strings.NewReader(many + " "))
	assert.EqualError(t, err, `larger than 16.00 MiB`)

	deep := head + `,"x":` + strings.Repeat("[", 63) + strings.Repeat("]", 63) + "}"
	_, err = Parse(strings.NewReader(deep))
	require.NoError(t, err)
}

func TestTooManyKeys(t *testing.T) {
	const name = `"model_type":"deepseek"`
	keys := func(n int) string {
		var text strings.Builder
		for i := range n {
			fmt.Fprintf(&text, `,"%x":0`, i)
		}
		return text.String()[1:]
	}
	for where, text := range map[string]struct{ ok, tooMany string }{
		"top":    {"{" + name + "," + keys(maxKeys-1) + "}", "{" + name + "," + keys(maxKeys) + "}"},
		"nested": {"{" + name + `,"x":[{` + keys(maxKeys) + "}]}", "{" + name + `,"x":[{` + keys(maxKeys+1) + "}]}"},
	} {
		t.Run(where, func(t *testing.T) {
			_, err := Parse(strings.NewReader(text.ok))
			require.NoError(t, err)
			got := problems(t, text.tooMany)
			require.Len(t, got, 1)
			assert.Contains(t, got[0].Cause, "an object has more than 65536 keys at byte ")
		})
	}
}
