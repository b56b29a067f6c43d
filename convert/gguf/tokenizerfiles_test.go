package gguf

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/format"
	"dsmoe/model/tensor"
)

// TestPreTokenizerPatterns: the patterns that are written are those that are recognised.
func TestPreTokenizerPatterns(t *testing.T) {
	require.Len(t, preTokenizers, len(splits))
	for name, p := range preTokenizers {
		sum := sha256.Sum256([]byte(strings.Join(p.splits, "")))
		require.Equal(t, name, splits[hex.EncodeToString(sum[:])])
	}
}

// fileWith makes a file with these keys.
func fileWith(t *testing.T, keys []byte) *File {
	l, err := newLayout([]tensor.Info{{Name: "a", DType: tensor.F32, Shape: []int{1}}}, format.Head{Keys: keys})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "x.gguf")
	require.NoError(t, os.WriteFile(path, append(l.Header(), make([]byte, 32)...), 0o666))
	f, err := Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// written returns the files of the tokenizer that keys hold.
func written(t *testing.T, keys []byte) (files map[string]string, note string) {
	texts, note, err := tokenizerFiles([]format.File{fileWith(t, keys)})
	require.NoError(t, err)
	files = map[string]string{}
	for _, x := range texts {
		files[x.Name] = string(x.Data)
	}
	return files, note
}

// TestTokenizerFiles: the keys of a file give the files of a tokenizer that give the same keys.
func TestTokenizerFiles(t *testing.T) {
	vocab := map[string]int{"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġa": 4}
	begin := []map[string]any{{"id": 0, "content": "<s>", "special": true}, {"id": 1, "content": "<b>&", "special": false}}
	for name, c := range map[string]struct {
		tokenizer, settings, want string
	}{
		"behind the others": {tokenizerJSON(t, preTokenizers["deepseek-v3"].splits, vocab, []string{"a b", "Ġ a"},
			map[string]any{"id": 5, "content": "<s>", "special": true}, map[string]any{"id": 6, "content": "<b>&", "special": false}),
			`{"bos_token": "<s>", "add_bos_token": true, "eos_token": "<b>&", "chat_template": "{{x}}"}`,
			`"vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġa": 4}`},
		"before them": {tokenizerJSON(t, coderSplits, map[string]int{"<s>": 0, "<b>&": 1, "a": 2, "b": 3, "ab": 4}, []string{"a b"}, begin...),
			`{"bos_token": "<s>", "eos_token": "<s>", "add_bos_token": true, "add_eos_token": true, "chat_template": [{"name": "default", "template": "{{x}}"}, {"name": "tool", "template": "{{y}}"}]}`,
			`"vocab": {"<s>": 0, "<b>&": 1, "a": 2, "b": 3, "ab": 4}`},
		"with holes": {tokenizerJSON(t, preTokenizers["deepseek-llm"].splits, vocab, nil, map[string]any{"id": 9, "content": "<s>", "special": true}), `{}`,
			`"vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġa": 4, "<s>": 9}`},
	} {
		first, _, err := encoded(t, map[string]string{tokenizerName: c.tokenizer, settingsName: c.settings})
		require.NoError(t, err, name)
		files, note := written(t, first)
		require.Contains(t, note, "tokenizer.json and tokenizer_config.json are made of the keys, of 12 tokens")
		require.Contains(t, strings.Join(strings.Fields(files[tokenizerName]), " "), strings.NewReplacer("{", "{ ", "}", " }").Replace(c.want), name)
		again, _, err := encoded(t, files)
		require.NoError(t, err, name)
		require.Equal(t, first, again, name)
	}
}

// TestTokenizerFilesAdd: BOS and EOS that the keys add are added by a template, to pairs too.
func TestTokenizerFilesAdd(t *testing.T) {
	keys, _, err := encoded(t, map[string]string{settingsName: `{"bos_token": "<s>", "eos_token": "<e>", "add_bos_token": true, "add_eos_token": true}`,
		tokenizerName: tokenizerJSON(t, coderSplits, map[string]int{"a": 0}, nil, map[string]any{"id": 1, "content": "<s>", "special": true}, map[string]any{"id": 2, "content": "<e>", "special": true})})
	require.NoError(t, err)
	files, _ := written(t, keys)
	var got struct {
		Post struct {
			Processors []struct {
				Single, Pair []map[string]struct{ ID string }
			}
		} `json:"post_processor"`
	}
	require.NoError(t, json.Unmarshal([]byte(files[tokenizerName]), &got))
	ids := func(list []map[string]struct{ ID string }) (all []string) {
		for _, x := range list {
			all = append(all, x["SpecialToken"].ID+x["Sequence"].ID)
		}
		return all
	}
	require.Len(t, got.Post.Processors, 2)
	require.Equal(t, []string{"<s>", "A", "<e>"}, ids(got.Post.Processors[1].Single))
	require.Equal(t, []string{"<s>", "A", "B", "<e>"}, ids(got.Post.Processors[1].Pair))
}

// TestTokenizerFilesRefused: keys that do not suffice write no file, and the note says why.
func TestTokenizerFilesRefused(t *testing.T) {
	put := func(pre, model string, tokens []string, types []int32, merges ...string) []byte {
		w := &keyWriter{b: make([]byte, 8)}
		w.put("tokenizer.ggml.model", model)
		w.put("tokenizer.ggml.pre", pre)
		w.put(tokensKey, tokens)
		w.put("tokenizer.ggml.token_type", types)
		w.put("tokenizer.ggml.merges", merges)
		return w.b
	}
	for want, keys := range map[string][]byte{
		"the keys hold no tokenizer":                                    put("", "none", []string{"a"}, nil),
		"the tokenizer in the keys is llama, not BPE":                   put("deepseek-v3", "llama", []string{"a"}, nil),
		"the pre-tokenizer in the keys is qwen2, not deepseek-llm":      put("qwen2", "gpt2", []string{"a"}, nil),
		"keys hold no tokenizer":                                        put("deepseek-v3", "gpt2", nil, nil),
		"2 tokens have 1 types":                                         put("deepseek-v3", "gpt2", []string{"a", "b"}, []int32{1}),
		"token 1, a, is empty, not UTF-8, or occurs twice":              put("deepseek-v3", "gpt2", []string{"a", "a"}, []int32{1, 1}),
		`token 0, "", is empty`:                                         put("deepseek-v3", "gpt2", []string{""}, []int32{1}),
		`token 0, "\xff", is empty, not UTF-8`:                          put("deepseek-v3", "gpt2", []string{"\xff"}, []int32{1}),
		"token 0, a, has type 6":                                        put("deepseek-v3", "gpt2", []string{"a"}, []int32{6}),
		`added token 0 is "x y": whether it had a space or ▁ is not in`: put("deepseek-v3", "gpt2", []string{"x y"}, []int32{4}),
		`merge 0, "a b", is not of two tokens`:                          put("deepseek-v3", "gpt2", []string{"a", "b"}, []int32{1, 1}, "a b"),
	} {
		files, note := written(t, keys)
		require.Empty(t, files)
		require.Contains(t, note, "no tokenizer.json is written: ")
		require.Contains(t, note, want)
	}
}
