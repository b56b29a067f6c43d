package gguf

// The vocabulary of a file to be written.

import "dsmoe/convert/format"

// vocabulary writes the tokenizer. Without one, the model takes numbers of tokens.
func (w *keyWriter) vocabulary(d format.Description) (notes []string, err error) {
	w.put("tokenizer.ggml.model", "none")
	return []string{"there is no tokenizer.json: the file has no vocabulary, and llama.cpp takes numbers of tokens only"}, nil
}

// consumes is Dialect.Consumes.
func consumes(file string) bool {
	switch file {
	case "tokenizer.json", "tokenizer_config.json", "chat_template.jinja":
		return true
	}
	return false
}
