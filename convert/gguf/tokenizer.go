package gguf

// The vocabulary of a file to be written: tokenizer.json or Kimi's tiktoken.model, and tokenizer_config.json, as
// _set_vocab_gpt2 of conversion/base.py, DeepseekV2Model.set_vocab and SpecialVocab of gguf-py read them.

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"dsmoe/config"
	"dsmoe/convert/format"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// The files of a tokenizer.
const (
	tokenizerName = "tokenizer.json"
	tiktokenName  = "tiktoken.model" // of Kimi
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

// glmSplit is the hash of the pattern of GLM's Split, which other models have under other names.
const glmSplit = "d98f9631be1e9607a9848c26c1f9eac1aa9fc21ac6ba82a2fc0741af9780a48f"

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

	file string // it was read from
	name string // of the pre-tokenizer of tiktoken.model; "" if it is not known to be Kimi's
}

// addedToken is a token that tokenizers split off before the model sees a text.
type addedToken struct {
	ID      int    `json:"id"`
	Content string `json:"content"`
	Special bool   `json:"special"`
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

// pre returns llama.cpp's name of the pre-tokenizer: by its patterns, or as asked for if these are unknown.
func (t *tokenizer) pre(asked string, c *config.Config) (name string, notes []string) {
	if t.Model.Type != "BPE" {
		format.Fail(problem.New(tokenizerName, fmt.Sprintf("its model is %s: DeepSeek's are BPE", text.Quote(t.Model.Type)),
			noVocabHint))
	}
	name, bytes := t.name, t.file == tiktokenName || t.PreTokenizer.Type == byteLevel // bytes: it reads texts as bytes
	if t.file != tiktokenName {
		h := sha256.New()
		for _, p := range t.PreTokenizer.PreTokenizers {
			if p.Type == "Split" {
				io.WriteString(h, p.Pattern.Regex)
			}
			bytes = bytes || p.Type == byteLevel
		}
		hash := hex.EncodeToString(h.Sum(nil))
		if name = splits[hash]; hash == glmSplit && modelOf(c).glm {
			name = "glm4"
		}
	}
	cause, hint := "", ""
	switch {
	case name != "" && (asked == "" || asked == name):
		return name, nil
	case name != "":
		cause, hint = "its pre_tokenizer is "+name+", and not "+text.Quote(asked), "leave out --pre"
	case asked == "" && t.file == tiktokenName:
		cause = "auto_map of tokenizer_config.json does not name tokenization_kimi: which pre-tokenizer it has is unknown"
		hint = "--pre NAME names it as llama.cpp does; " + noVocabHint
	case asked == "":
		cause = "its pre_tokenizer is not deepseek-llm, deepseek-coder or deepseek-v3: llama.cpp would split texts otherwise"
		hint = "--pre NAME names it as llama.cpp does; " + noVocabHint
	case !slices.Contains(preNames, asked):
		cause = "llama.cpp has no pre-tokenizer " + text.Quote(asked)
		hint = "--pre takes one of: " + strings.Join(preNames, ", ")
	case !bytes:
		cause, hint = "its pre_tokenizer has no ByteLevel: llama.cpp's BPE reads texts as bytes", noVocabHint
	default:
		return asked, []string{"the pre-tokenizer's name " + text.Quote(asked) +
			" is the user's: llama.cpp splits texts by it, and not by " + t.file}
	}
	format.Fail(problem.New(t.file, cause, hint))
	return "", nil
}

// preNames are the names of pre-tokenizers that src/llama-vocab.cpp of llama.cpp knew in summer 2026: it does not load
// a file with another.
var preNames = strings.Fields(`a.x-4.0 afmoe bailingmoe bailingmoe2 bloom chameleon chatglm-bpe codeshell cohere2moe
	command-r dbrx deepseek-coder deepseek-llm deepseek-r1-qwen deepseek-v3 default exaone exaone-moe exaone4 f2llmv2
	falcon falcon-h1 falcon3 gemma4 gigachat glm4 gpt-2 gpt-4o gpt3-finnish granite-docling granite-embed-multi-311m
	granite-embed-multi-97m grok-2 hunyuan hunyuan-dense jais jais-2 jina-de jina-es jina-v1-en jina-v2-code jina-v2-de
	jina-v2-es jina-v5-nano joyai-llm kanana2 kimi-k2 kormo laguna lfm2 llada-moe llama-bpe llama-v3 llama3 llama4 megrez
	mellum mellum2 midm-2.0 minerva-7b minicpm5 minimax-m2 modern-bert mpt olmo phi-2 pixtral poro-chat qwen2 qwen35 refact
	roberta-bpe sarvam-moe seed-coder smaug-bpe smollm solar-open stablelm2 starcoder superbpe talkie tekken tiny_aya
	trillion viking whitespace youtu`)

const (
	byteLevel   = "ByteLevel"
	noVocabHint = "--no-vocab writes the file without a vocabulary"
)

// reservedTokens is the number of special tokens that tokenization_kimi.py adds behind the tokens of tiktoken.model.
const reservedTokens = 256

// readTiktoken reads tiktoken.model: a line has base64 of a token's bytes and its number, which is its rank among
// merges. The numbers behind are the special tokens of added_tokens_decoder, and reserved ones. It takes
// added_tokens_decoder out of settings: whatever that says, all of them are special.
func (t *tokenizer) readTiktoken(d format.Description, settings map[string]json.RawMessage) (found bool) {
	data := slurp(d, tiktokenName)
	if data == nil {
		return false
	}
	t.file = tiktokenName
	if strings.Contains(string(settings["auto_map"]), "tokenization_kimi.") {
		t.name = "kimi-k2"
	}
	t.Model.Type, t.Model.Vocab = "BPE", map[string]int{}
	ranks := map[string]int{}
	for line := range strings.Lines(string(data)) {
		coded, rank, _ := strings.Cut(strings.TrimSpace(line), " ")
		token, err := base64.StdEncoding.DecodeString(coded)
		if line == "\n" {
			continue
		}
		_, twice := ranks[string(token)]
		if number, bad := strconv.Atoi(rank); twice || err != nil || bad != nil || len(token) == 0 || number != len(ranks) {
			format.Fail(problem.New(tiktokenName, fmt.Sprintf("line %d is not a new token and its number", len(ranks)+1), ""))
		}
		ranks[string(token)] = len(ranks)
		t.Model.Vocab[spelled(string(token))] = len(ranks) - 1
		if pair := parts(ranks, string(token)); len(pair) == 2 {
			t.Model.Merges = append(t.Model.Merges, merge(spelled(pair[0])+" "+spelled(pair[1])))
		}
	}
	base, size := len(ranks), d.Config.VocabSize
	names := map[int]string{}
	for _, a := range t.decoder(settings["added_tokens_decoder"]) {
		names[a.ID] = a.Content
	}
	delete(settings, "added_tokens_decoder")
	if size > base+reservedTokens {
		format.Fail(problem.New(tiktokenName, fmt.Sprintf("has %d tokens, and vocab_size is %d: more than %d special ones",
			base, size, reservedTokens), noVocabHint))
	}
	for id := base; id < size; id++ {
		t.AddedTokens = append(t.AddedTokens,
			addedToken{id, cmp.Or(names[id], fmt.Sprintf("<|reserved_token_%d|>", id)), true})
	}
	return true
}

// parts joins the bytes of a token of tiktoken.model, by rank, as far as tokens of a lower rank go: two parts are the
// merge that makes the token.
func parts(ranks map[string]int, token string) []string {
	var all []string
	for i := range len(token) {
		all = append(all, token[i:i+1])
	}
	for {
		first, least := -1, ranks[token]
		for i := range len(all) - 1 {
			if rank, known := ranks[all[i]+all[i+1]]; known && rank < least {
				first, least = i, rank
			}
		}
		if first < 0 {
			return all
		}
		all = slices.Replace(all, first, first+2, all[first]+all[first+1])
	}
}

// byteLetters are the letters that vocabularies have for bytes: printable ones stand for themselves, others are
// numbered from U+0100 on.
var byteLetters = func() (letters [256]rune) {
	next := rune(0x100)
	for i := range rune(256) {
		switch {
		case '!' <= i && i <= '~', '¡' <= i && i <= '¬', '®' <= i:
			letters[i] = i
		default:
			letters[i] = next
			next++
		}
	}
	return letters
}()

// spelled returns bytes as vocabularies have them.
func spelled(bytes string) string {
	var b strings.Builder
	for i := range len(bytes) {
		b.WriteRune(byteLetters[bytes[i]])
	}
	return b.String()
}

// numbering is tokens by number, with their types: 0 for a number without a token.
type numbering struct {
	tokens []string
	types  []int32
}

// place adds a token of a file.
func (n numbering) place(file string, id int, token string, kind int32) {
	cause := ""
	switch {
	case id < 0 || id >= len(n.tokens):
		cause = fmt.Sprintf("token %s has number %d, but vocab_size is %d", text.Quote(token), id, len(n.tokens))
	case n.types[id] != 0 && n.tokens[id] != token:
		cause = fmt.Sprintf("%d is the number of %s and of %s", id, text.Quote(min(token, n.tokens[id])),
			text.Quote(max(token, n.tokens[id])))
	default:
		n.tokens[id], n.types[id] = token, kind
		return
	}
	format.Fail(problem.New(file, cause, ""))
}

// add is place for an added token, which the model's vocabulary may have, too, as llama.cpp has it. Some are control
// tokens in spite of tokenizer.json: does_token_look_special.
func (n numbering) add(file string, a addedToken) {
	if 0 <= a.ID && a.ID < len(n.tokens) && n.tokens[a.ID] == a.Content {
		n.types[a.ID] = 0
	}
	special := a.Special || slices.Contains([]string{"<pad>", "<mask>", "<2mass>", "[@BOS@]"}, a.Content)
	for _, around := range [][2]string{{"<|", "|>"}, {"<｜", "｜>"}, {"<unused", ">"}} {
		special = special || strings.HasPrefix(a.Content, around[0]) && strings.HasSuffix(a.Content, around[1])
	}
	if special {
		n.place(file, a.ID, a.Content, controlToken)
	} else {
		n.place(file, a.ID, strings.ReplaceAll(a.Content, "▁", " "), userToken)
	}
}

// tokens lists all tokens by number, with their types.
func (t *tokenizer) tokens(size int, settings map[string]json.RawMessage) (tokens []string, types []int32) {
	n := numbering{make([]string, size), make([]int32, size)}
	for _, token := range slices.SortedFunc(maps.Keys(t.Model.Vocab), func(a, b string) int {
		return cmp.Or(t.Model.Vocab[a]-t.Model.Vocab[b], cmp.Compare(a, b))
	}) {
		n.place(t.file, t.Model.Vocab[token], token, normalToken)
	}
	for _, a := range t.AddedTokens {
		n.add(t.file, a)
	}
	t.addConfigured(n, settings)
	seen := make(map[string]int, size)
	for id := range n.tokens {
		if n.types[id] == 0 {
			n.tokens[id], n.types[id] = fmt.Sprintf("[PAD%d]", id), unusedToken
		}
		if first, twice := seen[n.tokens[id]]; twice {
			format.Fail(problem.New(t.file, fmt.Sprintf("token %s has numbers %d and %d, which llama.cpp does not take",
				text.Quote(n.tokens[id]), first, id), ""))
		}
		seen[n.tokens[id]] = id
	}
	return n.tokens, n.types
}

// addConfigured adds the tokens of tokenizer_config.json as transformers does:
// added_tokens_decoder, which changes the types of tokenizer.json's, and, of those that it
// names special, the ones that neither has added.
func (t *tokenizer) addConfigured(n numbering, settings map[string]json.RawMessage) {
	numbers, added := map[string]int{}, map[string]bool{}
	for id, token := range n.tokens {
		if n.types[id] != 0 {
			numbers[token] = id
		}
	}
	for _, a := range t.AddedTokens {
		numbers[a.Content], added[a.Content] = a.ID, true
	}
	named, listed := map[string]bool{}, map[string]bool{} // the contents of tokens with a meaning, and in lists
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
	for _, a := range t.decoder(settings["added_tokens_decoder"]) {
		if id, known := numbers[a.Content]; known {
			a.ID, n.types[id] = id, 0
		}
		a.Special = a.Special || named[a.Content]
		n.add(settingsName, a)
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
}

// decoder reads added_tokens_decoder, sorted by number; tokenizer.json's stand for a missing one.
func (t *tokenizer) decoder(raw json.RawMessage) (tokens []addedToken) {
	if raw == nil {
		return slices.Clone(t.AddedTokens)
	}
	var decoder map[string]addedToken
	err := json.Unmarshal(raw, &decoder)
	for _, key := range slices.Sorted(maps.Keys(decoder)) {
		a := decoder[key]
		if a.ID, err = strconv.Atoi(key); err != nil {
			break
		}
		tokens = append(tokens, a)
	}
	if err != nil {
		format.Fail(problem.New(settingsName, "added_tokens_decoder cannot be read: "+err.Error(), ""))
	}
	slices.SortStableFunc(tokens, func(a, b addedToken) int { return a.ID - b.ID })
	return tokens
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
