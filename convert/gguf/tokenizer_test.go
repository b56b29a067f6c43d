package gguf

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"dsmoe/config/configtest"
	"dsmoe/convert/format"
	"dsmoe/text/problem"
)

const tinyConfig = `{"model_type": "deepseek", "vocab_size": 12, "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 8,
	"num_hidden_layers": 1, "bos_token_id": 9, "eos_token_id": 10}`

// llmSplits are the patterns of deepseek-coder's tokenizer.json.
var coderSplits = []string{"[\r\n]", `\s?\p{L}+`, `\s?\p{P}+`, "[一-龥ࠀ-一가-\ud7ff]+"}

// tokenizerJSON makes a tokenizer.json.
func tokenizerJSON(t *testing.T, splits []string, vocab map[string]int, merges any, added ...map[string]any) string {
	var pre []any
	for _, s := range splits {
		pre = append(pre, map[string]any{"type": "Split", "pattern": map[string]string{"Regex": s}, "behavior": "Isolated"})
	}
	pre = append(pre, map[string]any{"type": "ByteLevel"})
	b, err := json.Marshal(map[string]any{"added_tokens": added, "pre_tokenizer": map[string]any{"type": "Sequence", "pretokenizers": pre},
		"post_processor": map[string]any{"type": "ByteLevel"}, "model": map[string]any{"type": "BPE", "vocab": vocab, "merges": merges}})
	require.NoError(t, err)
	return string(b)
}

// described returns the keys of a file to be written with these files beside its weights.
func described(t *testing.T, files map[string]string) (map[string]value, []string, error) {
	keys, notes, err := encoded(t, files)
	if err != nil {
		return nil, nil, err
	}
	return fileWith(t, keys).values, notes, nil
}

// encoded returns the same keys as they are written.
func encoded(t *testing.T, files map[string]string) ([]byte, []string, error) {
	disk := fstest.MapFS{}
	for name, data := range files {
		disk[name] = &fstest.MapFile{Data: []byte(data)}
	}
	d, err := describe(description(t, disk))
	return d.Keys, d.Notes, err
}

// description describes a model with files beside its weights.
func description(t *testing.T, disk fstest.MapFS) format.Description {
	return format.Description{Config: configtest.Parse(t, tinyConfig), Name: "tiny", Type: "keep",
		Open: func(name string) (fs.File, error) { return disk.Open(name) },
		List: func(dir string) (names []string, err error) {
			entries, _ := disk.ReadDir(dir)
			for _, e := range entries {
				names = append(names, e.Name())
			}
			return names, nil
		}}
}

// describedAs returns the keys of a file to be written.
func describedAs(t *testing.T, described format.Description) (map[string]value, []string, error) {
	d, err := describe(described)
	if err != nil {
		return nil, nil, err
	}
	return fileWith(t, d.Keys).values, d.Notes, nil
}

// TestTokenizer: tokens by number, types, merges in both spellings, tokens with a meaning and
// the chat template are what llama.cpp's converter makes of them.
func TestTokenizer(t *testing.T) {
	vocab := map[string]int{"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġa": 4}
	added := []map[string]any{
		{"id": 9, "content": "<s>", "special": true}, {"id": 10, "content": "<｜end｜>", "special": false},
		{"id": 8, "content": "▁user", "special": false}, {"id": 2, "content": "ab", "special": false}, {"id": 7, "content": "<pad>", "special": false},
	}
	for _, merges := range []any{[]string{"a b", "Ġ a"}, [][]string{{"a", "b"}, {" ", "a"}}} {
		values, notes, err := described(t, map[string]string{
			tokenizerName: tokenizerJSON(t, coderSplits, vocab, merges, added...),
			settingsName:  `{"bos_token": {"content": "<s>"}, "eos_token": "<｜end｜>", "pad_token": null, "add_bos_token": true, "chat_template": [{"name": "default", "template": "{{x}}"}]}`,
		})
		require.NoError(t, err)
		require.Empty(t, notes)
		require.Equal(t, "gpt2", values["tokenizer.ggml.model"].one)
		require.Equal(t, "deepseek-coder", values["tokenizer.ggml.pre"].one)
		require.Equal(t, []any{"a", "b", "ab", "Ġ", "Ġa", "[PAD5]", "[PAD6]", "<pad>", " user", "<s>", "<｜end｜>", "[PAD11]"}, values["tokenizer.ggml.tokens"].many)
		require.Equal(t, []any{int64(1), int64(1), int64(4), int64(1), int64(1), int64(5), int64(5), int64(3), int64(4), int64(3), int64(3), int64(5)}, values["tokenizer.ggml.token_type"].many)
		require.Equal(t, []any{"a b", "Ġ a"}, values["tokenizer.ggml.merges"].many)
		require.Equal(t, uint64(9), values["tokenizer.ggml.bos_token_id"].one)
		require.Equal(t, uint64(10), values["tokenizer.ggml.eos_token_id"].one)
		require.NotContains(t, values, "tokenizer.ggml.padding_token_id")
		require.Equal(t, true, values["tokenizer.ggml.add_bos_token"].one)
		require.Equal(t, false, values["tokenizer.ggml.add_eos_token"].one)
		require.Equal(t, "{{x}}", values["tokenizer.chat_template"].one)
	}
	values, _, err := described(t, map[string]string{tokenizerName: tokenizerJSON(t, coderSplits, vocab, nil), templateName: "jinja"})
	require.NoError(t, err)
	require.Equal(t, "jinja", values["tokenizer.chat_template"].one)
	require.Equal(t, uint64(9), values["tokenizer.ggml.bos_token_id"].one, "config.json says so")
}

// TestTokenizerNone: a file without a vocabulary is written only if it is asked for, and says that it has none.
func TestTokenizerNone(t *testing.T) {
	_, _, err := described(t, nil)
	require.EqualError(t, err, "tokenizer.json: is missing: llama.cpp and Ollama need the vocabulary for texts")
	d := description(t, nil)
	d.Open = nil
	_, _, err = describedAs(t, d)
	require.EqualError(t, err, "tokenizer.json: is not read with a single weight file")
	d.NoVocab = true
	values, _, err := describedAs(t, d)
	require.NoError(t, err)
	require.Equal(t, "none", values["tokenizer.ggml.model"].one)
	require.Equal(t, uint64(12), values["deepseek.vocab_size"].one)
}

// TestPreTokenizers: those that llama.cpp has for DeepSeek are known by their patterns; of
// deepseek-v3's, llama.cpp's own.
func TestPreTokenizers(t *testing.T) {
	v3 := []string{`\p{N}{1,3}`, "[一-龥\u3040-ゟ゠-ヿ]+",
		"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"}
	values, _, err := described(t, map[string]string{tokenizerName: tokenizerJSON(t, v3, map[string]int{"a": 0}, nil)})
	require.NoError(t, err)
	require.Equal(t, "deepseek-v3", values["tokenizer.ggml.pre"].one)
}

// TestTokenizersThatAreRefused: what cannot be written, with the reason.
func TestTokenizersThatAreRefused(t *testing.T) {
	a := map[string]int{"a": 0}
	for want, files := range map[string]map[string]string{
		"tokenizer.json: cannot be read":                                {tokenizerName: `{"model": 1}`},
		"tokenizer.json: cannot be read: a byte order mark (BOM)":       {tokenizerName: "\ufeff{}"},
		`tokenizer.json: its model is WordPiece`:                        {tokenizerName: `{"model": {"type": "WordPiece"}}`},
		"its pre_tokenizer is not deepseek-llm":                         {tokenizerName: tokenizerJSON(t, []string{"x"}, a, nil)},
		"token b has number 12, but vocab_size is 12":                   {tokenizerName: tokenizerJSON(t, coderSplits, map[string]int{"b": 12}, nil)},
		"0 is the number of a and of b":                                 {tokenizerName: tokenizerJSON(t, coderSplits, map[string]int{"a": 0, "b": 0}, nil)},
		"0 is the number of a and of x":                                 {tokenizerName: tokenizerJSON(t, coderSplits, a, nil, map[string]any{"id": 0, "content": "x"})},
		"token a has numbers 0 and 5, which llama.cpp does not take":    {tokenizerName: tokenizerJSON(t, coderSplits, a, nil, map[string]any{"id": 5, "content": "a"})},
		"a merge is neither a string nor a pair of strings":             {tokenizerName: tokenizerJSON(t, coderSplits, a, []any{[]string{"a"}})},
		"tokenizer_config.json: cannot be read: json: cannot unmarshal": {tokenizerName: tokenizerJSON(t, coderSplits, a, nil), settingsName: "[]"},
	} {
		_, _, err := described(t, files)
		require.ErrorContains(t, err, want)
		var bad *problem.Error
		require.ErrorAs(t, err, &bad)
	}
}

// TestTiktoken: Kimi's vocabulary and merges are those of tiktoken.model; the numbers behind are control tokens, whatever
// added_tokens_decoder says, and config.json's number of a token comes first.
func TestTiktoken(t *testing.T) {
	of := func(lines, settings string) (map[string]value, []string, error) {
		d := description(t, fstest.MapFS{tiktokenName: {Data: []byte(lines)}, settingsName: {Data: []byte(settings)}})
		return describedAs(t, d)
	}
	const kimi = `"auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", null]}`
	line := func(token string, number int) string {
		return fmt.Sprintf("%s %d\n", base64.StdEncoding.EncodeToString([]byte(token)), number)
	}
	lines := line("a", 0) + line(" ", 1) + line("\xe4", 2) + line("\x00", 3) + line("aa", 4) + line(" aa", 5) + "\n" + line("aaaa", 6) + line("\xe4\x01", 7)
	values, notes, err := of(lines, `{`+kimi+`, "bos_token": "[BOS]", "eos_token": "[EOS]", "pad_token": "<p>",
		"added_tokens_decoder": {"8": {"content": "<p>"}, "10": {"content": "[BOS]", "special": true}}}`)
	require.NoError(t, err)
	require.Equal(t, []string{noTemplate}, notes)
	require.Equal(t, "kimi-k2", values["tokenizer.ggml.pre"].one)
	require.Equal(t, []any{"a", "Ġ", "ä", "Ā", "aa", "Ġaa", "aaaa", "äā", "<p>", "<|reserved_token_9|>", "[BOS]", "<|reserved_token_11|>"}, values[tokensKey].many)
	require.Equal(t, []any{"a a", "Ġ aa", "aa aa", "ä ā"}, values["tokenizer.ggml.merges"].many)
	require.Equal(t, slices.Concat(slices.Repeat([]any{int64(1)}, 8), slices.Repeat([]any{int64(3)}, 4)), values["tokenizer.ggml.token_type"].many)
	require.Equal(t, uint64(9), values["tokenizer.ggml.bos_token_id"].one, "config.json says so")
	require.Equal(t, uint64(8), values["tokenizer.ggml.padding_token_id"].one)
	for want, c := range map[string][2]string{
		"auto_map of tokenizer_config.json does not name tokenization_kimi": {lines, `{}`},
		"tiktoken.model: line 1 is not a new token and its number":          {"a", `{` + kimi + `}`},
		"tiktoken.model: line 2 is not a new token and its number":          {line("a", 0) + line("a", 1), `{}`},
		"tiktoken.model: line 3 is not a new token and its number":          {line("a", 0) + line("b", 1) + line("c", 3), `{}`},
		"tiktoken.model: token ĀĀ has number 12, but vocab_size is 12":      {lines + line("b", 8) + line("c", 9) + line("d", 10) + line("e", 11) + line("\x00\x00", 12), `{` + kimi + `}`},
		"added_tokens_decoder cannot be read":                               {lines, `{` + kimi + `, "added_tokens_decoder": 1}`},
	} {
		_, _, err := of(c[0], c[1])
		require.ErrorContains(t, err, want)
	}
	d := description(t, fstest.MapFS{tiktokenName: {Data: []byte(lines)}, settingsName: {Data: []byte(`{` + kimi + `}`)}})
	d.Config.VocabSize = 8 + reservedTokens
	_, _, err = describedAs(t, d)
	require.NoError(t, err)
	d.Config.VocabSize++
	_, _, err = describedAs(t, d)
	require.ErrorContains(t, err, "tiktoken.model: has 8 tokens, and vocab_size is 265: more than 256 special ones")
}

// TestGLM: GLM's pre-tokenizer has its name in its models alone, and its tokens the meanings that llama.cpp's converter gives them.
func TestGLM(t *testing.T) {
	added := []map[string]any{}
	for i, content := range []string{"<|endoftext|>", "[gMASK]", "<|user|>", "<|observation|>"} {
		added = append(added, map[string]any{"id": 1 + i, "content": content, "special": true})
	}
	pattern := `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	d := description(t, fstest.MapFS{tokenizerName: {Data: []byte(tokenizerJSON(t, []string{pattern}, map[string]int{"a": 0}, nil, added...))},
		settingsName: {Data: []byte(`{"eos_token": "<|endoftext|>"}`)}})
	_, _, err := describedAs(t, d)
	require.ErrorContains(t, err, "its pre_tokenizer is not deepseek-llm")
	published, err := os.ReadFile("../../fixtures/glm4-moe-lite/checkpoint/config.json")
	require.NoError(t, err)
	d.Config = configtest.Parse(t, strings.Replace(string(published), `"eos_token_id": 1`, `"unk_token_id": 7`, 1))
	values, _, err := describedAs(t, d)
	require.NoError(t, err)
	require.Equal(t, "glm4", values["tokenizer.ggml.pre"].one)
	for key, want := range map[string]any{"bos": uint64(0), "eos": uint64(1), "unknown": uint64(7), "eot": uint64(3), "eom": uint64(4)} {
		require.Equal(t, want, values["tokenizer.ggml."+key+"_token_id"].one, key)
	}
}
