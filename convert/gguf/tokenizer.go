package gguf

// The vocabulary of a file to be written: tokenizer.json and tokenizer_config.json, as
// _set_vocab_gpt2 of conversion/base.py and SpecialVocab of gguf-py read them.

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"dsmoe/convert/format"
	"dsmoe/text"
)

// The files of a tokenizer.
const (
	tokenizerName = "tokenizer.json"
	settingsName  = "tokenizer_config.json"
	templateName  = "chat_template.jinja"
	templateJSON  = "chat_template.json"
	templatesDir  = "additional_chat_templates" // a directory of named templates, NAME.jinja
	pieceName     = "tokenizer.model"           // of SentencePiece, which is not read
)

// The types of tokens: enum llama_token_type.
const (
	normalToken  = 1
	unknownToken = 2
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
	AddedTokens  []addedToken `json:"added_tokens"`
	PreTokenizer struct {
		Type          string `json:"type"`
		PreTokenizers []struct {
			Type    string `json:"type"`
			Pattern struct {
				Regex string `json:"Regex"`
			} `json:"pattern"`
		} `json:"pretokenizers"`
	} `json:"pre_tokenizer"`
	PostProcessor processor `json:"post_processor"`
	Model         struct {
		Type   string         `json:"type"`
		Vocab  map[string]int `json:"vocab"`
		Merges []merge        `json:"merges"`
	} `json:"model"`
}

// addedToken is a token that tokenizers split off before the model sees a text.
type addedToken struct {
	ID      int    `json:"id"`
	Content string `json:"content"`
	Special bool   `json:"special"`
}

// written returns the token as llama.cpp has it, and its type.
func (a addedToken) written() (token string, kind int32) {
	if a.Special || looksSpecial(a.Content) {
		return a.Content, controlToken
	}
	return strings.ReplaceAll(a.Content, "▁", " "), userToken
}

// processor is the post-processor of tokenizer.json, or one of a Sequence.
type processor struct {
	Type       string      `json:"type"`
	Processors []processor `json:"processors"`
	Single     []piece     `json:"single"` // of TemplateProcessing: what a text becomes
	Pair       []piece     `json:"pair"`   // what two texts become
	CLS        []any       `json:"cls"`    // of RobertaProcessing: a token and its number
	SEP        []any       `json:"sep"`
}

// piece is a part of a template: a token or a text.
type piece struct {
	SpecialToken struct {
		ID string `json:"id"`
	} `json:"SpecialToken"`
	Sequence struct {
		ID string `json:"id"`
	} `json:"Sequence"`
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

// pre names the pre-tokenizer, as tokenizer.json has it, or as asked for if its patterns are
// unknown.
func (t *tokenizer) pre(asked string) (name string, notes []string, err error) {
	if t.Model.Type != "BPE" {
		return "", nil, &format.Error{File: tokenizerName,
			Cause: fmt.Sprintf("its model is %s: DeepSeek's are BPE", text.Quote(t.Model.Type)), Hint: noVocabHint}
	}
	h, bytes := sha256.New(), t.PreTokenizer.Type == byteLevel
	for _, p := range t.PreTokenizer.PreTokenizers {
		if p.Type == "Split" {
			io.WriteString(h, p.Pattern.Regex)
		}
		bytes = bytes || p.Type == byteLevel
	}
	name, known := splits[hex.EncodeToString(h.Sum(nil))]
	cause, hint := "", ""
	switch {
	case known && (asked == "" || asked == name):
		return name, nil, nil
	case known:
		cause, hint = "its pre_tokenizer is "+name+", and not "+text.Quote(asked), "leave out --pre"
	case asked == "":
		cause = "its pre_tokenizer is not deepseek-llm, deepseek-coder or deepseek-v3: llama.cpp would split texts otherwise"
		hint = "--pre NAME names it as llama.cpp does; " + noVocabHint
	case !bytes:
		cause, hint = "its pre_tokenizer has no ByteLevel: llama.cpp's BPE reads texts as bytes", noVocabHint
	default:
		return asked, []string{"the pre-tokenizer's name " + text.Quote(asked) +
			" is the user's: llama.cpp splits texts by it, and not by tokenizer.json"}, nil
	}
	return "", nil, &format.Error{File: tokenizerName, Cause: cause, Hint: hint}
}

const (
	byteLevel   = "ByteLevel"
	noVocabHint = "--no-vocab writes the file without a vocabulary"
)

// numbering is tokens by number, with their types: 0 for a number without a token.
type numbering struct {
	tokens []string
	types  []int32
}

// place adds a token of a file.
func (n numbering) place(file string, id int, token string, kind int32) error {
	cause := ""
	switch {
	case id < 0 || id >= len(n.tokens):
		cause = fmt.Sprintf("token %s has number %d, but vocab_size is %d", text.Quote(token), id, len(n.tokens))
	case n.types[id] != 0 && n.tokens[id] != token:
		cause = fmt.Sprintf("%d is the number of %s and of %s", id, text.Quote(min(token, n.tokens[id])),
			text.Quote(max(token, n.tokens[id])))
	default:
		n.tokens[id], n.types[id] = token, kind
		return nil
	}
	return &format.Error{File: file, Cause: cause}
}

// add is place for an added token, which the model's vocabulary may have, too.
func (n numbering) add(file string, a addedToken) error {
	if 0 <= a.ID && a.ID < len(n.tokens) && n.tokens[a.ID] == a.Content {
		n.types[a.ID] = 0
	}
	token, kind := a.written()
	return n.place(file, a.ID, token, kind)
}

// tokens lists all tokens by number, with their types.
func (t *tokenizer) tokens(size int, settings map[string]json.RawMessage) (tokens []string, types []int32, err error) {
	n := numbering{make([]string, size), make([]int32, size)}
	for _, token := range slices.SortedFunc(maps.Keys(t.Model.Vocab), func(a, b string) int {
		return cmp.Or(t.Model.Vocab[a]-t.Model.Vocab[b], cmp.Compare(a, b))
	}) {
		if err := n.place(tokenizerName, t.Model.Vocab[token], token, normalToken); err != nil {
			return nil, nil, err
		}
	}
	for _, a := range t.AddedTokens {
		if err := n.add(tokenizerName, a); err != nil {
			return nil, nil, err
		}
	}
	if err := t.addConfigured(n, settings); err != nil {
		return nil, nil, err
	}
	seen := make(map[string]int, size)
	for id := range n.tokens {
		if n.types[id] == 0 {
			n.tokens[id], n.types[id] = fmt.Sprintf("[PAD%d]", id), unusedToken
		}
		if first, twice := seen[n.tokens[id]]; twice {
			return nil, nil, &format.Error{File: tokenizerName,
				Cause: fmt.Sprintf("token %s has numbers %d and %d, which llama.cpp does not take", text.Quote(n.tokens[id]), first,
					id)}
		}
		seen[n.tokens[id]] = id
	}
	return n.tokens, n.types, nil
}

// addConfigured adds the tokens of tokenizer_config.json as transformers does:
// added_tokens_decoder, which changes the types of tokenizer.json's, and, of those that it
// names special, the ones that neither has added.
func (t *tokenizer) addConfigured(n numbering, settings map[string]json.RawMessage) error {
	numbers, added := map[string]int{}, map[string]bool{}
	for id, token := range n.tokens {
		if n.types[id] != 0 {
			numbers[token] = id
		}
	}
	for _, a := range t.AddedTokens {
		numbers[a.Content], added[a.Content] = a.ID, true
	}
	decoder, err := t.decoder(settings["added_tokens_decoder"])
	if err != nil {
		return err
	}
	named, listed := specialIn(settings)
	for _, a := range decoder {
		if id, known := numbers[a.Content]; known {
			a.ID, n.types[id] = id, 0
		}
		a.Special = a.Special || named[a.Content]
		if err := n.add(settingsName, a); err != nil {
			return err
		}
		numbers[a.Content], added[a.Content] = a.ID, true
	}
	for content := range named {
		listed[content] = true
	}
	for content := range listed {
		if id, known := numbers[content]; known && !added[content] {
			n.types[id] = controlToken
		}
	}
	return nil
}

// decoder reads added_tokens_decoder, sorted by number; tokenizer.json's stand for a missing one.
func (t *tokenizer) decoder(raw json.RawMessage) (tokens []addedToken, err error) {
	if raw == nil {
		return slices.Clone(t.AddedTokens), nil
	}
	var decoder map[string]addedToken
	err = json.Unmarshal(raw, &decoder)
	for _, key := range slices.Sorted(maps.Keys(decoder)) {
		a := decoder[key]
		if a.ID, err = strconv.Atoi(key); err != nil {
			break
		}
		tokens = append(tokens, a)
	}
	if err != nil {
		return nil, &format.Error{File: settingsName, Cause: "added_tokens_decoder cannot be read: " + err.Error()}
	}
	slices.SortStableFunc(tokens, func(a, b addedToken) int { return a.ID - b.ID })
	return tokens, nil
}

// specialIn are the contents of the tokens that tokenizer_config.json names special: those with a
// meaning, and those in lists.
func specialIn(settings map[string]json.RawMessage) (named, listed map[string]bool) {
	named, listed = map[string]bool{}, map[string]bool{}
	for key, raw := range settings {
		if strings.HasSuffix(key, "_token") {
			named[tokenOf(raw).content] = true
		}
	}
	for _, key := range []string{"additional_special_tokens", "extra_special_tokens"} {
		var list []json.RawMessage
		var object map[string]json.RawMessage
		json.Unmarshal(settings[key], &list)
		json.Unmarshal(settings[key], &object)
		for _, raw := range slices.AppendSeq(list, maps.Values(object)) {
			listed[tokenOf(raw).content] = true
		}
	}
	return named, listed
}

// token is a token of tokenizer_config.json: a string, or an object with one. SpecialVocab
// takes an object for another token than the string with the same content.
type token struct {
	content string // empty if there is no token
	object  bool
}

// tokenOf reads a token.
func tokenOf(raw json.RawMessage) (t token) {
	if raw == nil || json.Unmarshal(raw, &t.content) == nil {
		return t
	}
	var object struct {
		Content string `json:"content"`
	}
	if json.Unmarshal(raw, &object) != nil {
		return token{}
	}
	return token{object.Content, object.Content != ""}
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
