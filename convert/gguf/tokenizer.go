package gguf

// The vocabulary of a file to be written: tokenizer.json and tokenizer_config.json, as
// _set_vocab_gpt2 of conversion/base.py and SpecialVocab of gguf-py read them.

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"dsmoe/convert/format"
	"dsmoe/text"
)

// The files of a tokenizer.
const (
	tokenizerName = "tokenizer.json"
	settingsName  = "tokenizer_config.json"
	templateName  = "chat_template.jinja"
)

// consumes is Dialect.Consumes.
func consumes(file string) bool {
	return file == tokenizerName || file == settingsName || file == templateName
}

// MaxTokenizer is the most bytes that a file of a tokenizer may have.
const MaxTokenizer = 64 << 20

// The types of tokens: enum llama_token_type.
const (
	normalToken  = 1
	controlToken = 3
	userToken    = 4
	unusedToken  = 5
)

// splits are the hashes of the patterns of a tokenizer's Split pre-tokenizers, one behind the
// other, and what llama.cpp calls the pre-tokenizer that has them.
var splits = map[string]string{
	"03df5c5863ad70781dcfdef491ead25140f895fe8010964be0daefe27be32b02": "deepseek-llm",   // DeepSeekMoE, V2
	"21cde974d587f0d54dc8d56b183cc1e6239600172035c68fbd6d4b9f8da0576e": "deepseek-coder", // DeepSeek-Coder
	"3e41884740914736a01647a8d1d6426e0e5aed47b7fdb19dfb81d31e3653a502": "deepseek-v3",    // V3, R1
}

// tokenizer holds the parts of tokenizer.json that go into a file.
type tokenizer struct {
	AddedTokens []struct {
		ID      int    `json:"id"`
		Content string `json:"content"`
		Special bool   `json:"special"`
	} `json:"added_tokens"`
	PreTokenizer struct {
		Type          string `json:"type"`
		PreTokenizers []struct {
			Type    string `json:"type"`
			Pattern struct {
				Regex string `json:"Regex"`
			} `json:"pattern"`
		} `json:"pretokenizers"`
	} `json:"pre_tokenizer"`
	PostProcessor struct {
		Type       string `json:"type"`
		Processors []struct {
			Type string `json:"type"`
		} `json:"processors"`
	} `json:"post_processor"`
	Model struct {
		Type   string         `json:"type"`
		Vocab  map[string]int `json:"vocab"`
		Merges []merge        `json:"merges"`
	} `json:"model"`
}

// merge is two pieces with a space between, however tokenizer.json has them.
type merge string

// UnmarshalJSON reads "a b" or ["a", "b"]. A space inside a piece becomes the letter for a
// space in a vocabulary of bytes.
func (m *merge) UnmarshalJSON(b []byte) error {
	var one string
	if err := json.Unmarshal(b, &one); err == nil {
		*m = merge(one)
		return nil
	}
	var pair []string
	if err := json.Unmarshal(b, &pair); err != nil || len(pair) != 2 {
		return errors.New("a merge is neither a string nor a pair of strings")
	}
	*m = merge(strings.ReplaceAll(pair[0], " ", "Ġ") + " " + strings.ReplaceAll(pair[1], " ", "Ġ"))
	return nil
}

// vocabulary writes the tokenizer. Without one, the model takes numbers of tokens.
func (w *keyWriter) vocabulary(d format.Description) (notes []string, err error) {
	var t tokenizer
	found, err := read(d, tokenizerName, &t)
	if err != nil {
		return nil, err
	}
	if !found {
		w.put("tokenizer.ggml.model", "none")
		return []string{"there is no tokenizer.json: the file has no vocabulary, " +
			"and llama.cpp takes numbers of tokens only"}, nil
	}
	pre, err := t.pre()
	if err != nil {
		return nil, err
	}
	tokens, types, err := t.tokens(d.Config.VocabSize)
	if err != nil {
		return nil, err
	}
	w.put("tokenizer.ggml.model", "gpt2")
	w.put("tokenizer.ggml.pre", pre)
	w.put(tokensKey, tokens)
	w.put("tokenizer.ggml.token_type", types)
	merges := make([]string, len(t.Model.Merges))
	for i, m := range t.Model.Merges {
		merges[i] = string(m)
	}
	w.put("tokenizer.ggml.merges", merges)
	return w.special(d, &t, tokens)
}

// read decodes a file beside the weights; found is false if it is missing.
func read(d format.Description, name string, into any) (found bool, err error) {
	data, err := slurp(d, name)
	if data == nil || err != nil {
		return false, err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return false, &format.Error{File: name, Cause: "cannot be read: " + err.Error()}
	}
	return true, nil
}

// slurp returns the bytes of a file beside the weights, nil if it is missing.
func slurp(d format.Description, name string) ([]byte, error) {
	if d.Open == nil {
		return nil, nil
	}
	f, err := d.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxTokenizer+1))
	if err == nil && len(data) > MaxTokenizer {
		err = &format.Error{File: name, Cause: "has more than " + text.Bytes(MaxTokenizer)}
	}
	return data, err
}

// pre names the pre-tokenizer.
func (t *tokenizer) pre() (string, error) {
	if t.Model.Type != "BPE" {
		return "", &format.Error{File: tokenizerName,
			Cause: fmt.Sprintf("its model is %s: DeepSeek's are BPE", text.Quote(t.Model.Type))}
	}
	h := sha256.New()
	for _, p := range t.PreTokenizer.PreTokenizers {
		if p.Type == "Split" {
			io.WriteString(h, p.Pattern.Regex)
		}
	}
	name, known := splits[hex.EncodeToString(h.Sum(nil))]
	if !known {
		return "", &format.Error{File: tokenizerName,
			Cause: "its pre_tokenizer is not deepseek-llm, deepseek-coder or deepseek-v3: " +
				"llama.cpp would split texts otherwise",
			Hint: "without tokenizer.json beside the weights the file is written without a vocabulary"}
	}
	return name, nil
}

// tokens lists all tokens by number, with their types.
func (t *tokenizer) tokens(size int) (tokens []string, types []int32, err error) {
	tokens, types = make([]string, size), make([]int32, size)
	place := func(id int, token string, kind int32) error {
		if id < 0 || id >= size {
			return &format.Error{File: tokenizerName,
				Cause: fmt.Sprintf("token %s has number %d, but vocab_size is %d", text.Quote(token), id, size)}
		}
		if types[id] == normalToken && tokens[id] != token {
			return &format.Error{File: tokenizerName,
				Cause: fmt.Sprintf("%d is the number of %s and of %s", id, text.Quote(min(token, tokens[id])),
					text.Quote(max(token, tokens[id])))}
		}
		tokens[id], types[id] = token, kind
		return nil
	}
	for token, id := range t.Model.Vocab {
		if err := place(id, token, normalToken); err != nil {
			return nil, nil, err
		}
	}
	for _, a := range t.AddedTokens {
		token, kind := a.Content, int32(controlToken)
		if !a.Special && !looksSpecial(token) {
			token, kind = strings.ReplaceAll(token, "▁", " "), userToken
		}
		if a.ID >= 0 && a.ID < size && tokens[a.ID] == a.Content {
			types[a.ID] = 0 // the model's vocabulary has it, too
		}
		if err := place(a.ID, token, kind); err != nil {
			return nil, nil, err
		}
	}
	seen := make(map[string]int, size)
	for id := range tokens {
		if types[id] == 0 {
			tokens[id], types[id] = fmt.Sprintf("[PAD%d]", id), unusedToken
		}
		if first, twice := seen[tokens[id]]; twice {
			return nil, nil, &format.Error{File: tokenizerName,
				Cause: fmt.Sprintf("token %s has numbers %d and %d, which llama.cpp does not take", text.Quote(tokens[id]), first,
					id)}
		}
		seen[tokens[id]] = id
	}
	return tokens, types, nil
}

// looksSpecial is does_token_look_special: added tokens that are control tokens in spite of
// tokenizer.json.
func looksSpecial(token string) bool {
	for _, around := range [][2]string{{"<|", "|>"}, {"<｜", "｜>"}, {"<unused", ">"}} {
		if strings.HasPrefix(token, around[0]) && strings.HasSuffix(token, around[1]) {
			return true
		}
	}
	return slices.Contains([]string{"<pad>", "<mask>", "<2mass>", "[@BOS@]"}, token)
}

// specials are the tokens with a meaning, in the order in which gguf-py has them, and what
// llama.cpp calls them.
var specials = []struct{ name, key string }{{"bos", "bos"}, {"eos", "eos"}, {"unk", "unknown"}, {"sep", "seperator"},
	{"pad", "padding"}}

// special writes which tokens have a meaning, and the chat template.
func (w *keyWriter) special(d format.Description, t *tokenizer, tokens []string) (notes []string, err error) {
	settings, ids := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	if _, err := read(d, settingsName, &settings); err != nil {
		return nil, err
	}
	json.Unmarshal(d.Config.JSON(), &ids) // the config was parsed
	for _, s := range specials {
		id := slices.Index(tokens, content(settings[s.name+"_token"]))
		var number int
		if raw := ids[s.name+"_token_id"]; id < 0 && raw != nil && json.Unmarshal(raw, &number) == nil &&
			string(raw) != "null" && 0 <= number && number < len(tokens) {
			id = number
		}
		if id >= 0 {
			w.put("tokenizer.ggml."+s.key+"_token_id", uint32(id))
		}
	}
	for _, s := range specials[:2] {
		var add bool
		raw := settings["add_"+s.name+"_token"]
		if raw != nil && json.Unmarshal(raw, &add) == nil && string(raw) != "null" || t.isByteLevel() {
			w.put("tokenizer.ggml.add_"+s.name+"_token", add)
		}
	}
	template, err := slurp(d, templateName)
	if template == nil {
		template = []byte(templateOf(settings["chat_template"]))
	}
	if len(template) > 0 {
		w.put("tokenizer.chat_template", string(template))
	}
	return []string{"the vocabulary comes from tokenizer.json"}, err
}

// isByteLevel reports whether the post-processor is ByteLevel, which adds no tokens.
func (t *tokenizer) isByteLevel() bool {
	is := t.PostProcessor.Type == "ByteLevel"
	for _, p := range t.PostProcessor.Processors {
		is = is || p.Type == "ByteLevel"
	}
	return is
}

// content is a token of tokenizer_config.json: a string, or an object with one.
func content(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil && raw != nil && s != "" {
		return s
	}
	var object struct {
		Content string `json:"content"`
	}
	if raw == nil || json.Unmarshal(raw, &object) != nil || object.Content == "" {
		return "\x00" // no token
	}
	return object.Content
}

// templateOf is the chat template: a string, or the default one of several.
func templateOf(raw json.RawMessage) string {
	var s string
	var several []struct{ Name, Template string }
	if raw == nil || json.Unmarshal(raw, &s) == nil {
		return s
	}
	if json.Unmarshal(raw, &several) == nil {
		for _, t := range several {
			if t.Name == "default" {
				return t.Template
			}
		}
	}
	return ""
}
