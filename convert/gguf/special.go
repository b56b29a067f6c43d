package gguf

// The tokens with a meaning and the chat templates: tokenizer_config.json, the post-processor
// of tokenizer.json and config.json, as SpecialVocab of gguf-py reads them.

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"dsmoe/convert/format"
	"dsmoe/text/problem"
)

// consumes is Dialect.Consumes.
func consumes(file string) bool {
	return slices.Contains([]string{tokenizerName, tiktokenName, settingsName, templateName, templateJSON, templatesDir,
		samplingName}, file)
}

// putTokenizer writes the tokenizer of the file from, or that a file has none as asked for. It refuses to write a file
// without one otherwise: llama.cpp then takes numbers of tokens only.
func (w *keyWriter) putTokenizer(d format.Description) (from string, notes []string) {
	if d.NoVocab {
		w.put("tokenizer.ggml.model", "none")
		return "", []string{"the file has no vocabulary, as asked for: llama.cpp takes numbers of tokens only"}
	}
	t, settings := &tokenizer{file: tokenizerName}, map[string]json.RawMessage{}
	found := readJSON(d, tokenizerName, t)
	readJSON(d, settingsName, &settings)
	if !found && !t.readTiktoken(d, settings) {
		name, cause, hint := tokenizerName, "is missing: llama.cpp and Ollama need the vocabulary for texts",
			"download tokenizer.json and tokenizer_config.json"
		if d.Open == nil {
			cause, hint = "is not read with a single weight file", "give the directory, whose tokenizer is then read"
		} else if f, err := d.Open(pieceName); err == nil {
			f.Close()
			name, cause = pieceName, "holds a vocabulary of SentencePiece, which is not read, and there is no tokenizer.json"
			hint = "save_pretrained of transformers' AutoTokenizer writes a tokenizer.json"
		}
		format.Fail(problem.New(name, cause, hint+
			"; --no-vocab writes a file without a vocabulary, with which llama.cpp takes numbers of tokens only"))
	}
	pre, notes := t.pre(d.Pre, d.Config)
	tokens, types := t.tokens(d.Config.VocabSize, settings)
	w.put("tokenizer.ggml.model", "gpt2")
	w.put("tokenizer.ggml.pre", pre)
	w.put(tokensKey, tokens)
	w.put("tokenizer.ggml.token_type", types)
	merges := make([]string, len(t.Model.Merges))
	for i, m := range t.Model.Merges {
		merges[i] = string(m)
	}
	w.put("tokenizer.ggml.merges", merges)
	return t.file, slices.Concat(notes, w.meanings(d, t, settings, tokens), w.templates(d, settings))
}

// meanings are the tokens with a meaning, and which of them llama.cpp adds to texts.
type meanings struct {
	tokens map[string]token // by the names that SpecialVocab has for them
	add    map[string]bool
}

// specials are the tokens with a meaning, and what llama.cpp calls them. A template that
// replaces the end of a text gives the former end the names eot and eom, which no others have.
var specials = []struct{ name, key string }{{"bos", "bos"}, {"eos", "eos"}, {"unk", "unknown"}, {"sep", "seperator"},
	{"pad", "padding"}, {"mask", "mask"}, {"eot", "eot"}, {"eom", "eom"}}

// meaningsOf reads the meanings of tokens.
func (t *tokenizer) meaningsOf(settings map[string]json.RawMessage) *meanings {
	m := &meanings{map[string]token{}, map[string]bool{}}
	for _, name := range []string{"bos", "eos", "unk", "sep", "pad", "mask", "cls"} {
		m.tokens[name] = tokenOf(settings[name+"_token"])
	}
	m.replace("bos", m.tokens["cls"])
	m.replace("eos", m.tokens["sep"])
	processors := t.PostProcessor.Processors
	if processors == nil {
		processors = []processor{t.PostProcessor}
	}
	bytes := false
	for _, p := range processors {
		switch p.Type {
		case "TemplateProcessing":
			m.template(p)
		case "RobertaProcessing":
			for name, by := range map[string][]any{"cls": p.CLS, "sep": p.SEP} {
				if len(by) > 0 {
					content, _ := by[0].(string)
					m.replace(name, token{content: content})
				}
			}
			m.add["bos"], m.add["eos"], m.add["sep"] = true, true, true
		case byteLevel:
			bytes = true
		}
	}
	for _, name := range addable { // the config's word counts for a token that no template speaks of
		said := string(settings["add_"+name+"_token"])
		_, known := m.add[name]
		switch {
		case known:
		case said == "true" || said == "false":
			m.add[name] = said == "true"
		case bytes && name != "sep": // ByteLevel adds none
			m.add[name] = false
		}
	}
	return m
}

// addable are the tokens that llama.cpp can add to texts.
var addable = []string{"bos", "eos", "sep"}

// replace gives a name without a token the token.
func (m *meanings) replace(name string, by token) {
	if m.tokens[name].content == "" {
		m.tokens[name] = by
	}
}

// template reads TemplateProcessing.
func (m *meanings) template(p processor) {
	first, last := "", ""
	if n := len(p.Single); n > 1 {
		first, last = p.Single[0].SpecialToken.ID, p.Single[n-1].SpecialToken.ID
	}
	if first != "" {
		if first != m.tokens["bos"].content && first != m.tokens["cls"].content {
			m.replace("bos", token{content: first})
			m.replace("cls", token{content: first})
		}
		m.add["bos"] = first == m.tokens["bos"].content || first == m.tokens["cls"].content
	}
	if end, former := (token{content: last}), m.tokens["eos"]; last != "" {
		m.add["eos"] = true
		if m.tokens["eos"] = end; former != end {
			for _, name := range []string{"eot", "eom"} {
				if _, taken := m.tokens[name]; !taken {
					m.tokens[name] = former
					break
				}
			}
		}
	}
	pair := p.Pair // of two texts, and what stands between them
	if n := len(pair); n > 0 && first != "" && pair[0].SpecialToken.ID == first {
		pair = pair[1:]
	}
	if n := len(pair); n > 0 && last != "" && pair[n-1].SpecialToken.ID == last {
		pair = pair[:n-1]
	}
	n := len(pair)
	if n < 3 || pair[0].Sequence.ID != "A" || pair[n-1].Sequence.ID != "B" {
		return
	}
	separates := func(p piece) bool {
		t := token{content: p.SpecialToken.ID}
		return t.content != "" && (t == m.tokens["sep"] || t == m.tokens["eos"])
	}
	between := pair[1 : n-1]
	m.add["sep"] = separates(between[0]) && last == "" || len(between) == 2 && separates(between[1])
	if m.add["sep"] {
		m.replace("sep", m.tokens["eos"])
	}
}

// meanings writes which tokens have a meaning, and which of them are added to texts.
func (w *keyWriter) meanings(d format.Description, t *tokenizer, settings map[string]json.RawMessage,
	tokens []string) (notes []string) {
	m, ids, ends := t.meaningsOf(settings), map[string]json.RawMessage{}, endsOf(d)
	json.Unmarshal(d.Config.JSON(), &ids) // the config was parsed
	if modelOf(d.Config).glm {            // names without a token in config.json: _set_vocab_glm of llama.cpp's converter
		for name, content := range map[string]string{"bos": "[gMASK]", "eot": "<|user|>", "unk": "<|endoftext|>",
			"eom": "<|observation|>"} {
			var id int
			if json.Unmarshal(ids[name+"_token_id"], &id) != nil && t.addedNumber(content) >= 0 {
				m.replace(name, token{content: content})
			}
		}
	}
	for _, s := range specials {
		named, known := m.tokens[s.name]
		if !known {
			continue
		}
		id := t.addedNumber(named.content)
		var number *int
		if id < 0 && json.Unmarshal(ids[s.name+"_token_id"], &number) == nil && number != nil && *number < len(tokens) {
			id = *number
		}
		if id < 0 && named.content != "" {
			id = slices.Index(tokens, named.content)
		}
		if s.name == "eos" && id < 0 && len(ends) > 0 && 0 <= ends[0] && ends[0] < len(tokens) {
			id = ends[0]
		}
		switch {
		case id >= 0:
			w.put("tokenizer.ggml."+s.key+"_token_id", uint32(id))
			if s.name == "eos" && len(ends) > 1 {
				notes = append(notes, fmt.Sprintf("eos_token_id lists %d tokens that end a text, %d is written: a file has one; "+
					"give the others to the program as stop words", len(ends), id))
			}
		case m.add[s.name]:
			notes = append(notes, s.name+
				" is added to texts, but no file says which token it is: llama.cpp takes a number of its own")
		case s.name == "bos":
			notes = append(notes, "no file says which token begins a text: no BOS is written, and llama.cpp takes a number of its own")
		}
	}
	for _, name := range addable {
		if add, known := m.add[name]; known {
			w.put("tokenizer.ggml.add_"+name+"_token", add)
		}
	}
	return notes
}

// endsOf returns the tokens that eos_token_id of config.json or generation_config.json lists; nil if it is one number.
func endsOf(d format.Description) []int {
	for _, data := range [][]byte{d.Config.JSON(), slurp(d, samplingName)} { // of one that cannot be read another note tells
		fields, ends := map[string]json.RawMessage{}, []int{}
		json.Unmarshal(data, &fields)
		if json.Unmarshal(fields["eos_token_id"], &ends) == nil && len(ends) > 0 {
			return ends
		}
	}
	return nil
}

// addedNumber returns the number of an added token of tokenizer.json; -1 if there is no such token.
func (t *tokenizer) addedNumber(content string) int {
	if t.file == tiktokenName {
		return -1
	}
	i := slices.IndexFunc(t.AddedTokens, func(a addedToken) bool { return a.Content == content })
	if i < 0 || content == "" {
		return -1
	}
	return t.AddedTokens[i].ID
}

// chatTemplate is one of several templates.
type chatTemplate struct {
	Name     string  `json:"name"`
	Template *string `json:"template"`
}

// templates writes the chat templates.
func (w *keyWriter) templates(d format.Description, settings map[string]json.RawMessage) (notes []string) {
	templates, bad := templatesOf(d, settings)
	letter := func(r rune) rune { // of a template's name in a key
		if '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '_'
	}
	texts, names := map[string]string{}, []string{}
	for _, t := range templates {
		name := strings.Map(letter, t.Name)
		if t.Template == nil || name == "" {
			continue
		}
		if _, twice := texts[name]; !twice && name != defaultTemplate {
			names = append(names, name)
		}
		texts[name] = *t.Template
	}
	for _, name := range names {
		w.putSome("tokenizer.chat_template."+name, texts[name])
	}
	w.putSome("tokenizer.chat_templates", names)
	w.putSome("tokenizer.chat_template", texts[defaultTemplate])
	switch {
	case bad != "":
		notes = append(notes, bad+
			" has a chat_template that is neither a text nor a list of named texts: it is not written")
	case len(texts) == 0:
		notes = append(notes, noTemplate)
	}
	return notes
}

const (
	defaultTemplate = "default"
	noTemplate      = "no file has a chat template: programs that chat take one of their own"
)

// templatesOf finds the chat templates: chat_template.jinja with additional_chat_templates, or
// chat_template of tokenizer_config.json, or chat_template.json. bad is the file whose
// template has a wrong type.
func templatesOf(d format.Description, settings map[string]json.RawMessage) (list []chatTemplate, bad string) {
	if jinja := slurp(d, templateName); jinja != nil {
		template := string(jinja)
		list = []chatTemplate{{defaultTemplate, &template}}
		names, err := d.List(templatesDir)
		if err != nil {
			format.Fail(err)
		}
		for _, name := range names {
			if path.Ext(name) == ".jinja" {
				template := string(slurp(d, path.Join(templatesDir, name)))
				list = append(list, chatTemplate{strings.TrimSuffix(name, ".jinja"), &template})
			}
		}
		return list, ""
	}
	raw, file := settings["chat_template"], settingsName
	if raw == nil || string(raw) == "null" {
		var alone struct {
			Template json.RawMessage `json:"chat_template"`
		}
		readJSON(d, templateJSON, &alone)
		raw, file = alone.Template, templateJSON
	}
	var one *string
	switch {
	case raw == nil:
	case json.Unmarshal(raw, &one) == nil:
		list = []chatTemplate{{defaultTemplate, one}}
	case json.Unmarshal(raw, &list) != nil:
		return nil, file
	}
	return list, ""
}
