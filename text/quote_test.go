package text

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestQuote(t *testing.T) {
	for s, want := range map[string]string{
		"model.norm.weight":            "model.norm.weight",
		"dir/größe-1.safetensors":      "dir/größe-1.safetensors",
		"model.layers.{0..3}.x":        "model.layers.{0..3}.x",
		"\uFFFD":                       "\uFFFD",
		"":                             `""`,
		"a b":                          `"a b"`,
		"it's":                         `"it's"`,
		"`":                            "\"`\"",
		`a"b`:                          `"a\"b"`,
		`a\b`:                          `a\b`,
		`C:\My Models\new`:             `'C:\My Models\new'`,
		`it's\b`:                       `"it's\\b"`,
		"a\\b\n":                       `"a\\b\n"`,
		"a\nb":                         `"a\nb"`,
		"\x1b[2J":                      `"\x1b[2J"`,
		"\xff":                         `"\xff"`,
		"\u00a0":                       `"\u00a0"`,
		"\u202e":                       `"\u202e"`,
		strings.Repeat("x", 200):       strings.Repeat("x", 200),
		strings.Repeat("x", 201):       strings.Repeat("x", 200) + "… (201 bytes)",
		strings.Repeat("é", 150):       strings.Repeat("é", 100) + "… (300 bytes)",
		"x" + strings.Repeat("é", 150): "x" + strings.Repeat("é", 99) + "… (301 bytes)",
		" " + strings.Repeat("x", 300): `" ` + strings.Repeat("x", 199) + `"… (301 bytes)`,
		strings.Repeat("\xbf", 300):    `""… (300 bytes)`,
	} {
		assert.Equal(t, want, Quote(s), "%q", s)
	}
}

func TestWordIsWhole(t *testing.T) {
	long := strings.Repeat("x", 1000)
	assert.Equal(t, long, Word(long))
	assert.Equal(t, `" `+long+`"`, Word(" "+long))
	assert.Equal(t, `""`, Word(""))
}

func TestLiteral(t *testing.T) {
	assert.Equal(t, `"softmax"`, Literal("softmax", 40))
	assert.Equal(t, `""`, Literal("", 40))
	assert.Equal(t, `"a\n"`, Literal("a\n", 2))
	assert.Equal(t, `"a"…`, Literal("a\n", 1))
	assert.Equal(t, `"aé"…`, Literal("aéé", 4))
}

func TestLine(t *testing.T) {
	for s, want := range map[string]string{
		"":                    "",
		`a "word", it's \ é`:  `a "word", it's \ é`,
		"torch\x1b[2K\nPASS":  `torch\x1b[2K\nPASS`,
		"\xff\u00a0\uFFFD\tx": `\xff\u00a0` + "\uFFFD" + `\tx`,
	} {
		assert.Equal(t, want, Line(s))
	}
}

func TestClip(t *testing.T) {
	assert.Equal(t, "abc", Clip("abc", 3))
	assert.Equal(t, "ab…", Clip("abc", 2))
	assert.Equal(t, "…", Clip("é", 1))
	assert.Equal(t, "", Clip("", 0))
}

// FuzzForeignText: whatever goes in, one printable line of limited length comes out.
func FuzzForeignText(f *testing.F) {
	for _, s := range []string{"", "a b", "\x1b\xff\n", strings.Repeat("é\u202e", 200)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, out := range []string{Quote(s), Word(s), Literal(s, 200), Line(s)} {
			require.True(t, Printable(out), "%q", out)
		}
		require.Less(t, len(Quote(s)), 10*maxQuoted)
		require.Equal(t, Printable(s), Line(s) == s)
		require.True(t, utf8.ValidString(Clip(strings.ToValidUTF8(s, ""), 7)))
	})
}
