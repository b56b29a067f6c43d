package gguf

import (
	"fmt"
	"slices"
	"strconv"

	"dsmoe/convert/format"
)

// vocabularyOf reads what encoded keys say of texts; nil if they hold no tokens. from is what the tokens were made of, more are
// numbers of tokens that end a text beside the one of the keys. An error says that a reader refuses the keys.
func vocabularyOf(keys []byte, from string, more []int) (*format.Vocabulary, error) {
	h, data, err := (&keyWriter{b: keys}).header()
	if err != nil {
		return nil, fmt.Errorf("the keys of the output: %w", err)
	}
	v := storedTokenizer{File: &File{Header: h}, pairs: pairsIn(h, data)}
	if v.tokens = v.strings(tokensKey); len(v.tokens) == 0 {
		return nil, nil
	}
	pre, _ := h.values["tokenizer.ggml.pre"].one.(string)
	template, _ := h.values["tokenizer.chat_template"].one.(string)
	x := &format.Vocabulary{From: from, Tokens: len(v.tokens), Pre: pre, Ends: []format.Token{}, Template: template != "",
		Sampling: []format.Parameter{}}
	if id, token, ok := v.special("bos"); ok {
		x.Begin = &format.Token{ID: id, Text: token}
	}
	if id, _, ok := v.special("eos"); ok {
		more = append([]int{id}, more...)
	}
	for _, id := range more {
		if 0 <= id && id < len(v.tokens) && !slices.Contains(x.Ends, format.Token{ID: id, Text: v.tokens[id]}) {
			x.Ends = append(x.Ends, format.Token{ID: id, Text: v.tokens[id]})
		}
	}
	for _, s := range samplers {
		value := ""
		switch number := h.values["general.sampling."+s.key].one.(type) {
		case float64: // that a float32 has
			value = strconv.FormatFloat(number, 'g', -1, 32)
		case int64, uint64:
			value = fmt.Sprint(number)
		}
		if s.ollama != "" && value != "" && value[len(value)-1] <= '9' { // not NaN or Inf
			x.Sampling = append(x.Sampling, format.Parameter{Name: s.ollama, Value: value})
		}
	}
	return x, nil
}
