// Package gguf reads and lays out the files of llama.cpp. Open checks a file's whole header.
// A checkpoint's files together hold its config.json and the weights of the table, whose rows
// have GGUF names (table.Row). GGUF names occur only in this package, in that column, and in
// reports about such files.
//
// The reader accepts the versions that llama.cpp's own reader accepts, 2 and 3, and nothing
// else. It checks every length in a file before it allocates memory for it. The package
// writes no file.
package gguf

import (
	"path/filepath"
	"strings"

	"dsmoe/convert/format"
)

// Format is GGUF, as llama.cpp reads and writes it.
func Format() *format.Format {
	var types []string
	for _, m := range mixtures {
		types = append(types, m.word)
	}
	return &format.Format{
		Name:      "GGUF",
		Recognise: isWeights,
		Single:    "model.gguf",
		IsIndex:   func(string) bool { return false },
		Belongs:   isWeights,
		Open:      format.Opener(read),
		Layout:    newLayout,
		Dialect: &format.Dialect{Assemble: assemble, Arrange: arrange, Types: types, Describe: describe,
			Predicts: predicts, Consumes: consumes, Tokenizer: tokenizerFiles},
	}
}

func isWeights(file string) bool { return strings.EqualFold(filepath.Ext(file), ".gguf") }
