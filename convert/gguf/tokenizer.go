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
	"io/fs"
	"maps"
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
	templateJSON  = "chat_template.json"
	templatesDir  = "additional_chat_templates" // a directory of named templates, NAME.jinja
	pieceName     = "tokenizer.model"           // of SentencePiece, which is not read
)

// consumes is Dialect.Consumes.
func consumes(file string) bool {
	return slices.Contains([]string{tokenizerName, settingsName, templateName, templateJSON, templatesDir,
		samplingName}, file)
}

// MaxTokenizer is the most bytes that a file of a tokenizer may have.
const MaxTokenizer = 64 << 20

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

// kind returns the token as llama.cpp has it, and its type.
func (a addedToken) kind() (token string, kind int32) {
	if a.Special || looksSpecial(a.Content) {
		return a.Content, controlToken
	}
	return strings.ReplaceAll(a.Content, "▁", " "), userToken
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
	found, err := false, error(nil)
	if !d.NoVocab {
		found, err = read(d, tokenizerName, &t)
	}
	if err != nil {
		return nil, err
	}
	if !found {
		w.put("tokenizer.ggml.model", "none")
		return w.unnamed(d)
	}
	settings := map[string]json.RawMessage{}
	if _, err := read(d, settingsName, &settings); err != nil {
		return nil, err
	}
	pre, notes, err := t.pre(d.Pre)
	if err != nil {
		return nil, err
	}
	tokens, types, err := t.tokens(d.Config.VocabSize, settings)
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
	notes = slices.Concat([]string{"the vocabulary comes from tokenizer.json"}, notes, w.meanings(d, &t, settings, tokens))
	templateNotes, err := w.templates(d, settings)
	return append(notes, templateNotes...), err
}

// unnamed explains why a file has no vocabulary.
func (w *keyWriter) unnamed(d format.Description) (notes []string, err error) {
	const numbers = "llama.cpp takes numbers of tokens only"
	switch {
	case d.NoVocab:
		return []string{"the file has no vocabulary, as asked for: " + numbers}, nil
	case d.Open == nil && d.Pre == "":
		return []string{"a single weight file is converted without files beside it: the file has no vocabulary, and " +
			numbers}, nil
	case d.Pre != "":
		cause := map[bool]string{true: "is not read with a single weight file", false: "is missing"}[d.Open == nil]
		return nil, &format.Error{File: tokenizerName, Cause: cause + ": there is no pre-tokenizer to name",
			Hint: "leave out --pre"}
	}
	f, err := d.Open(pieceName)
	if err == nil {
		f.Close()
		return nil, &format.Error{File: pieceName,
			Cause: "holds a vocabulary of SentencePiece, which is not read, and there is no tokenizer.json",
			Hint: "save_pretrained of transformers' AutoTokenizer writes a tokenizer.json; " +
				"--no-vocab writes the file without a vocabulary"}
	}
	return []string{"there is no tokenizer.json: the file has no vocabulary, and " + numbers}, nil
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
	data, err := head(d, name, MaxTokenizer)
	if err == nil && len(data) > MaxTokenizer {
		err = &format.Error{File: name, Cause: "has more than " + text.Bytes(MaxTokenizer)}
	}
	return data, err
}

// head returns the first bytes of a file beside the weights, limit + 1 at most; nil if it is
// missing.
func head(d format.Description, name string, limit int64) ([]byte, error) {
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
	return io.ReadAll(io.LimitReader(f, limit+1))
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
	token, kind := a.kind()
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
