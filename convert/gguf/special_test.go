package gguf

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"dsmoe/config"
	"dsmoe/text/problem"
)

// specialTokens are added tokens, all special, from number 2 on.
var specialTokens = []string{"<s>", "</s>", "<sep>", "<mask>", "<end>", "<cls>", "<unk>"}

// withProcessor is a tokenizer.json with a post-processor.
func withProcessor(t *testing.T, processor string) string {
	var added []map[string]any
	for i, content := range specialTokens {
		added = append(added, map[string]any{"id": 2 + i, "content": content, "special": true})
	}
	var document map[string]any
	require.NoError(t, json.Unmarshal([]byte(tokenizerJSON(t, coderSplits, map[string]int{"a": 0, "b": 1}, nil, added...)), &document))
	document["post_processor"] = json.RawMessage(processor)
	b, err := json.Marshal(document)
	require.NoError(t, err)
	return string(b)
}

// template is a TemplateProcessing; a name in angle brackets is a token, and others are texts.
func template(single, pair string) string {
	return fmt.Sprintf(`{"type": "TemplateProcessing", "single": %s, "pair": %s}`, pieces(single), pieces(pair))
}

func pieces(list string) string {
	out := []map[string]any{}
	for _, id := range strings.Fields(list) {
		kind := map[bool]string{true: "SpecialToken", false: "Sequence"}[id[0] == '<']
		out = append(out, map[string]any{kind: map[string]any{"id": id, "type_id": 0}})
	}
	b, _ := json.Marshal(out)
	return string(b)
}

// TestMeanings: the tokens with a meaning, and those that llama.cpp adds, are what llama.cpp's
// SpecialVocab makes of the post-processor and the configs; scripts/gguf_check.py compares.
func TestMeanings(t *testing.T) {
	const null, named = "null", `"bos_token": "<s>", "eos_token": "</s>"`
	byteLevel := `{"type": "ByteLevel"}`
	for name, c := range map[string]struct{ processor, settings, want string }{
		"nothing":              {null, named, "bos 2 eos 3"},
		"bytes":                {byteLevel, named, "bos 2 eos 3 +bos=false +eos=false"},
		"bytes, config true":   {byteLevel, named + `, "add_bos_token": true`, "bos 2 eos 3 +bos=true +eos=false"},
		"bos":                  {template("<s> A", "<s> A <s> B"), named, "bos 2 eos 3 +bos=true +sep=false"},
		"bos in a sequence":    {`{"type": "Sequence", "processors": [` + byteLevel + "," + template("<s> A", "A B") + "]}", named, "bos 2 eos 3 +bos=true +eos=false"},
		"bos, config false":    {template("<s> A </s>", "A B"), named + `, "add_bos_token": false, "add_eos_token": false`, "bos 2 eos 3 +bos=true +eos=true"},
		"eos, config true":     {template("A </s>", "A B"), named + `, "add_bos_token": true`, "bos 2 eos 3 +bos=true +eos=true"},
		"tokens as objects":    {template("<s> A </s>", "A B"), `"bos_token": {"content": "<s>"}, "eos_token": {"content": "</s>"}, "cls_token": "<cls>"`, "bos 2 eos 3 eot 3 +bos=true +eos=true"},
		"another end":          {template("<s> A <end>", "A B"), named, "bos 2 eos 6 eot 3 +bos=true +eos=true"},
		"two other ends":       {`{"type": "Sequence", "processors": [` + template("A <end>", "A B") + "," + template("A <unk>", "A B") + "]}", named, "bos 2 eos 8 eot 3 eom 6 +eos=true"},
		"another begin":        {template("<unk> A", "A B"), named + `, "cls_token": "<cls>"`, "bos 2 eos 3 +bos=false"},
		"named by no config":   {template("<s> A </s>", "A B"), "", "bos 2 eos 3 +bos=true +eos=true"},
		"cls and sep":          {null, `"cls_token": "<cls>", "sep_token": "<sep>"`, "bos 7 eos 4 sep 4"},
		"separator":            {template("<s> A", "<s> A <sep> B"), named + `, "sep_token": "<sep>", "mask_token": "<mask>"`, "bos 2 eos 3 sep 4 mask 5 +bos=true +sep=true"},
		"separator is the end": {template("<s> A", "<s> A </s> </s> B"), named, "bos 2 eos 3 sep 3 +bos=true +sep=true"},
		"separator twice":      {template("<s> A </s>", "<s> A </s> </s> B </s>"), named, "bos 2 eos 3 sep 3 +bos=true +eos=true +sep=true"},
		"no separator":         {template("<s> A </s>", "A <mask> B </s>"), named + `, "add_sep_token": true`, "bos 2 eos 3 +bos=true +eos=true +sep=false"},
		"separator of config":  {null, named + `, "sep_token": "<sep>", "add_sep_token": true, "add_bos_token": "yes"`, "bos 2 eos 3 sep 4 +sep=true"},
		"roberta":              {`{"type": "RobertaProcessing", "cls": ["<cls>", 7], "sep": ["<sep>", 4]}`, named, "bos 2 eos 3 sep 4 +bos=true +eos=true +sep=true"},
		"unknown separator":    {null, named + `, "add_sep_token": true`, "bos 2 eos 3 +sep=true"},
		"in no vocabulary":     {null, `"bos_token": "<none>", "eos_token": "a"`, "bos 9 eos 10"},
	} {
		values, notes, err := described(t, map[string]string{tokenizerName: withProcessor(t, c.processor), settingsName: "{" + c.settings + "}"})
		require.NoError(t, err, name)
		require.Equal(t, name == "unknown separator", len(notes) > 1, name)
		require.Contains(t, notes, noTemplate)
		got := ""
		for _, s := range specials {
			if v, ok := values["tokenizer.ggml."+s.key+"_token_id"]; ok {
				got += fmt.Sprintf(" %s %d", s.name, v.one)
			}
		}
		for _, s := range addable {
			if v, ok := values["tokenizer.ggml.add_"+s+"_token"]; ok {
				got += fmt.Sprintf(" +%s=%v", s, v.one)
			}
		}
		require.Equal(t, " "+c.want, got, name)
	}
}

// TestConfiguredTokens: tokens that tokenizer_config.json alone makes special are control tokens,
// and its added_tokens_decoder counts more than tokenizer.json.
func TestConfiguredTokens(t *testing.T) {
	vocab := map[string]int{"a": 0, "b": 1, "c": 2, "<s>": 3, "d": 4}
	added := []map[string]any{{"id": 5, "content": "<x>", "special": false}, {"id": 6, "content": "▁y", "special": false}, {"id": 7, "content": "<z>", "special": true}}
	types := func(settings string) ([]any, error) {
		values, _, err := described(t, map[string]string{tokenizerName: tokenizerJSON(t, coderSplits, vocab, nil, added...), settingsName: settings})
		return values["tokenizer.ggml.token_type"].many, err
	}
	for settings, want := range map[string][]int64{
		`{}`: {1, 1, 1, 1, 1, 4, 4, 3, 5, 5, 5, 5},
		`{"bos_token": "<s>", "pad_token": {"content": "d"}, "image_token": "a", "unk_token": null}`: {3, 1, 1, 3, 3, 4, 4, 3, 5, 5, 5, 5},
		`{"bos_token": "<x>"}`: {1, 1, 1, 1, 1, 3, 4, 3, 5, 5, 5, 5},
		`{"bos_token": "<x>", "eos_token": "a", "added_tokens_decoder": {"0": {"content": "a"}}}`:                                                                  {3, 1, 1, 1, 1, 4, 4, 3, 5, 5, 5, 5},
		`{"additional_special_tokens": ["b"], "extra_special_tokens": {"x": "c"}}`:                                                                                 {1, 3, 3, 1, 1, 4, 4, 3, 5, 5, 5, 5},
		`{"added_tokens_decoder": {"5": {"content": "<x>", "special": true}, "6": {"content": "▁y", "special": true}, "7": {"content": "<z>", "special": false}}}`: {1, 1, 1, 1, 1, 3, 3, 4, 5, 5, 5, 5},
		`{"added_tokens_decoder": {"10": {"content": "new", "special": true}, "9": {"content": "<|n|>"}, "11": {"content": "user"}, "1": {"content": "c"}}}`:       {1, 1, 4, 1, 1, 4, 4, 3, 5, 3, 3, 4},
	} {
		got, err := types(settings)
		require.NoError(t, err)
		var numbers []int64
		for _, x := range got {
			numbers = append(numbers, x.(int64))
		}
		require.Equal(t, want, numbers, settings)
	}
	for settings, want := range map[string]string{
		`{"added_tokens_decoder": {"0": {"content": "other"}}}`:  "tokenizer_config.json: 0 is the number of a and of other",
		`{"added_tokens_decoder": {"7": {"content": "other"}}}`:  "tokenizer_config.json: 7 is the number of <z> and of other",
		`{"added_tokens_decoder": {"12": {"content": "other"}}}`: "tokenizer_config.json: token other has number 12, but vocab_size is 12",
		`{"added_tokens_decoder": {"x": {"content": "other"}}}`:  "tokenizer_config.json: added_tokens_decoder cannot be read",
		`{"added_tokens_decoder": [1]}`:                          "tokenizer_config.json: added_tokens_decoder cannot be read",
	} {
		_, err := types(settings)
		require.ErrorContains(t, err, want)
		var bad *problem.Error
		require.ErrorAs(t, err, &bad)
	}
}

// TestSameMessage: of several tokens at fault, the one with the lowest number is named.
func TestSameMessage(t *testing.T) {
	vocab := map[string]int{}
	for i := range 200 {
		vocab[fmt.Sprintf("t%03d", i)] = 500 + i
	}
	for range 20 {
		_, _, err := described(t, map[string]string{tokenizerName: tokenizerJSON(t, coderSplits, vocab, nil)})
		require.ErrorContains(t, err, "token t000 has number 500, but vocab_size is 12")
	}
	_, _, err := described(t, map[string]string{tokenizerName: tokenizerJSON(t, coderSplits, map[string]int{"a": 3, "b": 3, "c": 3, "d": 1, "e": 1}, nil)})
	require.ErrorContains(t, err, "1 is the number of d and of e")
}

// TestChatTemplates: the default template, those with names, and the order of the files.
func TestChatTemplates(t *testing.T) {
	const several = `[{"name": "default", "template": "d"}, {"name": "tool use", "template": "t"}, {"name": "rag", "template": "r"}, {"name": "", "template": "x"}, {"name": "none"}]`
	tokens := tokenizerJSON(t, coderSplits, map[string]int{"a": 0}, nil)
	for name, c := range map[string]struct {
		files     map[string]string
		settings  string
		templates map[string]string
		note      string
	}{
		"named":      {nil, `{"chat_template": ` + several + `}`, map[string]string{"": "d", ".tool_use": "t", ".rag": "r"}, ""},
		"json":       {map[string]string{templateJSON: `{"chat_template": "j"}`}, `{}`, map[string]string{"": "j"}, ""},
		"inline":     {map[string]string{templateJSON: `{"chat_template": "j"}`}, `{"chat_template": "i"}`, map[string]string{"": "i"}, ""},
		"jinja":      {map[string]string{templateName: "f", templateJSON: `{}`}, `{"chat_template": "i"}`, map[string]string{"": "f"}, ""},
		"additional": {map[string]string{templateName: "f", templatesDir + "/tool.jinja": "t", templatesDir + "/x.txt": "x"}, `{}`, map[string]string{"": "f", ".tool": "t"}, ""},
		"bad":        {nil, `{"chat_template": 7}`, map[string]string{}, "tokenizer_config.json has a chat_template that is neither"},
	} {
		files := map[string]string{tokenizerName: tokens, settingsName: c.settings}
		for file, data := range c.files {
			files[file] = data
		}
		values, notes, err := described(t, files)
		require.NoError(t, err, name)
		got := map[string]string{}
		for key, v := range values {
			if suffix, is := strings.CutPrefix(key, "tokenizer.chat_template"); is && v.kind == str {
				got[suffix] = v.one.(string)
			}
		}
		require.Equal(t, c.templates, got, name)
		require.Contains(t, fmt.Sprint(notes), c.note, name)
		require.Equal(t, max(len(got)-1, 0), int(values["tokenizer.chat_templates"].n), name)
	}
}

// TestSeveralEnds: a note says how many ends a list has, and which one is written.
func TestSeveralEnds(t *testing.T) {
	for generation, want := range map[string]string{`{"eos_token_id": [3, 4, 99]}`: "lists 3 tokens that end a text, 10 is written",
		`{"eos_token_id": 3}`: "", `{"eos_token_id": ["a"]}`: "", `[`: "", `{"eos_token_id": [3]}`: ""} {
		values, notes, err := described(t, map[string]string{tokenizerName: withProcessor(t, "null"), settingsName: "{}", samplingName: generation})
		require.NoError(t, err)
		require.Equal(t, want != "", strings.Contains(strings.Join(notes, "\n"), "eos_token_id lists"), generation)
		require.Contains(t, strings.Join(notes, "\n"), want)
		require.Contains(t, values, "tokenizer.ggml.eos_token_id")
	}
	d := description(t, fstest.MapFS{tokenizerName: {Data: []byte(withProcessor(t, "null"))}, settingsName: {Data: []byte("{}")}})
	var err error
	d.Config, err = config.Parse(strings.NewReader(regexp.MustCompile(`"eos_token_id":[^,}]*`).ReplaceAllString(string(d.Config.JSON()), `"eos_token_id":[4,3]`)))
	require.NoError(t, err)
	values, notes, err := describedAs(t, d)
	require.NoError(t, err)
	require.EqualValues(t, 4, values["tokenizer.ggml.eos_token_id"].one)
	require.Contains(t, strings.Join(notes, "\n"), "eos_token_id lists 2 tokens that end a text, 4 is written")
}

// TestPreAndNoVocab: a name is for an unknown pre-tokenizer of bytes; a file without a vocabulary
// has no key of one but the model.
func TestPreAndNoVocab(t *testing.T) {
	unknown, known := tokenizerJSON(t, []string{"x"}, map[string]int{"a": 0}, nil), tokenizerJSON(t, coderSplits, map[string]int{"a": 0}, nil)
	with := func(tokens, pre string, noVocab bool) (map[string]value, []string, error) {
		disk := fstest.MapFS{}
		if tokens != "" {
			disk[tokenizerName] = &fstest.MapFile{Data: []byte(tokens)}
		}
		d := description(t, disk)
		d.Pre, d.NoVocab = pre, noVocab
		return describedAs(t, d)
	}
	values, notes, err := with(unknown, "qwen2", false)
	require.NoError(t, err)
	require.Equal(t, "qwen2", values["tokenizer.ggml.pre"].one)
	require.Contains(t, notes, "the pre-tokenizer's name qwen2 is the user's: llama.cpp splits texts by it, and not by tokenizer.json")
	values, notes, err = with(known, "deepseek-coder", false)
	require.NoError(t, err)
	require.Equal(t, "deepseek-coder", values["tokenizer.ggml.pre"].one)
	require.Equal(t, []string{noTemplate}, notes)
	for want, c := range map[string]struct{ tokens, pre string }{
		"its pre_tokenizer is deepseek-coder, and not qwen2":                             {known, "qwen2"},
		"its pre_tokenizer has no ByteLevel":                                             {`{"model": {"type": "BPE"}}`, "qwen2"},
		"its pre_tokenizer is not deepseek-llm":                                          {unknown, ""},
		"tokenizer.json: is missing: llama.cpp and Ollama need the vocabulary for texts": {"", "qwen2"},
	} {
		_, _, err := with(c.tokens, c.pre, false)
		require.ErrorContains(t, err, want)
	}
	values, notes, err = with(unknown, "", true)
	require.NoError(t, err)
	require.Equal(t, []string{"the file has no vocabulary, as asked for: llama.cpp takes numbers of tokens only"}, notes)
	for key := range values {
		_, is := strings.CutPrefix(key, "tokenizer.")
		require.Equal(t, key == "tokenizer.ggml.model", is, key)
	}
	_, _, err = described(t, map[string]string{pieceName: "\n\x05<unk>"})
	require.ErrorContains(t, err, "tokenizer.model: holds a vocabulary of SentencePiece, which is not read, and there is no tokenizer.json")
}
