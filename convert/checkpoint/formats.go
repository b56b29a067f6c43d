package checkpoint

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"dsmoe/config"
	"dsmoe/convert/format"
	"dsmoe/convert/gguf"
	"dsmoe/convert/safetensors"
	"dsmoe/convert/torchbin"
	"dsmoe/text"
)

// formats lists the formats of weights that are read, in the order in which a directory
// is searched for them.
var formats = []*format.Format{safetensors.Format(), torchbin.Format(), gguf.Format()}

// mistral is the form of a directory with params.json and without config.json.
var mistral = safetensors.Mistral()

// formatsIn lists the formats of a directory with these files, in the order in which it is searched for them.
func formatsIn(entries []string) []*format.Format {
	if slices.Contains(entries, mistral.Config) && !slices.Contains(entries, ConfigName) {
		return append([]*format.Format{mistral}, formats...)
	}
	return formats
}

// formatOf returns the first format for which is holds, or nil.
func formatOf(is func(*format.Format) bool) *format.Format {
	if i := slices.IndexFunc(formats, is); i >= 0 {
		return formats[i]
	}
	return nil
}

// FormatOf returns the format of a weight file with this name; nil for other files.
func FormatOf(file string) *format.Format {
	return formatOf(func(f *format.Format) bool { return f.Recognise(file) })
}

// IsIndex reports whether a file with this name is an index of weights.
func IsIndex(file string) bool { return indexFormat(file) != nil }

// indexFormat returns the format of the files that an index of that name lists.
func indexFormat(file string) *format.Format {
	return formatOf(func(f *format.Format) bool { return f.IsIndex(file) })
}

// IsWeights reports whether a file with this name holds weights, even in a format that cannot
// be read.
func IsWeights(file string) bool { return FormatOf(file) != nil || foreignKind(file) != "" }

// foreignKind names weight files that are not read, by their extension.
func foreignKind(file string) string {
	switch strings.ToLower(filepath.Ext(file)) {
	case ".bin", ".pt", ".pth", ".ckpt":
		return "a PyTorch pickle"
	case ".h5", ".msgpack", ".onnx", ".npz":
		return "a file of another framework"
	}
	return ""
}

// Written returns the format of that name, in small letters, in which checkpoints can be
// written; without a name it is safetensors.
func Written(name string) (*format.Format, error) {
	if name == "" {
		return formats[0], nil
	}
	f := formatOf(func(f *format.Format) bool { return strings.ToLower(f.Name) == name && f.Layout != nil })
	if f == nil {
		return nil, fmt.Errorf("format %s: %s can be written", text.Quote(name), strings.Join(WrittenNames(), " and "))
	}
	return f, nil
}

// WrittenBeside returns the format in which a checkpoint with this config is made.
func WrittenBeside(document []byte) *format.Format {
	if c, err := config.Parse(bytes.NewReader(document)); err == nil && c.IsParams() {
		return mistral
	}
	return formats[0]
}

// Mixtures lists the words for mixtures of types that formats have.
func Mixtures() (words []string) {
	for _, f := range formats {
		if f.Dialect != nil {
			words = append(words, f.Dialect.Types...)
		}
	}
	return words
}

// WrittenNames lists the names that Written takes.
func WrittenNames() (names []string) {
	for _, f := range formats {
		if f.Layout != nil {
			names = append(names, strings.ToLower(f.Name))
		}
	}
	return names
}

// ConfigName is the file name of a config. Beside Mistral's own files the config is params.json.
const ConfigName = "config.json"

// IsConfig reports whether a file of that name is the config beside weights.
func IsConfig(name string) bool { return name == ConfigName || name == mistral.Config }
