package gguf

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// metadataOf returns the keys general.* that come from two files, as texts, and the notes on them.
func metadataOf(t *testing.T, readme, generation string) (map[string]string, []string) {
	files := map[string]string{}
	if readme != "" {
		files[cardName] = readme
	}
	if generation != "" {
		files[samplingName] = generation
	}
	files[tokenizerName] = tokenizerJSON(t, coderSplits, map[string]int{"a": 0}, nil)
	values, notes, err := described(t, files)
	require.NoError(t, err)
	got := map[string]string{}
	for key, v := range values {
		switch key {
		case architectureKey, fileTypeKey, "general.type", "general.quantization_version":
			continue
		}
		if rest, is := strings.CutPrefix(key, "general."); is && v.kind == array {
			got[rest] = fmt.Sprint(v.many)
		} else if is {
			got[rest] = fmt.Sprint(v.one)
		}
	}
	if got["name"] == "tiny" {
		delete(got, "name")
	}
	if got["size_label"] == "0.00K" {
		delete(got, "size_label")
	}
	notes = slices.DeleteFunc(notes, func(n string) bool { return n == noTemplate || strings.HasPrefix(n, "no file says which token begins") })
	return got, notes
}

// TestSampling: generation_config.json's parameters become keys; those of another type are
// noted.
func TestSampling(t *testing.T) {
	got, notes := metadataOf(t, "", `{"temperature": 0.5, "top_p": 1, "top_k": 50, "min_p": 0.25, "repetition_penalty": 1.5, "do_sample": true, "mirostat": null, "sequence": "kp"}`)
	require.Equal(t, map[string]string{"sampling.temp": "0.5", "sampling.top_p": "1", "sampling.top_k": "50", "sampling.min_p": "0.25", "sampling.penalty_repeat": "1.5", "sampling.sequence": "kp"}, got)
	require.Empty(t, notes)
	got, _ = metadataOf(t, "", `{"penalty_repeat": 2, "repetition_penalty": 1.5}`)
	require.Equal(t, map[string]string{"sampling.penalty_repeat": "2"}, got)
	got, notes = metadataOf(t, "", `{"temperature": "hot", "top_k": 1.5, "top_p": 1e39, "mirostat": 3000000000}`)
	require.Empty(t, got)
	require.Equal(t, []string{"generation_config.json: top_k is 1.5: it is not written", "generation_config.json: top_p is 1e39: it is not written",
		"generation_config.json: temperature is hot: it is not written", "generation_config.json: mirostat is 3000000000: it is not written"}, notes)
	for _, bad := range []string{"[1]", "{", "NaN", `{"temperature": NaN}`} {
		got, notes = metadataOf(t, "", bad)
		require.Empty(t, got)
		require.Contains(t, notes[0], "generation_config.json cannot be read: no sampling parameters are written")
	}
}

// TestCard: README.md's front matter becomes keys, as gguf-py's Metadata has them;
// scripts/gguf_check.py compares.
func TestCard(t *testing.T) {
	got, notes := metadataOf(t, "---\r\nname: A Name\r\nlicense: [mit, apache-2.0]\nlicense_link: x\nauthor: ~\nmodel_creator: me\nversion: 2.0\ntags:\n- moe\n- 2024\npipeline_tag: text-generation\n"+
		"language: no\nbase_model:\n- deepseek-ai/deepseek-moe-16b-base\n- https://x.org/y\n- own\nurl: u\n---\nname: not this\n", "")
	require.Equal(t, map[string]string{"name": "A Name", "license": "mit,apache-2.0", "license.link": "x", "author": "me", "version": "2.0", "tags": "[moe 2024 text-generation]", "languages": "[no]",
		"base_model.count": "3", "base_model.0.name": "deepseek-moe-16b-base", "base_model.0.organization": "deepseek-ai",
		"base_model.0.repo_url": "https://huggingface.co/deepseek-ai/deepseek-moe-16b-base", "base_model.1.name": "https://x.org/y", "base_model.2.name": "own", "source.url": "u"}, got)
	require.Equal(t, []string{"the front matter of README.md goes into the keys general.*, nothing else of the file"}, notes)
	for _, none := range []string{"", "# A model\n", "---", "\ufeff---\nname: x\n---\n", "--- \nname: x\n---\n", "---\n---\n"} {
		got, notes := metadataOf(t, none, "")
		require.Empty(t, got, none)
		require.Empty(t, notes, none)
	}
}

// TestHostileCard: a front matter that is huge, has aliases or wrong types is ignored, wholly or where
// it is wrong, with a note.
func TestHostileCard(t *testing.T) {
	for front, want := range map[string]string{
		"a: &a [x]\nb: [*a, *a]\n":  "is ignored: it has an alias",
		"tags: &t [*t]\n":           "is ignored: it has an alias",
		"- a\n":                     "is ignored: it is not a mapping",
		"name\n":                    "is ignored: it is not a mapping",
		"name: [unclosed\n":         "is ignored: \"yaml:",
		"name: \"\xff\"\n":          "is ignored: \"yaml:",
		"name: {a: b}\n":            "a list or a mapping where a text is expected: name is not written",
		"license: {a: b}\n":         "expected: license is not written",
		"tags: [[a]]\n":             "expected: tags is not written",
		"base_model: {a: b}\n":      "expected: base_model is not written",
		"base_model: [{name: a}]\n": "expected: base_model is not written",
		"base_model: [[a]]\n":       "expected: base_model is not written",
		"base_model: [a" + strings.Repeat(",a", 1000) + "]\n": "names 1001 in base_model, more than 1000",
		"name: " + strings.Repeat("x", maxCard) + "\n":        "has more than 1.00 MiB: it is ignored",
		strings.Repeat("[", 20000) + "\n":                     "is ignored: \"yaml:",
	} {
		got, notes := metadataOf(t, "---\n"+front+"---\n", "")
		for key := range got {
			require.Contains(t, key, "base_model", front[:min(len(front), 40)])
		}
		require.Contains(t, strings.Join(notes, "\n"), want)
	}
	tokens := tokenizerJSON(t, coderSplits, map[string]int{"a": 0}, nil)
	_, _, err := described(t, map[string]string{cardName: "---\nname: x\n---\n" + strings.Repeat("long\n", maxCard), tokenizerName: tokens})
	require.NoError(t, err, "a long text behind the front matter")
	_, _, err = described(t, map[string]string{tokenizerName: tokens, settingsName: `{"chat_template": [{"name": "` + strings.Repeat("x", maxKey) + `", "template": "t"}]}`})
	require.ErrorContains(t, err, "the keys of the output", "what no reader takes is not written")
}

// TestHostileName: a name in README.md leads out of no directory, hides no file and is no option.
func TestHostileName(t *testing.T) {
	for name, want := range map[string]string{
		"../../evil": "evil", ".hid\nden\x1b[31m": "hid-den-[31m", "--help": "help", "...": "ggml-model", "A Name": "A-Name", strings.Repeat("é", 200): strings.Repeat("é", 75),
	} {
		disk := fstest.MapFS{cardName: {Data: fmt.Appendf(nil, "---\nname: %q\n---\n", name)}}
		d := description(t, disk)
		d.Type, d.Name, d.NoVocab = "F32", "tiny", true
		made, err := describe(d)
		require.NoError(t, err)
		got, _, _ := strings.Cut(made.Stem, "-0.00K")
		require.Equal(t, want, strings.TrimSuffix(got, "-F32"))
	}
}

// FuzzCard: no front matter makes a file that its reader refuses.
func FuzzCard(f *testing.F) {
	for _, seed := range []string{"name: x\n", "base_model: [a/b, {name: c}]\n", "tags: &a [b]\nlanguage: *a\n", "license: !!binary aGk=\n", "? {a: b}\n: c\n", "<<: {name: x}\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, front string) {
		_, _, err := described(t, map[string]string{cardName: "---\n" + front + "\n---\n",
			tokenizerName: tokenizerJSON(t, coderSplits, map[string]int{"a": 0}, nil)})
		require.NoError(t, err)
	})
}
