package gguf

// The files of a tokenizer that the keys of a file say.

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/convert/format"
	"dsmoe/text"
)

// preTokenizer is a pre-tokenizer of tokenizer.json: the patterns of its Splits, and whether Digits
// follows, which takes numbers apart.
type preTokenizer struct {
	splits []string
	digits bool
}

// preTokenizers are those that llama.cpp has for DeepSeek, by its names.
var preTokenizers = map[string]preTokenizer{
	"deepseek-llm": {[]string{"[\r\n]", `\s?[A-Za-z` + letters + "]+",
		"\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", `\s+$`, han}, true},
	"deepseek-coder": {[]string{"[\r\n]", `\s?\p{L}+`, `\s?\p{P}+`, han}, true},
	"deepseek-v3": {[]string{`\p{N}{1,3}`, "[一-龥\u3040-ゟ゠-ヿ]+",
		"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|" +
			" ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"}, false},
}

const han = "[一-龥ࠀ-一가-\ud7ff]+"

// letters are the ranges of letters in the pattern of deepseek-llm, behind A-Za-z.
const letters = "" +
	"\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376" +
	"\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f" +
	"\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77" +
	"\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-" +
	"\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec" +
	"\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d" +
	"\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee" +
	"\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06" +
	"\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb" +
	"\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"

// tokenizerFiles is Dialect.Tokenizer.
func tokenizerFiles(files []format.File) ([]format.Text, string, error) {
	f := files[0].(*File)
	var head bytes.Buffer
	if err := f.Identify(&head); err != nil {
		return nil, "", err
	}
	v := storedTokenizer{File: f, pairs: pairsIn(f.Header, head.Bytes())}
	t, err := v.tokenizer()
	if err != nil {
		return nil, "no tokenizer.json is written: " + err.Error(), nil
	}
	var texts []format.Text
	for _, file := range []struct {
		name    string
		content any
	}{{tokenizerName, t}, {settingsName, v.settings()}} {
		var b bytes.Buffer // encoded as Hugging Face does
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		if err := e.Encode(file.content); err != nil {
			return nil, "", err
		}
		texts = append(texts, format.Text{Name: file.name, Data: b.Bytes()})
	}
	return texts, fmt.Sprintf("tokenizer.json and tokenizer_config.json are made of the keys, of %s: added tokens "+
		"that the keys call control tokens are special in them", text.Plural(len(v.tokens), "token")), nil
}

// storedTokenizer is the tokenizer in the keys of a file.
type storedTokenizer struct {
	*File
	pairs
	tokens []string
	types  []int32
}

// tokenizer makes tokenizer.json. The error says why the keys do not suffice.
func (v *storedTokenizer) tokenizer() (any, error) {
	model, _ := v.values["tokenizer.ggml.model"].one.(string)
	name, _ := v.values["tokenizer.ggml.pre"].one.(string)
	pre, known := preTokenizers[name]
	switch {
	case model == "" || model == "none" || model == "no_vocab" || v.values[tokensKey].n == 0:
		return nil, errors.New("the keys hold no tokenizer")
	case model != "gpt2":
		return nil, fmt.Errorf("the tokenizer in the keys is %s, not BPE", text.Quote(model))
	case !known:
		return nil, fmt.Errorf("the pre-tokenizer in the keys is %s, not deepseek-llm, deepseek-coder or deepseek-v3",
			text.Quote(name))
	}
	v.tokens = v.strings(tokensKey)
	for b := v.elements("tokenizer.ggml.token_type", i32, u32); len(b) > 0; b = b[4:] {
		v.types = append(v.types, int32(binary.LittleEndian.Uint32(b)))
	}
	merges := v.strings("tokenizer.ggml.merges")
	vocab, added, err := v.divided()
	if err != nil {
		return nil, err
	}
	for i, m := range merges {
		left, right, ok := strings.Cut(m, " ")
		for _, piece := range []string{left, right, left + right} {
			_, known := vocab.numbers[piece]
			ok = ok && known
		}
		if !ok { // a reader of tokenizer.json refuses it
			return nil, fmt.Errorf("merge %d, %s, is not of two tokens", i, text.Quote(m))
		}
	}
	var steps []any
	for _, s := range pre.splits {
		steps = append(steps, splitFile{"Split", map[string]string{"Regex": s}, "Isolated", false})
	}
	if pre.digits {
		steps = append(steps, json.RawMessage(`{"type": "Digits", "individual_digits": true}`))
	}
	steps = append(steps, json.RawMessage(`{"type": "ByteLevel", "add_prefix_space": false, `+
		`"trim_offsets": true, "use_regex": false}`))
	return tokenizerFile{Version: "1.0", AddedTokens: added,
		Normalizer:   json.RawMessage(`{"type": "Sequence", "normalizers": []}`),
		PreTokenizer: map[string]any{"type": "Sequence", "pretokenizers": steps}, PostProcessor: v.postProcessor(),
		Decoder: json.RawMessage(`{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}`),
		Model:   modelFile{Type: "BPE", Vocab: vocab, Merges: merges}}, nil
}

// tokenizerFile is tokenizer.json.
type tokenizerFile struct {
	Version       string          `json:"version"`
	Truncation    any             `json:"truncation"`
	Padding       any             `json:"padding"`
	AddedTokens   []addedFile     `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  any             `json:"pre_tokenizer"`
	PostProcessor any             `json:"post_processor"`
	Decoder       json.RawMessage `json:"decoder"`
	Model         modelFile       `json:"model"`
}

type addedFile struct {
	ID         int    `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

type modelFile struct {
	Type         string    `json:"type"`
	Dropout      any       `json:"dropout"`
	Unknown      any       `json:"unk_token"`
	Prefix       any       `json:"continuing_subword_prefix"`
	Suffix       any       `json:"end_of_word_suffix"`
	FuseUnknown  bool      `json:"fuse_unk"`
	ByteFallback bool      `json:"byte_fallback"`
	Vocab        vocabFile `json:"vocab"`
	Merges       []string  `json:"merges"`
}

// vocabFile are the tokens of a model, in the order of their numbers.
type vocabFile struct {
	tokens  []string
	numbers map[string]int
}

// MarshalJSON writes an object.
func (v vocabFile) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, token := range v.tokens {
		if i > 0 {
			b = append(b, ',')
		}
		quoted, err := jsontext.AppendQuote(b, token)
		if err != nil {
			return nil, err
		}
		b = strconv.AppendInt(append(quoted, ':'), int64(v.numbers[token]), 10)
	}
	return append(b, '}'), nil
}

// divided divides the tokens into the model's and added ones, without padding. The model has added tokens, too, unless
// their numbers follow its own: a reader of tokenizer.json gives added tokens that the model lacks the next numbers.
func (v *storedTokenizer) divided() (vocab vocabFile, added []addedFile, err error) {
	vocab.numbers = map[string]int{}
	next := true
	if len(v.types) != len(v.tokens) {
		return vocab, nil, fmt.Errorf("%d tokens have %d types", len(v.tokens), len(v.types))
	}
	for id, token := range v.tokens {
		kind := v.types[id]
		if token == fmt.Sprintf("[PAD%d]", id) && (kind == unusedToken || kind == userToken) {
			continue
		}
		if _, twice := vocab.numbers[token]; twice || !utf8.ValidString(token) || token == "" {
			return vocab, nil, fmt.Errorf("token %d, %s, is empty, not UTF-8, or occurs twice", id, text.Quote(token))
		}
		vocab.numbers[token] = id
		next = next && id == len(vocab.numbers)-1 && (kind != normalToken || added == nil)
		switch kind {
		case controlToken, unknownToken:
			added = append(added, addedFile{ID: id, Content: token, Special: true})
		case userToken:
			if strings.Contains(token, " ") {
				return vocab, nil, fmt.Errorf("added token %d is %s: whether it had a space or ▁ is not in the keys", id,
					strconv.Quote(token))
			}
			added = append(added, addedFile{ID: id, Content: token, Normalized: true})
		case normalToken:
		default:
			return vocab, nil, fmt.Errorf("token %d, %s, has type %d", id, text.Quote(token), kind)
		}
		vocab.tokens = append(vocab.tokens, token)
	}
	if next {
		vocab.tokens = vocab.tokens[:len(vocab.tokens)-len(added)]
		for _, a := range added {
			delete(vocab.numbers, a.Content)
		}
	}
	return vocab, added, nil
}

type splitFile struct {
	Type     string            `json:"type"`
	Pattern  map[string]string `json:"pattern"`
	Behavior string            `json:"behavior"`
	Invert   bool              `json:"invert"`
}

// postProcessor adds the tokens to texts that the keys say.
func (v *storedTokenizer) postProcessor() any {
	bytes := json.RawMessage(`{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true}`)
	tokens := map[string]any{}
	added := func(name, key string) []any {
		id, token, ok := v.special(key)
		if add, _ := v.values["tokenizer.ggml.add_"+name+"_token"].one.(bool); !ok || !add {
			return nil
		}
		tokens[token] = map[string]any{"id": token, "ids": []int{id}, "tokens": []string{token}}
		return []any{map[string]any{"SpecialToken": map[string]any{"id": token, "type_id": 0}}}
	}
	text := func(id string, kind int) []any {
		return []any{map[string]any{"Sequence": map[string]any{"id": id, "type_id": kind}}}
	}
	begin, end, between := added("bos", "bos"), added("eos", "eos"), added("sep", "seperator")
	if len(tokens) == 0 {
		return bytes
	}
	return map[string]any{"type": "Sequence", "processors": []any{bytes, map[string]any{"type": "TemplateProcessing",
		"single": slices.Concat(begin, text("A", 0), end), "special_tokens": tokens,
		"pair": slices.Concat(begin, text("A", 0), between, text("B", 1), end)}}}
}

// special returns a token with a meaning.
func (v *storedTokenizer) special(key string) (id int, token string, ok bool) {
	n, ok := v.values["tokenizer.ggml."+key+"_token_id"].one.(uint64)
	if !ok || n >= uint64(len(v.tokens)) {
		return 0, "", false
	}
	return int(n), v.tokens[n], true
}

// settings makes tokenizer_config.json.
func (v *storedTokenizer) settings() any {
	settings := map[string]any{"clean_up_tokenization_spaces": false, "tokenizer_class": "PreTrainedTokenizerFast"}
	for _, s := range specials {
		if _, token, ok := v.special(s.key); ok && s.name != "eot" && s.name != "eom" { // which a file has not
			settings[s.name+"_token"] = token
		}
		if add, ok := v.values["tokenizer.ggml.add_"+s.name+"_token"].one.(bool); ok {
			settings["add_"+s.name+"_token"] = add
		}
	}
	var templates []chatTemplate
	if template, ok := v.values["tokenizer.chat_template"].one.(string); ok {
		templates = append(templates, chatTemplate{defaultTemplate, &template})
	}
	for _, name := range v.values["tokenizer.chat_templates"].many {
		if template, ok := v.values[fmt.Sprintf("tokenizer.chat_template.%v", name)].one.(string); ok {
			templates = append(templates, chatTemplate{fmt.Sprint(name), &template})
		}
	}
	if len(templates) == 1 && templates[0].Name == defaultTemplate {
		settings["chat_template"] = templates[0].Template
	} else if templates != nil {
		settings["chat_template"] = templates
	}
	return settings
}

// elements returns the bytes of an array's elements, if it is one of that kind.
func (v *storedTokenizer) elements(key string, of ...kind) []byte {
	value := v.values[key]
	if value.kind != array || !slices.Contains(of, value.of) {
		return nil
	}
	const types, counts = 8, 8 // bytes
	return v.of[key][8+len(key)+types+counts:]
}

// strings returns an array of strings.
func (v *storedTokenizer) strings(key string) []string {
	b := v.elements(key, str)
	list := make([]string, 0, v.values[key].n)
	for len(b) > 0 {
		end := 8 + binary.LittleEndian.Uint64(b)
		list = append(list, string(b[8:end]))
		b = b[end:]
	}
	return list
}
